"""Kernels in C++ for processors with AVX-512 and its bfloat16 products: `build` compiles them, `library` loads them."""
