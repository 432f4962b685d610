"""What messages of a known kind give away at most: the steps that bound them, and sums of such steps."""
