"""Check-ins beside DP-SGD and DP-FTRL (banded matrices, BandMF) of a trusted server, at the same epsilon.

The peers are jax_privacy's: its optimized banded strategies, and the event that it gives them, accounted for here with
both ends known. Nothing of theirs changes what `account` says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import dp_accounting
import jax
import numpy as np
import scipy.signal

from checkin_jax import _validate
from checkin_jax._extras import how_to_install
from checkin_jax._rounding import up
from checkin_jax.accounting.account import account
from checkin_jax.accounting.interop.accountant import CheckInAccountant
from checkin_jax.protocols import REPLACE, Shuffle, ShuffledCheckIn
from checkin_jax.randomizers import Gaussian

# Bands that are tried, and how near the least noise comes, relatively; no noise is below the last.
_BANDS, _MOST_BANDS, _PRECISION, _LEAST = (2, 4, 8, 16, 32, 64), 64, 1e-3, 0.1
_ADDED = "add-or-remove-one"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """One way to train with noise at one epsilon.

    Attributes:
      method: its name, with its bands.
      trusted: who has to be trusted with what.
      participation: what a client may do, and who sees to it.
      neighboring_relation: what epsilon is about; replacement is the stronger promise.
      epsilon: certified, at most that of the check-ins.
      noise: standard deviation per coordinate of what is added to one round's sum, clip norms; where it is
        correlated, of the uncorrelated noise behind it.
      error: root mean square over rounds of the noise in the sum of all means so far, per coordinate, clip norms.
    """

    method: str
    trusted: str
    participation: str
    neighboring_relation: str
    epsilon: float
    noise: float
    error: float


def beside_banded(protocol: ShuffledCheckIn | Shuffle, randomizer: Gaussian, *, delta: float) -> list[Peer]:
    """Sums of check-ins, and what a trusted server can do at their epsilon with as many messages a round.

    Rows: the check-ins (view "aggregate", each client's own noise); DP-SGD where the server samples clients by coins
    that nobody sees; amplified BandMF, the server sampling in turns, with the bands of the least error; and BandMF
    without sampling, where a timer keeps a client from coming twice within b rounds, b the inverse of the rate.

    The error is a proxy, and is stated for what it is: noise in prefix sums, the yardstick of matrix mechanisms. It
    knows nothing of clipping, of who comes when, of step sizes that fall, or of momentum. The peers' epsilon is for a
    client there or not, that of the check-ins for a record replaced, which is harder by up to a factor 2 of noise.

    Raises:
      ImportError: jax_privacy is not installed. TypeError, ValueError: another protocol or randomizer, or an argument
        outside its range.
    """
    if not isinstance(protocol, ShuffledCheckIn | Shuffle) or protocol.coins is not None:
        raise TypeError(
            f"protocol={_validate.shown(protocol)}: expected ShuffledCheckIn with one rate, or Shuffle"
        )
    _validate.instance(Gaussian, randomizer=randomizer)
    delta = _validate.real(0, 1, open_low=True, open_high=True, delta=delta)
    found = account(protocol, randomizer, delta=delta, view="aggregate", bounds="fast")
    if not 0.0 < found.epsilon < math.inf:
        raise ValueError(f"epsilon={found.epsilon!r}: expected a positive number to compare at")
    rounds, expected = protocol.repeats, protocol.num_clients * protocol.rate
    noise = randomizer.noise_multiplier * math.sqrt(expected)
    rows = [
        Peer(
            method=f"check-ins, Gaussian noise of {randomizer.noise_multiplier:.4g} a client",
            trusted="whoever adds up",
            participation="each client throws its own coin",
            neighboring_relation=REPLACE,
            epsilon=found.epsilon,
            noise=noise,
            error=noise * _prefix_error(np.ones(1), rounds) / expected,
        )
    ]
    sampled = [
        _amplified(bands, rounds, protocol.rate, expected, found.epsilon, delta) for bands in (1, *_BANDS)
    ]
    known = [row for row in sampled if row is not None]
    rows.append(known[0])
    if known[1:]:
        rows.append(min(known[1:], key=lambda row: row.error))
    apart = min(max(round(1.0 / protocol.rate), 1), rounds)
    bands = min(apart, _MOST_BANDS)
    times = -(-rounds // apart)
    sigma, epsilon = _least_noise(dp_accounting.GaussianDpEvent, times, found.epsilon, delta)
    rows.append(
        Peer(
            method=f"DP-FTRL: BandMF, {bands} bands, no sampling",
            trusted="the server, with updates and noise",
            participation=f"a timer: once in {apart} rounds at most",
            neighboring_relation=_ADDED,
            epsilon=epsilon,
            noise=sigma,
            error=sigma * _prefix_error(_strategy(rounds, bands), rounds) / expected,
        )
    )
    return rows


def table(rows: Sequence[Peer]) -> str:
    """Rows in columns, who is trusted and what clients do below."""
    lines = [f"{'':<44} {'epsilon':>9} {'noise':>9} {'error':>9}"]
    for row in rows:
        lines.append(f"{row.method:<44} {up(row.epsilon, 4):>9} {row.noise:>9.4g} {row.error:>9.4g}")
    lines += [
        f"{row.method}: {row.neighboring_relation}; {row.participation}; trusts {row.trusted}" for row in rows
    ]
    return "\n".join(lines)


def _amplified(
    bands: int, rounds: int, rate: float, expected: float, target: float, delta: float
) -> Peer | None:
    """DP-SGD (one band), or BandMF with cyclic Poisson sampling; None where a group is too small for such rounds."""
    prob = rate * bands
    if prob > 1.0 or bands > rounds:
        return None

    def event(noise: float) -> dp_accounting.DpEvent:
        # jax_privacy's amplified_bandmf_event: rounds / bands Poisson-sampled sums.
        return dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(noise))

    sigma, epsilon = _least_noise(event, -(-rounds // bands), target, delta)
    strategy = np.ones(1) if bands == 1 else _strategy(rounds, bands)
    return Peer(
        method="DP-SGD" if bands == 1 else f"amplified BandMF, {bands} bands",
        trusted="the server, with updates, noise and who is sampled",
        participation="the server samples" + ("" if bands == 1 else f" from one of {bands} groups in turn"),
        neighboring_relation=_ADDED,
        epsilon=epsilon,
        noise=sigma,
        error=sigma * _prefix_error(strategy, rounds) / expected,
    )


def _least_noise(event: Any, times: int, target: float, delta: float) -> tuple[float, float]:
    """The least noise whose certified epsilon is at most the target, and that epsilon."""

    def epsilon(noise: float) -> float:
        ledger = CheckInAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        return ledger.compose(event(noise), times).get_epsilon(delta)

    high = _LEAST
    while epsilon(high) > target:
        high *= 2.0
    low = max(0.5 * high, _LEAST)
    while high > low * (1.0 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle) <= target else (middle, high)
    return high, epsilon(high)


def _strategy(rounds: int, bands: int) -> np.ndarray:
    """jax_privacy's banded Toeplitz strategy for prefix sums, columns of norm one."""
    try:
        from jax_privacy.matrix_factorization import toeplitz  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"jax_privacy is not installed: {how_to_install('jax-privacy')}") from error
    # Whatever the caller demands of its own programs.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = np.asarray(toeplitz.optimize_banded_toeplitz(n=rounds, bands=bands), dtype=np.float64)
    return found / np.linalg.norm(found)


def _prefix_error(strategy: np.ndarray, rounds: int) -> float:
    """Root mean square over rounds of the rows of A C^-1, A all prefix sums and C the banded Toeplitz matrix."""
    ones = np.ones(rounds)
    rows = scipy.signal.lfilter([1.0], strategy, ones)
    return math.sqrt(float(np.mean(np.cumsum(np.square(rows)))))
