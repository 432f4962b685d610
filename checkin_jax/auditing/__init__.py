"""Audits of the trainer: what a run is seen to leak, beside what the accountant says it may."""
