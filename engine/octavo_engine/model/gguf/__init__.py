"""Checkpoints as one GGUF file."""
