"""Covers, and bounds on shuffled messages by their total variation, mechanism or privacy profile."""
