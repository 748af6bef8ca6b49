"""Which tensors a model has, what they are called, how ranks divide them and what they cost. No torch, no files."""
