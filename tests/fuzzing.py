"""What the fuzz tests share: proper and odd arguments, calls that may refuse or answer, a time limit, a count.

A refusal is a ValueError or TypeError that names the argument (or exit code 2 and one line). Never a NaN, an upper end
below a lower one, another exception, or a call that does not end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import inspect
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import checkin_jax as cj
from checkin_jax import protocols
from checkin_jax.protocols import RELATIONS, VIEWS

# Seconds a call may take on a busy machine that compiles for the first time; and until the process is ended where
# compiled code does not come back to Python, which alone sees the first limit.
LIMIT, LAST_LIMIT = 240.0, 900.0
# What the test of many inputs takes, for each kind of input.
SECONDS = float(os.environ.get("CHECKIN_JAX_FUZZ_SECONDS", "60"))

# Words by which a refusal says what would have been right.
_LEGAL = (
    "expected",
    "needs",
    "missing",
    "unexpected keyword",
    "meets it",
    "do not broadcast",
    "damaged",
    "no such file",
    "not a config",
)


def spread(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of every magnitude, and the ends of the range."""
    between = st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))
    return st.one_of(between, st.sampled_from([low, high]))


def whole(high: float) -> st.SearchStrategy[int]:
    return spread(1.0, high).map(int)


odd = st.one_of(
    st.sampled_from(
        [math.nan, math.inf, -math.inf, -1, 0, 1.5, 1e400, 10**400, -(10**400), True, None, "", "1"]
    ),
    st.sampled_from(
        [b"1", [], (1,), {}, 1j, np.float64(0.5), np.int64(3), np.array(2.0), np.array([1, 2]), object]
    ),
    # Python refuses to write down whole numbers of more than 4,300 digits.
    st.sampled_from([1, -1]).map(lambda sign: sign * 10**5000),
    st.sampled_from(["x" * 5000, [[1], [2, 3]], np.array([]), np.array(["a"])]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(),
    st.text(max_size=4),
)
# What each argument should be, whichever function it belongs to.
PROPER: dict[str, st.SearchStrategy[Any]] = {
    "num_clients": whole(1e12),
    "num_colluding": st.one_of(st.just(0), st.just(0), whole(1e12)),
    "min_reports": st.one_of(st.just(0), st.just(0), whole(1e12)),
    "num_slots": whole(1e12),
    "window": whole(1e6),
    "num_rounds": whole(1e9),
    "num_epochs": whole(1e4),
    "check_in_prob": spread(1e-12, 1.0),
    "largest_rate": spread(1e-12, 1.0),
    "expected_check_ins": spread(1e-9, 1e12),
    "client_rate": spread(1e-12, 1.0),
    "drop_out_prob": st.sampled_from([0.0, 0.1, 0.999999]),
    "empty_slots": st.sampled_from(["dummy", "visible"]),
    "minibatch": st.one_of(st.just(1), whole(1e3)),
    "epsilon0": st.one_of(spread(1e-8, 50.0), st.just(0.0)),
    "noise_multiplier": spread(1e-6, 1e8),
    "delta": spread(1e-300, 1.0),
    "delta0": spread(1e-300, 0.999),
    "num_values": whole(1e12),
    "total_variation": spread(1e-9, 1.0),
    "differ": spread(1e-9, 1.0),
    "view": st.sampled_from(VIEWS),
    "neighboring_relation": st.sampled_from(RELATIONS),
    "target_epsilon": spread(1e-9, 100.0),
    "value_discretization_interval": spread(1e-5, 1.0),
    "tail_mass": spread(1e-30, 0.9),
}


def arguments(names, odds: int, **own: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Proper arguments, `own` among them, but for `odds` of them at most."""
    made = {name: PROPER[name] for name in names} | own

    def spoil(values):
        return st.lists(st.sampled_from(sorted(values)), max_size=odds, unique=True).flatmap(
            lambda spoiled: st.fixed_dictionaries(dict.fromkeys(spoiled, odd)).map(lambda new: values | new)
        )

    return st.fixed_dictionaries(made).flatmap(spoil)


def fields(kind) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def proper(kinds) -> st.SearchStrategy:
    """Objects of these classes; what a class refuses as a combination is left out."""

    def build(case):
        kind, values = case
        try:
            return kind(**values)
        except ValueError:
            return None

    cases = st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), arguments(fields(kind), 0)))
    return cases.map(build).filter(lambda built: built is not None)


any_protocol = proper(protocols.PROTOCOLS)
any_randomizer = proper((cj.PureLDP, cj.Gaussian))


class Refused(Exception):
    """A clear refusal."""


class Tally:
    """How many inputs were tried, and what became of them."""

    def __init__(self) -> None:
        self.answered = self.refused = 0

    def __str__(self) -> str:
        return (
            f"{self.answered + self.refused:,} inputs: {self.answered:,} answered, {self.refused:,} refused"
        )


class _Hanging(BaseException):
    """Nothing that is tested may catch it."""


class _TimeIsOver(BaseException):
    """Nor this; Hypothesis lets it through."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Fails the test, with the place, where it takes longer than LIMIT."""

    def stop(*_: object) -> None:
        raise _Hanging

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    except _Hanging:
        pytest.fail(f"not done after {LIMIT:.0f} s")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def call(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """The function's result; Refused where it refuses clearly, and fails where it does anything else."""
    try:
        return function(*positional, **named)
    except (ValueError, TypeError, OSError) as error:
        text = str(error)
        names = {
            *(str(each) for each in positional if isinstance(each, Path)),
            *PROPER,
            *named,
            *inspect.signature(function).parameters,
            "protocol",
            "randomizer",
        }
        assert any(name in text for name in names), text
        assert any(words in text for words in _LEGAL), text
        assert len(text) < 1_000, text
        raise Refused from error


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of input: `run(*drawn)` raises Refused, returns, or fails.

    Attributes:
      covers: the public functions and commands that it tries.
      few, many: how many inputs, by default and at length (fewer where SECONDS are over before).
    """

    run: Callable[..., None]
    inputs: st.SearchStrategy[tuple]
    covers: tuple[Any, ...]
    few: int
    many: int


def case(cases: dict[str, Case], *inputs: st.SearchStrategy, covers=(), few: int, many: int):
    """Registers a function of these inputs as a case under its own name."""

    def register(run):
        assert run.__name__ not in cases
        cases[run.__name__] = Case(run, st.tuples(*inputs), tuple(covers), few, many)
        return run

    return register


def try_few(tried: Case, record_property) -> None:
    """Tries the same few inputs each time."""
    _try(tried, tried.few, math.inf, record_property, repeatable=True)


def try_many(tried: Case, record_property) -> None:
    """Tries other inputs each time, until they are many or the time is over."""
    _try(tried, tried.many, SECONDS, record_property, repeatable=False)


def _try(tried: Case, count: int, seconds: float, record_property, *, repeatable: bool) -> None:
    """Draws and tries inputs; the tally is told at the end of the tests, see conftest.py."""
    tally, started, armed = Tally(), time.monotonic(), -LAST_LIMIT

    # A failing case is readable as it is; making it smaller takes minutes of compilation.
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=repeatable,
    )
    @given(tried.inputs)
    def attempt(drawn):
        nonlocal armed
        if time.monotonic() - started > seconds:
            raise _TimeIsOver
        if time.monotonic() - armed > LIMIT:  # not for each input: it starts a thread
            faulthandler.dump_traceback_later(LAST_LIMIT, exit=True)
            armed = time.monotonic()
        with time_limit():
            try:
                tried.run(*drawn)
            except Refused:
                tally.refused += 1
            else:
                tally.answered += 1

    try:
        with contextlib.suppress(_TimeIsOver):
            attempt()
    finally:
        faulthandler.cancel_dump_traceback_later()
        record_property("inputs", str(tally))
