"""Execution of kernels: NumPy or JAX, blocks of losses, and the device."""
