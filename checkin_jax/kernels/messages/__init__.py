"""Upper bounds on the privacy loss of messages: dominating steps of a known kind, and sums of such steps."""
