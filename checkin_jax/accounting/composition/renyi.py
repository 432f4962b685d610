"""Renyi differential privacy of shuffled check-in with eps0-LDP messages, at any real order (T1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from checkin_jax import _validate
from checkin_jax._names import named
from checkin_jax.accounting.bounds.choice import BEST, FAST_ONES, check_protocol, check_randomizer, unit_bound
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.devices import float64
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer

# Neighbouring knots differ by half a percent; what that adds to a moment is of second order, below 1e-5.
_KNOTS = 4096
# Below, kernels underflow; a single message leaks practically nothing.
_MIN_EPSILON0 = 1e-9


@named
def rdp(
    protocol: CheckInProtocol, randomizer: Randomizer, orders: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Upper bound on the Renyi divergence of a whole run at each order, views "messages" and "aggregate".

    Theorem: T1's pair, A(lam) = E_F[(S0/n)^lam (S1/n)^(1-lam)], bounded through its privacy profile, or what is known
    besides of this randomizer; replace-one, both directions, units chosen adaptively. Certified.

    Args:
      protocol: the run.
      randomizer: eps0-LDP messages. (Gaussian messages behind a shuffler have lognormal moments, so RDP says little
        about them: `account` composes their privacy loss distribution.)
      orders: real numbers > 1, shape [orders].

    Returns:
      float64 [orders], nats over all units, rounded up. Relative excess over the pair's own value about 0.1% where
      order times the divergence of a round is small, as it is where RDP is used; at orders ruled by events rarer
      than 1e-12 up to a factor of 4 for n in the hundreds. Exact to 2e-5 for n <= 48.

    Raises:
      TypeError, ValueError: an order that is not a number above 1, or a randomizer without pure LDP.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1)
      >>> [f"{value:.3e}" for value in cj.rdp(run, cj.PureLDP(epsilon0=2.0), [2.0, 32.0])]
      ['1.623e-05', '2.597e-04']
    """
    check_protocol(protocol)
    epsilon0 = check_randomizer(randomizer).largest_loss
    if epsilon0 > MAX_EPSILON0:
        raise TypeError(
            f"randomizer={_validate.shown(randomizer)}: expected one with pure local privacy, such as PureLDP"
        )
    checked = [
        _validate.real(1, math.inf, open_low=True, open_high=True, orders=order) for order in _listed(orders)
    ]
    shifted = np.asarray(checked) - 1.0
    if epsilon0 == 0.0:
        return np.zeros(len(checked))
    # Bun, Steinke (2016), Proposition 3.3: of each message by itself; never below the least positive float64.
    local = 0.5 * np.asarray(checked) * epsilon0 * epsilon0 * (1.0 + 1e-12)
    local = np.maximum(np.minimum(local, epsilon0), np.finfo(np.float64).tiny) * protocol.repeats
    if epsilon0 < _MIN_EPSILON0:
        return local
    with float64():
        # What is left out of a round counts with the largest loss: e^(order epsilon0) times its mass.
        left_out = math.exp(-min(max(checked) * epsilon0 + 30.0, 690.0))
        # B0 and B are slower, and far below where they hold.
        tried = FAST_ONES if randomizer.one_bit is None else BEST
        one = unit_bound(protocol, randomizer, "messages", 1.0, left_out, bounds=tried).bound
        losses = np.append(0.0, epsilon0 * np.geomspace(1e-9, 1.0, _KNOTS))
        side = pld.side_upper(host(losses), one.upper(losses))
        moments = pld.symmetric_log_moments(host(losses), side, host(shifted))
        with np.errstate(over="ignore"):
            found = protocol.repeats * np.asarray(moments) / shifted * (1.0 + 1e-12)
    return np.minimum(found, local)


def _listed(orders: Sequence[float] | np.ndarray) -> list[float]:
    try:
        listed = list(orders)
    except TypeError:
        listed = []
    if not listed:
        raise TypeError(
            f"orders={_validate.shown(orders)}: expected a sequence of at least one number above 1"
        )
    return listed
