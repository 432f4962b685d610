"""Privacy loss distributions and their composition: what turns profiles of one unit into an epsilon of a run."""
