"""Host numerics in numpy float64: lattice laws, occupancies, convex functions; errors bounded on a stated side."""
