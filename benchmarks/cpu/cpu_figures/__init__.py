"""Octavo beside its peers on this machine's processors: `make bench-cpu`."""
