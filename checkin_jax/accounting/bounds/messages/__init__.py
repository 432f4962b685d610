"""Messages of a known kind: a total variation, k-ary randomized response, one bit; and where a message hides."""
