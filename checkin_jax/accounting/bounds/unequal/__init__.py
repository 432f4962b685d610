"""Bounds for clients with unequal check-in rates, rate 1 included, or with colluders (docs/theory_rates.md)."""
