"""Figures of the papers and of the documentation by name, for a column of a journal. Needs matplotlib."""
