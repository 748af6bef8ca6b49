"""The model: what a checkpoint describes (`spec`), how it is read (`loading`), what is computed (`decoder`)."""
