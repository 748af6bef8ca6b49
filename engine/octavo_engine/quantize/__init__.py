"""`octavo quantize`: makes a checkpoint of few bits out of a plain one, by a library that others keep well.

What is decided here is what goes in and what may come out. How codes are found is the library's, and one module knows
it (`library`); nothing becomes the output that the engine has not read (`result`).
"""
