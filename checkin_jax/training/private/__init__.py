"""The private step: client updates, clipping, randomization and sums."""
