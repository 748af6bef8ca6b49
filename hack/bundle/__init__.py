"""What is generated from the charts: the tables of their values, and the manifests under `kustomize/`."""
