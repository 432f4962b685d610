"""Pages that disclose what a run promises, whoever trained: what guidelines ask, item by item, and who answered."""
