"""Laws of integer counts: occupied slots, clients, sums of indicators. NumPy float64."""
