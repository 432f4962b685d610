"""Check-in privacy in Flower: an accountant and a client mod for flwr (extra `flower`).

flwr is imported on first use; `local_dp_worth`, the privacy of a `LocalDpMod` setting, does not need it.
"""

from checkin_jax import _startup

__getattr__, __dir__ = _startup.attach_stub(__name__, __file__)
