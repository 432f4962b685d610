"""Anything may be passed to the public functions and the command: a correct result, or one clear refusal.

A refusal is a ValueError or TypeError that names the argument (or exit code 2 and one line). Never a NaN, an upper end
below the lower one, another exception, or a call that does not end.
"""

import contextlib
import dataclasses
import io
import json
import math
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import checkin_jax as cj
from checkin_jax import protocols
from checkin_jax.cli import main

# Seconds a call may take on a busy machine that compiles for the first time.
LIMIT = 240.0

# A failing case is readable as it is; making it smaller takes minutes of compilation.
FEW = settings(max_examples=12, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=1_500, derandomize=False)


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
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(),
    st.text(max_size=4),
)
# What each argument should be, whichever function it belongs to.
PROPER = {
    "num_clients": whole(1e12),
    "num_slots": whole(1e12),
    "window": whole(1e6),
    "num_rounds": whole(1e9),
    "num_epochs": whole(1e4),
    "check_in_prob": spread(1e-12, 1.0),
    "drop_out_prob": st.sampled_from([0.0, 0.1, 0.999999]),
    "empty_slots": st.sampled_from(["dummy", "visible"]),
    "epsilon0": st.one_of(spread(1e-8, 50.0), st.just(0.0)),
    "noise_multiplier": spread(1e-6, 1e8),
    "delta": spread(1e-300, 1.0),
    "view": st.sampled_from(["local", "messages", "aggregate"]),
    "neighboring_relation": st.sampled_from(["replace-one", "add-or-remove-one"]),
    "target_epsilon": spread(1e-9, 100.0),
}


def arguments(names, odds: int) -> st.SearchStrategy[dict[str, object]]:
    """Proper arguments, but for `odds` of them at most."""

    def spoil(values):
        return st.lists(st.sampled_from(sorted(values)), max_size=odds, unique=True).flatmap(
            lambda spoiled: st.fixed_dictionaries(dict.fromkeys(spoiled, odd)).map(lambda new: values | new)
        )

    return st.fixed_dictionaries({name: PROPER[name] for name in names}).flatmap(spoil)


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


def call(function, *positional, **named):
    """The function's result; Refused where it refuses clearly, and fails where it does anything else."""
    started = time.perf_counter()
    try:
        result = function(*positional, **named)
    except (ValueError, TypeError) as error:
        text = str(error)
        assert text
        assert len(text) < 2_000
        assert any(name in text for name in [*PROPER, "protocol", "randomizer", "target"]), text
        raise Refused from error
    assert time.perf_counter() - started < LIMIT
    return result


def check_guarantee(g):
    assert 0.0 <= g.lower <= g.epsilon
    assert not math.isnan(g.epsilon)
    assert not math.isnan(g.numerical_error)
    assert g.validity == "certified"
    json.dumps(g.as_dict(), allow_nan=False)
    assert "nan" not in str(g)


def constructing(kind, values):
    with contextlib.suppress(Refused):
        built = call(kind, **values)
        assert not any(isinstance(value, float) and math.isnan(value) for value in dataclasses.astuple(built))
        assert kind(**dataclasses.asdict(built)) == built


def accounting(protocol, randomizer, values):
    with contextlib.suppress(Refused):
        check_guarantee(call(cj.account, protocol, randomizer, **values))


def composing(protocol, randomizer, values):
    with contextlib.suppress(Refused):
        event = call(cj.to_event, protocol, randomizer, **{k: v for k, v in values.items() if k == "view"})
        accountant = call(cj.CheckInAccountant().compose, event)
        found = call(accountant.get_epsilon, values["delta"])
        assert found >= call(accountant.get_lower_epsilon, values["delta"]) >= 0.0
        again = cj.CheckInAccountant()
        again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
        assert again.get_epsilon(values["delta"]) == found


def calibrating(protocol, randomizer, values):
    with contextlib.suppress(Refused):
        found = call(cj.calibrate, protocol, type(randomizer), **values)
        check_guarantee(found.guarantee)
        assert found.guarantee.epsilon <= values["target_epsilon"]


def commanding(words):
    out, err, code = io.StringIO(), io.StringIO(), 0
    started = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code or 0
    assert time.perf_counter() - started < LIMIT
    assert code in (0, 2), (words, code, err.getvalue())
    if code == 2:
        assert err.getvalue().count("\n") == 1
        assert err.getvalue().startswith("checkin: ")
        assert not out.getvalue()
    elif "--json" in words:
        json.loads(out.getvalue(), parse_constant=lambda name: pytest.fail(name))
    assert "nan" not in out.getvalue().split()


account_arguments = arguments(["delta", "view", "neighboring_relation"], 1)
calibrate_arguments = arguments(["target_epsilon", "delta", "view"], 1)
word = st.one_of(
    odd.map(str).filter(
        lambda text: "\x00" not in text and "\n" not in text and text not in ("-h", "--help")
    ),
    spread(1e-9, 1e9).map(str),
    whole(1e9).map(str),
)
options = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(PROPER[name].map(str), word)
        for name in PROPER
        if name not in ("target_epsilon", "neighboring_relation")
    },
)
kind_of_protocol = st.sampled_from(
    ["shuffled-check-in", "shuffle", "fixed-window", "sliding-window", "averaged-updates", "gossip"]
)


def command_line(case) -> list[str]:
    command, protocol, chosen, flags = case
    words = [command, "--protocol", protocol]
    for name, value in chosen.items():
        words += [f"--{name.replace('_', '-')}", value]
    return words + flags


command_lines = st.tuples(
    st.sampled_from(["epsilon", "compare"]),
    kind_of_protocol,
    options,
    st.sampled_from([[], ["--json"], ["--no"]]),
).map(command_line)
constructions = st.sampled_from((*protocols.PROTOCOLS, cj.PureLDP, cj.Gaussian)).flatmap(
    lambda kind: st.tuples(st.just(kind), arguments(fields(kind), 2))
)

CASES = {
    "constructing": (constructing, constructions),
    "accounting": (accounting, st.tuples(any_protocol, any_randomizer, account_arguments)),
    "composing": (composing, st.tuples(any_protocol, any_randomizer, arguments(["delta", "view"], 1))),
    "calibrating": (calibrating, st.tuples(any_protocol, any_randomizer, calibrate_arguments)),
    "commanding": (commanding, st.tuples(command_lines)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_result_or_a_refusal(name):
    tried, strategy = CASES[name]
    settings(FEW)(given(strategy)(lambda case: tried(*case)))()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_result_or_a_refusal_many_times(name):
    tried, strategy = CASES[name]
    settings(MANY)(given(strategy)(lambda case: tried(*case)))()
