"""How kernels are run: in NumPy or compiled ahead of their use, over many settings, on which device."""
