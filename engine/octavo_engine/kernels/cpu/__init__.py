"""Kernels in C++ for processors: `targets` says for which, `build` compiles them, `library` loads the best."""
