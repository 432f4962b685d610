"""Numerics in NumPy float64: lattice and occupancy laws, convex functions; every error is one-sided."""
