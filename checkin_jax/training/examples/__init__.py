"""Example data sets and networks; the only modules that import flax."""
