//go:build programs

// Package programs names the commands that are built as they are, so that
// go.mod and go.sum pin them and all that they are made of.
package programs

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "helm.sh/helm/v3/cmd/helm"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "sigs.k8s.io/kind"
)
