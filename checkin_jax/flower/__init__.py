"""Check-in privacy in Flower: an accountant and a client mod for flwr (extra `flower`).

flwr is imported on first use; `local_dp_worth`, the privacy of a `LocalDpMod` setting, does not need it.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from checkin_jax import _lazy

if _TYPE_CHECKING:
    from checkin_jax.flower.client import ClientMod as ClientMod
    from checkin_jax.flower.local_dp_mod import LocalDpWorth as LocalDpWorth
    from checkin_jax.flower.local_dp_mod import local_dp_worth as local_dp_worth
    from checkin_jax.flower.strategy_accountant import Accountant as Accountant

__getattr__, __dir__ = _lazy.attach(
    __name__,
    {
        "Accountant": "strategy_accountant",
        "ClientMod": "client",
        "LocalDpWorth": "local_dp_mod",
        "local_dp_worth": "local_dp_mod",
    },
)
