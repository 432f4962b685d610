"""Flower's local noise by its true worth, a client's message, flwr's accountant's arithmetic: all without flwr."""

import dataclasses
import enum
import json
import math

import mpmath
import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax.flower import Accountant, client, local_dp_worth
from checkin_jax.training.private.mechanism import mechanism_of


def exact_delta(mu, epsilon):
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("clip", "sensitivity", "epsilon", "delta"),
    [(1.0, 1.0, 1.0, 1e-5), (1.0, 2.0, 0.9, 1e-5), (1.0, 2.0, 10.0, 1e-5), (2.0, 0.1, 3.0, 1e-3)],
)
def test_the_worth_of_a_message_is_the_gaussian_mechanisms(clip, sensitivity, epsilon, delta):
    worth = local_dp_worth(clipping_norm=clip, sensitivity=sensitivity, epsilon=epsilon, delta=delta)
    std = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert worth.noise_multiplier == pytest.approx(std / clip)
    for found, shift in ((worth.epsilon_replaced, 2 * clip), (worth.epsilon_zero, clip)):
        assert exact_delta(shift / std, found) <= delta
        assert exact_delta(shift / std, found * (1 - 1e-2)) > delta
    assert exact_delta(2 * clip / std, epsilon) <= worth.delta_replaced * (1 + 1e-12)
    assert worth.delta_replaced == pytest.approx(float(exact_delta(2 * clip / std, epsilon)), rel=1e-6)


def test_settings_that_hold_and_that_do_not():
    # Two clip norms of sensitivity and a small epsilon: the classical formula's own ground.
    assert local_dp_worth(clipping_norm=1.0, sensitivity=2.0, epsilon=0.9, delta=1e-5).holds
    # Sensitivity at the clip misses that replacement moves twice as far.
    assert not local_dp_worth(clipping_norm=1.0, sensitivity=1.0, epsilon=0.9, delta=1e-5).holds
    # The classical formula alone fails where epsilon is large.
    assert not local_dp_worth(clipping_norm=1.0, sensitivity=2.0, epsilon=10.0, delta=1e-5).holds


