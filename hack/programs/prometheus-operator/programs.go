//go:build programs

// Package programs names the Prometheus Operator and the reloader that it puts
// beside each Prometheus. They are built from another Kubernetes client and
// another Prometheus than the node runs, so they are a module of their own.
package programs

import (
	_ "github.com/prometheus-operator/prometheus-operator/cmd/operator"
	_ "github.com/prometheus-operator/prometheus-operator/cmd/prometheus-config-reloader"
)
