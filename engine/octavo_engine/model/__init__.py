"""The model: what a checkpoint describes (`spec`), how it becomes a decoder (`loading`)."""
