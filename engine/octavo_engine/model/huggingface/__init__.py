"""Checkpoints as Hugging Face's libraries write them: config.json, safetensors, quantized formats."""
