"""The private step: what a client computes, how it is clipped, randomized and summed."""
