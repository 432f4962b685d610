"""Upper bounds on the privacy loss of messages of a known kind: the steps that bound them, and sums of such steps."""