def test_a_log_of_hospitals_is_worth_nothing():
    """Clipped to norm 1 and noise of 4.8e-5, as logs in public say."""
    worth = local_dp_worth(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    assert worth.noise_std == pytest.approx(4.845e-5, rel=1e-3)
    assert 8e8 < worth.epsilon_replaced < 9e8
    assert 2.1e8 < worth.epsilon_zero < 2.2e8
    assert worth.delta_replaced == 1.0
    assert worth.honest is not None
    assert "does NOT hold" in str(worth)
    none = local_dp_worth(clipping_norm=1.0, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    assert none.epsilon_replaced == math.inf
    assert none.as_dict()["epsilon_replaced"] is None


def check(*more: str, **options: str) -> None:
    """Runs the command with these options."""
    words = (word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value))
    cli.main(["flower-check", *words, *more])


def test_the_command_says_it(capsys, monkeypatch):
    check(clipping_norm="1", sensitivity="1", epsilon="1", delta="1e-5")
    printed = capsys.readouterr().out
    assert "(1.0, 1e-05)-local differential privacy of a message does NOT hold" in printed
    assert "clip norms of noise a message" in printed
    with monkeypatch.context() as patched:
        patched.setattr("checkin_jax.cli.terminal.terminal_width", lambda _: 60)
        check(clipping_norm="1", sensitivity="1", epsilon="1", delta="1e-5")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60
    check("--json", clipping_norm="1", sensitivity="2", epsilon="0.9", delta="1e-5")
    assert json.loads(capsys.readouterr().out)["holds"] is True
    with pytest.raises(SystemExit):
        check(clipping_norm="0", sensitivity="2", epsilon="0.9", delta="1e-5")
    assert "--clipping-norm 0: expected" in capsys.readouterr().err


def test_a_message_is_the_clipped_update_and_its_noise():
    mechanism = mechanism_of(cj.Gaussian(noise_multiplier=2.0), clip_norm=0.5)
    update = [np.full((30, 40), 7.0), np.zeros(5, np.float32)]
    messages = [client.privatised(mechanism, update) for _ in range(2)]
    for first, second in messages:
        assert first.shape == (30, 40)
        assert second.shape == (5,)
        assert first.dtype == np.float32
        # The update is 7 in 1,200 coordinates, 0.5 in all: noise of 1.0 is what remains.
        assert np.std(first) == pytest.approx(1.0, rel=0.12)
        assert np.mean(first) == pytest.approx(0.5 / math.sqrt(1200), abs=6 / math.sqrt(1200))
    assert not np.array_equal(messages[0][0], messages[1][0])
    assert np.all(np.isfinite(client.privatised(mechanism, [np.array([math.nan, 1e300])])[0]))


def test_the_coin_has_its_probability():
    assert sum(client.checks_in(0.3) for _ in range(20_000)) == pytest.approx(6_000, abs=6 * math.sqrt(4_200))
    assert all(client.checks_in(1.0) for _ in range(100))


class Sampling(enum.StrEnum):
    NONE, WITHOUT = "no-amplification", "without-replacement"


class Relation(enum.StrEnum):
    ADDED, REPLACED = "add-or-remove-one", "replace-one"


@dataclasses.dataclass(frozen=True)
class Config:
    """The fields of flwr's PrivacyConfig; the real one is tested in tests/extras."""

    sampling_method: Sampling = Sampling.NONE
    neighboring_relation: Relation = Relation.ADDED
    target_delta: float = 1e-5
    population_size: int = 100
    max_epsilon: float | None = 2.0


@dataclasses.dataclass(frozen=True)
class Event:
    noise_multiplier: float = 4.0
    population_size: int = 100


def test_releases_add_up_as_gaussian_mechanisms_do():
    accountant = Accountant(Config())
    accountant.compose(Event(), 9)
    epsilon = accountant.get_epsilon(1e-5)
    assert exact_delta(0.75, epsilon) <= 1e-5
    assert exact_delta(0.75, accountant.get_lower_epsilon(1e-5) * (1 - 1e-6)) >= 1e-5
    assert epsilon <= 1.01 * accountant.get_lower_epsilon(1e-5)
    assert accountant.get_delta(epsilon * 1.001) <= 1e-5


def test_a_budget_is_looked_at_before_it_is_spent():
    accountant = Accountant(Config())
    rounds = 0
    while not accountant.would_exceed(Event()):
        accountant.compose(Event())
        rounds += 1
    assert accountant.num_releases == rounds
    assert accountant.get_epsilon(1e-5) <= 2.0
    accountant.compose(Event())
    assert accountant.get_epsilon(1e-5) > 2.0
    with pytest.raises(ValueError, match="max_epsilon=None"):
        Accountant(Config(max_epsilon=None)).would_exceed(Event())


def test_state_survives_and_what_does_not_fit_is_refused():
    accountant = Accountant(Config())
    accountant.compose(Event(), 3)
    state = json.loads(json.dumps(accountant.state_dict()))
    again = Accountant(Config())
    again.load_state_dict(state)
    assert again.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)
    assert again.num_releases == 3
    # An average without noise is a release, too.
    accountant.compose(Event(noise_multiplier=0.0))
    bare = Accountant(Config())
    bare.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert (bare.get_epsilon(1e-5), bare.num_releases) == (math.inf, 4)
    for wrong in (
        {"schema": 2},
        {"config": {}},
        {"releases": [{"noise_multiplier": -1.0, "count": 1}]},
    ):
        with pytest.raises((ValueError, TypeError)):
            again.load_state_dict(state | wrong)
    assert again.num_releases == 3
    with pytest.raises(ValueError, match="population_size=7"):
        again.compose(Event(population_size=7))
    with pytest.raises(ValueError, match="without-replacement"):
        Accountant(Config(Sampling.WITHOUT, Relation.REPLACED))
