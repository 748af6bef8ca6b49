//go:build programs

// Package programs names metrics-server. It parses with an older Prometheus
// than the node runs, so it cannot be of the module above; all other versions
// are those of that module, for the compiler's cache to serve both.
package programs

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"
