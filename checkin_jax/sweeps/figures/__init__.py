"""Figures of the papers by name, for a column of a journal. Needs matplotlib."""
