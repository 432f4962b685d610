"""`compare`: all bounds on a run, certified, published or invalid, as `checkin compare` shows them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from checkin_jax import _validate
from checkin_jax._progress import going_on
from checkin_jax._suggest import named
from checkin_jax.accounting import published
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels import gaussian_profile
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedBound:
    """A row of `compare`: one bound on a run, and whether it holds.

    Attributes:
      method: theorem and numerical method, or theorem as numbered in its paper.
      source: "checkin-jax" or the papers.
      epsilon: in nats per run, at `delta` (all deltas included); infinite if the bound gives nothing.
      direction: "upper" or "lower".
      validity: "certified", "published", "estimate" or "invalid".
      reason: one line, for invalid bounds always.
    """

    method: str
    source: str
    epsilon: float
    delta: float
    direction: str
    validity: str
    reason: str = ""


def _orders(largest: int) -> np.ndarray:
    """Whole orders: all up to 64, then about three percent apart."""
    return np.unique(np.concatenate([np.arange(2, 65), np.geomspace(64, largest, 100).round()]))


# Approach 1 evaluates Lemma 3 at every order and k; the smaller of two moments costs k times orders times order.
_LARGE, _MIDDLE, _SMALL = _orders(4096), _orders(512), _orders(128)


@named
def compare(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    *,
    delta: float,
    delta0: float | None = None,
    verbose: bool = True,
) -> list[ComparedBound]:
    """Compares all bounds on a run in the view "messages", replace-one: the certified bracket, then published bounds.

    Invalid bounds are included with a reason; `account` never uses them. Bounds of one round or pass are composed by
    Renyi divergences if their paper has them, otherwise by strong composition.

    Args:
      protocol: the run; its `published` names the analyses that apply.
      randomizer: with pure local differential privacy; or Gaussian, for which published bounds use (epsilon0, delta0)
        of its exact profile. There are no published bounds for others.
      delta: of the run, in (0, 1).
      delta0: with Gaussian, in (0, 1). Default: num_clients^-1.5, as in the experiments of [SCI].
      verbose: print on standard error after a few seconds that the comparison goes on.

    Returns:
      The rows. Every epsilon holds at total delta `delta`, unless it is invalid.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.
    """
    delta = _validate.real(0, 1, "()", delta=delta)
    with going_on("comparing; published bounds of many rounds may take a minute ...", verbose):
        return beside(account(protocol, randomizer, delta=delta), delta0=delta0)


def beside(g: Guarantee, *, delta0: float | None = None) -> list[ComparedBound]:
    """Rows of `compare` for a guarantee in the view "messages": its ends, then published bounds on its run."""
    protocol, randomizer, delta = g.protocol, g.randomizer, g.delta
    own = {"source": "checkin-jax", "delta": delta, "validity": g.validity}
    rows = [
        ComparedBound(method=g.method, epsilon=g.epsilon, direction="upper", **own),
        ComparedBound(method=g.lower_method, epsilon=g.lower, direction="lower", **own),
    ]
    mu, bounds = randomizer.gaussian_mu, list[PublishedBound]()
    if randomizer.largest_loss <= MAX_EPSILON0:
        bounds = list(_published(protocol, Run(protocol.num_units, delta, randomizer.largest_loss)))
    elif mu is not None:
        chosen = float(protocol.num_clients) ** -1.5 if delta0 is None else delta0
        chosen = _validate.real(0, 1, "()", delta0=chosen)
        run = Run(protocol.num_units, delta, local_epsilon(mu, chosen), mu, chosen)
        bounds = list(_published(protocol, run))
    same = "source", "direction", "validity", "reason"
    found = [
        ComparedBound(
            method=b.label, epsilon=float(b.value), delta=delta, **{name: getattr(b, name) for name in same}
        )
        for b in bounds
    ]
    return rows + sorted(found, key=lambda row: (row.validity == "invalid", row.epsilon))


@dataclasses.dataclass(frozen=True)
class Run:
    """Arguments of a published analysis: the number of units, delta, and the privacy of one message.

    epsilon0: of an eps0-LDP message; or of a Gaussian one (mu is not None) at `delta0`.
    """

    times: int
    delta: float
    epsilon0: float
    mu: float | None = None
    delta0: float = 0.0

    def repeated(self, theorem: Callable[..., PublishedBound]) -> PublishedBound:
        """A theorem about one unit, as a function of its delta, composed over all units."""
        return published.repeated(theorem, self.times, self.delta)


def _shuffled(run: Run, num_clients: int, rate: float) -> Iterator[PublishedBound]:
    if run.epsilon0 > MAX_EPSILON0:
        return
    setting = float(num_clients), rate, run.epsilon0
    composed = {"num_rounds": run.times, "delta": run.delta}
    if run.mu is None:
        for theorem, orders in (
            (published.theorem_1, _LARGE),
            (published.theorem_1_smaller, _MIDDLE),
            (published.subsampling_only, _LARGE),
            (published.theorem_2_repaired, _LARGE),
            (published.theorem_2, _LARGE),
            (published.theorem_1_fixed_weight, _LARGE),
        ):
            yield published.epsilon(theorem(*setting, orders), orders, **composed)
    yield published.strong_composition(*setting, delta0=run.delta0, **composed)
    yield from _lemma_3(setting, composed, run.delta0)


def _lemma_3(setting: tuple[float, float, float], run: dict, delta0: float) -> Iterator[PublishedBound]:
    """Bounds that use Lemma 3, with inner deltas equal to the run's."""
    inner = run["delta"]
    for approach in (published.approach_1, published.approach_2):
        value = approach(*setting, _SMALL, shuffle_delta=inner, delta0=delta0)
        yield published.epsilon(value, _SMALL, **run)
    value = published.baseline(*setting, _LARGE, tail_delta=inner, delta0=delta0)
    yield published.epsilon(value, _LARGE, **run)


