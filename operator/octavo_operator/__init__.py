"""Octavo's Kubernetes operator: `InferenceService` resources become running engines, scaled on queue depth."""

__version__ = "0.1.0"
