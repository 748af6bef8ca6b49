"""Retrieval-augmented questions with prefix caching and chunked prefill on and off: `make bench-rag`."""
