"""The model: what a checkpoint describes (`spec`), how its weights are read (`loading`), what is computed (`decoder`)."""
