"""Audits of the trainer: empirical lower bounds on leakage, beside certified brackets. See `audit`."""

from checkin_jax import _lazy

__getattr__, __dir__ = _lazy.attach_stub(__name__, __file__)
