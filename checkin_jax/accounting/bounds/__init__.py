"""Bounds on one unit of a protocol: one file for each family of theorems, and the table of all bounds."""
