"""Privacy loss distributions and their composition: from profiles of one unit to the epsilon of a run."""
