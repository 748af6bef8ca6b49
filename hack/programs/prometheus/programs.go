//go:build programs

// Package programs names Prometheus, so that go.mod and go.sum pin it and all
// that it is built from. Debian's build leaves out the discovery of pods.
package programs

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
)
