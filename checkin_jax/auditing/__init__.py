"""Audits of the trainer: empirical lower bounds on leakage, beside certified brackets. See `audit`."""

from checkin_jax import _startup

__getattr__, __dir__ = _startup.attach_stub(__name__, __file__)
