"""Many settings in one call: `sweep` evaluates a table of them, a row each, in blocks."""
