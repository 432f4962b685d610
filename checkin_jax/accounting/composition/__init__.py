"""Composition of units to the epsilon of a run: both ends, privacy profiles, and Renyi divergences."""
