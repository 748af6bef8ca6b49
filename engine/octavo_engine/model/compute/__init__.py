"""The forward pass."""
