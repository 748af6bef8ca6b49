"""One look at a GPU: are the kernels right, are the tokens transformers', how close does a step come to the limits.

Measures, and says what it measured; decides nothing for the engine.
"""
