"""NetworkPolicies enforced on one node with nftables, for tests: small, readable, and of the standard library alone."""
