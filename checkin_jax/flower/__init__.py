"""Check-in privacy in Flower: an accountant and a client mod for flwr (extra `flower`).

flwr is imported when something needs it: what a `LocalDpMod` setting is worth is told without it.
"""

from checkin_jax import _lazy

__getattr__, __dir__ = _lazy.attach_stub(__name__, __file__)
