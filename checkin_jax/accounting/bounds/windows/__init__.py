"""Gaussian messages in slots that show one each: theorems, ways to look at a window, and what is known below them."""
