"""What a model is, as plain values: its architecture, rope, quantization, defaults for sampling. No torch, no files."""