def _shuffling(run: Run, num_clients: int) -> Iterator[PublishedBound]:
    n = float(num_clients)
    if run.mu is not None:
        yield _approximate(run, run.mu, lambda e0, d: published.shuffle(n, e0, d), n)
        return
    for theorem in (
        published.shuffle,
        published.shuffle_unrelaxed,
        published.shuffle_2019,
        functools.partial(published.privacy_blanket, inequality="Hoeffding"),
        functools.partial(published.privacy_blanket, inequality="Bennett"),
        published.clones_2021,
        published.clones_2023,
    ):
        yield run.repeated(functools.partial(theorem, n, run.epsilon0))


def _fixed_window(run: Run, num_clients: int, num_slots: int, prob: float) -> Iterator[PublishedBound]:
    n, m = float(num_clients), float(num_slots)
    if run.mu is not None:
        yield _approximate(run, run.mu, lambda e0, d: published.fixed_window(m, e0, d, check_in_prob=prob), m)
        return
    for theorem in (published.fixed_window, published.fixed_window_unrelaxed):
        yield run.repeated(functools.partial(theorem, m, run.epsilon0, check_in_prob=prob))
    if m * run.times == n and prob == m / n:
        found = published.corollary_3_3(n, m, run.epsilon0, 0.5 * run.delta / run.times, 0.5 * run.delta)
        yield from (found.exact, found.closed)


def _sliding_windows(run: Run, num_clients: int, window: int) -> Iterator[PublishedBound]:
    n, m = float(num_clients), float(window)
    if run.mu is not None:
        yield _approximate(run, run.mu, lambda e0, d: published.sliding_window(m, e0, d), n)
        return
    yield run.repeated(functools.partial(published.sliding_window, m, run.epsilon0))


def _averaged_updates(run: Run, num_clients: int, num_slots: int) -> Iterator[PublishedBound]:
    n, m = float(num_clients), float(num_slots)
    if run.mu is not None:
        yield _approximate(
            run, run.mu, lambda e0, d: published.averaged_updates(n, m, e0, 0.5 * d, 0.5 * d), n
        )
        return
    yield run.repeated(lambda d: published.averaged_updates(n, m, run.epsilon0, 0.5 * d, 0.5 * d))


# Analyses that a protocol may name in `published`, called with the arguments named there.
PUBLISHED: dict[str, Callable[..., Iterator[PublishedBound]]] = {
    "shuffled check-in": _shuffled,
    "shuffling": _shuffling,
    "fixed window": _fixed_window,
    "sliding windows": _sliding_windows,
    "averaged updates": _averaged_updates,
}


def _published(protocol: CheckInProtocol, run: Run) -> Iterator[PublishedBound]:
    if protocol.unequal_rates is not None or protocol.num_colluding:
        return  # published bounds are for a common rate, and nobody colludes
    for name, setting in protocol.published:
        yield from PUBLISHED[_validate.choice(tuple(PUBLISHED), published=name)](run, **setting)


def local_epsilon(mu: float, delta0: float) -> float:
    """Least epsilon0 at which one Gaussian message has this delta0, within 1e-12, rounded up; at most 1000."""
    least = np.log(delta0)
    with float64():
        return float(
            bisected(lambda e: gaussian_profile.log_profile(mu, np.asarray(e)) > least, 0.0, 1000.0, 60)[1]
        )


_EPSILONS = np.geomspace(1e-4, MAX_EPSILON0 / 8, 512)


def _approximate(
    run: Run, mu: float, theorem: Callable[[np.ndarray, np.ndarray], PublishedBound], units: float
) -> PublishedBound:
    """The best (epsilon0, delta0) version for Gaussian messages on a grid of epsilon0; infinite if none applies."""

    def one(d: np.ndarray) -> PublishedBound:
        half = np.full_like(_EPSILONS, 0.5 * d)
        pure = theorem(8 * _EPSILONS, half)
        with np.errstate(over="ignore"):
            delta1 = 0.5 * d / (units * (np.exp(pure.value) + 1)) * (1 - 1e-9)
        usable = delta1 > 0
        delta1 = np.where(usable, np.minimum(delta1, 0.5), 0.5)
        limit = published.delta0_limit(_EPSILONS, delta1)
        with float64():
            log_delta0 = gaussian_profile.log_profile(mu, _EPSILONS)
        usable &= (limit > 0) & (log_delta0 <= np.log(np.maximum(limit, 1e-300)))
        value = np.where(usable, pure.value, np.inf)
        best = int(np.argmin(value))
        reason = pure.reason if usable.any() else "no epsilon0 has a delta0 within the theorem's limit"
        label = f"{pure.label}, (epsilon0, delta0)"
        return dataclasses.replace(pure, value=value[best], delta=None, label=label, reason=reason)

    return run.repeated(one)
