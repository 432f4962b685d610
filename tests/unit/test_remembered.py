"""Answers that commands keep for each other: those of the accountant, and only where nothing has changed."""

import dataclasses

import jax
import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting import remembered
from checkin_jax.accounting.composition import composer

RUN = cj.FixedWindow(num_clients=300, num_slots=40)
PURE = cj.PureLDP(epsilon0=1.0)
HOW = {"delta": 1e-6, "view": "messages"}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder where answers are kept, of this test alone."""
    monkeypatch.setenv("CHECKIN_JAX_CACHE", str(tmp_path))
    monkeypatch.setitem(jax.config.values, "jax_enable_compilation_cache", True)
    return tmp_path


def test_a_kept_answer_is_the_accountants_to_the_bit(kept, monkeypatch):
    ask = remembered.account
    runs = [(RUN, PURE, HOW), (RUN, PURE, {**HOW, "before": ((RUN, PURE),)})]
    first = [ask(protocol, randomizer, **how) for protocol, randomizer, how in runs]
    with monkeypatch.context() as nothing_is_composed:
        nothing_is_composed.setattr(composer, "bracket", None)
        again = [ask(protocol, randomizer, **how) for protocol, randomizer, how in runs]
    for one, other in zip(first, again):
        assert dataclasses.asdict(one) | {"asked": None} == dataclasses.asdict(other) | {"asked": None}
        assert str(one) == str(other)
    assert again[0].attack.advantage == first[0].attack.advantage


def test_nothing_else_is_answered_by_what_was_kept(kept, monkeypatch):
    ask = remembered.account
    ask(RUN, PURE, **HOW)
    monkeypatch.setattr(composer, "bracket", None)
    others = [
        (RUN, PURE, {**HOW, "delta": 2e-6}),
        (RUN, PURE, {**HOW, "before": ((RUN, PURE),)}),
        (RUN, cj.PureLDP(epsilon0=1.0 + 1e-15), HOW),
        (dataclasses.replace(RUN, num_clients=301), PURE, HOW),
        (RUN, PURE, {**HOW, "bounds": "fast"}),
    ]
    for protocol, randomizer, how in others:
        with pytest.raises(TypeError):
            ask(protocol, randomizer, **how)
    ask(RUN, PURE, **HOW)
    # Another version of the package, or a file that was damaged.
    with monkeypatch.context() as changed:
        changed.setattr(remembered.ahead, "surroundings", lambda *_: "another version")
        with pytest.raises(TypeError):
            ask(RUN, PURE, **HOW)
    for path in (path for path in kept.rglob("*") if path.is_file()):
        path.write_bytes(path.read_bytes().replace(b'"lower": ', b'"lower": 9'))
    with pytest.raises(TypeError):
        ask(RUN, PURE, **HOW)


def test_a_value_that_was_searched_is_found_again_and_no_other(kept, monkeypatch):
    how = {"target_epsilon": 0.5, **HOW, "bounds": "fast"}
    searches = [(cj.Gaussian, None), (PURE, "epsilon0")]
    first = [remembered.calibrate(RUN, start, free=free, **how) for start, free in searches]
    genuine = [cj.calibrate(RUN, start, free=free, **how) for start, free in searches]
    assert first == [(each.name, each.value) for each in genuine]
    monkeypatch.setattr(remembered, "genuine_search", None)
    assert [remembered.calibrate(RUN, start, free=free, **how) for start, free in searches] == first
    others = [
        (RUN, cj.Gaussian, {**how, "target_epsilon": 0.6}),
        (RUN, cj.Gaussian, {**how, "view": "aggregate"}),
        (dataclasses.replace(RUN, num_clients=301), cj.Gaussian, how),
        (RUN, Loud, how),
    ]
    for protocol, start, asked in others:
        with pytest.raises(TypeError):
            remembered.calibrate(protocol, start, free=None, **asked)


@dataclasses.dataclass(frozen=True)
class Loud(cj.PureLDP):
    """A class from elsewhere, whose source is in no name."""


def test_what_is_said_of_a_foreign_class_is_asked_anew(kept, monkeypatch):
    ask = remembered.account
    runs = [(RUN, Loud(epsilon0=1.0), HOW), (RUN, PURE, {**HOW, "before": ((RUN, Loud(epsilon0=1.0)),)})]
    runs.append((RUN, cj.KnownProfile(function=lambda loss: np.maximum(1.0 - 0.2 * np.exp(loss), 0.0)), HOW))
    for protocol, randomizer, how in runs:
        ask(protocol, randomizer, **how)
    assert not [path for path in kept.rglob("*") if path.is_file() and b'"epsilon": ' in path.read_bytes()]
