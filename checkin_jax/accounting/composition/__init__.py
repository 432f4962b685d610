"""From bounds on units to the epsilon of a run: composition, its search for both ends, Renyi divergences."""
