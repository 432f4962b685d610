"""Bounds on messages in slots that use one client each, reductions of windows, and witnesses."""
