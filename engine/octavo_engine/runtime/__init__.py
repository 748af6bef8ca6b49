"""Computes a batch: tensors in, sampled tokens out. Knows nothing of queues, block accounting or text."""
