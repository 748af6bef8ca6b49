"""A single-node Kubernetes for development and tests, in a network namespace of its own.

Real etcd, API server, controllers, scheduler, kubelet with its own containerd, kube-proxy, CoreDNS and Prometheus,
built from package registries only. Standard library only: it runs before any environment exists. It knows Kubernetes
and images, nothing of what the engine or the operator do.
"""
