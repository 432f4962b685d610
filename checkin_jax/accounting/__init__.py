"""Accounting: brackets of epsilon for runs, calibration, attack terms, events and ledgers."""
