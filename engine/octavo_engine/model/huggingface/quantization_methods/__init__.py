"""What each method writes into `quantization_config`, as a Quantization. Names and numbers; no tensors, no torch."""
