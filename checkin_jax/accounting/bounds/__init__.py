"""Bounds on one unit of a protocol: a family of theorems a file, and the table of them."""
