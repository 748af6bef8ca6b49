"""Octavo's engine: continuous batching over a paged KV cache. Importing it loads neither torch nor fastapi."""

__version__ = "0.1.0"
