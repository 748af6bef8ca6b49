"""What a model could do on a device, told before anything is bought or loaded: memory, bounds, a picture."""
