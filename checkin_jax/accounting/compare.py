"""`compare`: all bounds on a run, certified, published or invalid, as `checkin compare` shows them.

`literature`: published values of epsilon, each with the certified bracket of the same setting.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from checkin_jax import _validate, protocols, randomizers
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
    verbose: bool = True,
) -> list[ComparedBound]:
    """Compares all bounds on a run in the view "messages", replace-one: the certified bracket, then published bounds.

    Invalid bounds are included with a reason; `account` never uses them. Bounds of one round or pass are composed by
    Renyi divergences if their paper has them, otherwise by strong composition.

    Args:
      protocol: the run; its facts say which analyses apply.
      randomizer: with pure local differential privacy; or Gaussian, for which published bounds use (epsilon0, delta0)
        of its exact profile at delta0 = num_clients^-1.5, as in the experiments of [SCI]. There are no published bounds
        for others.
      delta: of the run, in (0, 1).
      verbose: print on standard error after a few seconds that the comparison goes on.

    Returns:
      The rows. Every epsilon holds at total delta `delta`, unless it is invalid.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.
    """
    delta = _validate.real(0, 1, "()", delta=delta)
    with going_on("comparing; published bounds of many rounds may take a minute ...", verbose):
        return beside(account(protocol, randomizer, delta=delta))


def beside(g: Guarantee) -> list[ComparedBound]:
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
        delta0 = _validate.real(0, 1, "()", delta0=float(protocol.num_clients) ** -1.5)
        run = Run(protocol.num_units, delta, local_epsilon(mu, delta0), mu, delta0)
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


def _published(protocol: CheckInProtocol, run: Run) -> Iterator[PublishedBound]:
    """Published bounds whose hypotheses hold for one unit, by the protocol's facts."""
    if protocol.unequal_rates is not None or protocol.num_colluding:
        return  # published bounds are for a common rate, and nobody colludes
    cover, averaged = protocol.cover, protocol.averaged_slot_choices
    if protocol.sliding_window is not None:
        yield from _sliding_windows(run, protocol.num_clients, protocol.sliding_window)
    elif cover is not None and averaged is None:
        yield from _shuffled(run, *cover)
        if cover.rate == 1.0:
            yield from _shuffling(run, cover.num_clients)
    if protocol.used_slot_choices is not None:
        yield from _fixed_window(run, *protocol.used_slot_choices)
    if averaged is not None and averaged.prob == 1.0:
        yield from _averaged_updates(run, averaged.num_clients, averaged.num_slots)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedValue:
    """A published epsilon, and the bracket of this package for the same run.

    Attributes:
      table: name of its table in `literature`.
      setting: protocol and mechanism, in the names of this package.
      delta: of the run.
      bound: the bound behind the value.
      direction: "upper" or "lower", as its source claims.
      published: epsilon in nats.
      lower, epsilon: ends of the certified bracket, rounded outwards.
    """

    table: str
    setting: str
    delta: float
    bound: str
    direction: str
    published: float
    lower: float
    epsilon: float

    @property
    def verdict(self) -> str:
        """Comparison of the value with the bracket, in a word.

        "contradicted": an upper bound below the lower end, or a lower bound above the upper end. "sharper" or "looser":
        compared with the end of the bracket in its direction.
        """
        if self.direction == "upper":
            contradicted, sharper = self.published < self.lower, self.published < self.epsilon
        else:
            contradicted, sharper = self.published > self.epsilon, self.published > self.lower
        return "contradicted" if contradicted else "sharper" if sharper else "looser"


def _bracket(row: dict) -> tuple[str, float, float]:
    if "allocation" in row:
        # A local import, since dp_accounting takes a second.
        from checkin_jax.accounting.interop.allocation import random_allocation

        arguments = row["allocation"]
        found = random_allocation(**arguments, delta=row["delta"])
        return _call("random_allocation", arguments), found.lower, found.epsilon
    (protocol, of_run), (randomizer, of_message) = row["protocol"], row["randomizer"]
    guarantee = account(
        getattr(protocols, protocol)(**of_run),
        getattr(randomizers, randomizer)(**of_message),
        delta=row["delta"],
    )
    setting = f"{_call(protocol, of_run)}, {_call(randomizer, of_message)}"
    return setting, guarantee.lower, guarantee.epsilon


def _call(name: str, arguments: dict) -> str:
    given = (
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value!r}"
        for key, value in arguments.items()
    )
    return f"{name}({', '.join(given)})"


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Tables of published values by name, as published_values.json has them, in the order of the page.

    title: the settings, in a few words. source: authors and year. artefact: source of the values: a repository, its
    commit and a file. obtained: how the values were read from it. remark: differences between the source's setting and
    ours, or why a value cannot be true; may be empty.
    """
    file = importlib.resources.files("checkin_jax.accounting") / "published_values.json"
    return {table["name"]: table for table in json.loads(file.read_text(encoding="utf-8"))["tables"]}


@named
def literature(table: str | None = None) -> list[PublishedValue]:
    """Published values, each with its certified bracket, which is computed now.

    Args:
      table: a name in `tables()`. Default: all tables, which takes half a minute.

    Returns:
      The rows, in the order of their table.

    Raises:
      ValueError: no such table.

    Examples:
      >>> import checkin_jax as cj
      >>> row = cj.literature("clones-2021")[0]
      >>> print(f"{row.published:.4f} published; {row.lower:.4f} to {row.epsilon:.4f}: {row.verdict}")
      0.1728 published; 0.1169 to 0.1183: looser
    """
    if table is not None and (not isinstance(table, str) or table not in tables()):
        raise _validate.error(f"one of {', '.join(tables())}", table=table)
    found = []
    for name in tables() if table is None else [table]:
        for row in tables()[name]["rows"]:
            setting, lower, epsilon = _bracket(row)
            told = {key: row[key] for key in ("delta", "bound", "direction", "published")}
            found.append(PublishedValue(table=name, setting=setting, lower=lower, epsilon=epsilon, **told))
    return found
