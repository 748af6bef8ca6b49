"""What can be known before a pod is made: do the flags parse, can the model be run, does it fit. Loads no torch."""
