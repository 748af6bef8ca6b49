"""Octavo's Kubernetes operator: `InferenceService` resources become running engines, scaled on queue depth."""
