"""Pages about the privacy of a run, a ledger or a plan: one record, rendered by templates."""
