"""Attention kernels: a plain torch definition of correct, and fast twins. Knows tensors, nothing else of the engine."""
