"""Kernels for CUDA in Triton: attention over blocks, and what stores into them. Compiled at their first launch."""
