"""Example data sets and networks. No other module imports flax."""
