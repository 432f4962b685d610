"""Many settings in one call: `sweep` evaluates a table of settings, one row of results each, in blocks."""
