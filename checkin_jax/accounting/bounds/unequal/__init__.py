"""Bounds where clients check in at rates of their own, surely, or collude (docs/theory_rates.md)."""
