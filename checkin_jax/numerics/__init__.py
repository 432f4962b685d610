"""Numerics in NumPy float64: lattice laws, occupancy laws, convex functions. Every error is bounded on a
stated side.
"""
