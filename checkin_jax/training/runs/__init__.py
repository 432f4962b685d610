"""Folders of runs: checkpoints, processes, records."""
