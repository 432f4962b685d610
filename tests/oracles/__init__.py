"""Independent reference computations, written from the definitions of the mechanisms.

Nothing here imports jax or the package under test. A value is exact (rational arithmetic), correct
to a stated accuracy (mpmath, positive-term float sums), or an explicit one-sided bound: each
docstring says which.
"""
