"""A class of messages is never above a class that contains it: every protocol, both relations, random settings."""

import functools
import math

import numpy as np
import pytest

import checkin_jax as cj

# Staged domination chooses laws and stages for each step set: ends of two of them differ by less than this.
NEAR = 2e-3


def containing(epsilon0, rng):
    """(class, class that contains it)."""
    k = int(rng.integers(3, 12))
    one = cj.OneBit(epsilon0=epsilon0)
    every = cj.PureLDP(epsilon0=epsilon0)
    return {
        "2-ary in one bit": (cj.KaryResponse(epsilon0=epsilon0, num_values=2), one),
        "l2 in one bit": (cj.L2Mechanism(epsilon0=epsilon0), one),
        "less different bits": (cj.OneBit(epsilon0=epsilon0, differ=0.5), one),
        "one bit in any": (one, every),
        "k-ary in any": (cj.KaryResponse(epsilon0=epsilon0, num_values=k), every),
        "RAPPOR in any": (cj.Rappor(epsilon0=epsilon0), every),
        "Hadamard in any": (cj.HadamardResponse(epsilon0=epsilon0), every),
        "Laplace in any": (cj.Laplace(epsilon0=epsilon0), every),
        "2-ary by its matrix in one bit": (
            cj.FiniteMechanism(
                probabilities=np.array([[math.exp(epsilon0), 1.0], [1.0, math.exp(epsilon0)]])
                / (1.0 + math.exp(epsilon0))
            ),
            cj.OneBit(epsilon0=epsilon0 * (1.0 + 1e-12)),
        ),
        "total variation": (
            cj.PureLDP(epsilon0=epsilon0, total_variation=0.3 * math.tanh(0.5 * epsilon0)),
            every,
        ),
    }


def protocols(rng):
    n, m = (
        int(np.exp(rng.uniform(np.log(200), np.log(20_000)))),
        int(np.exp(rng.uniform(np.log(100), np.log(2_000)))),
    )
    rate = float(rng.uniform(0.02, 0.9))
    return (
        (
            cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=int(rng.integers(1, 200))),
            "replace-one",
        ),
        (cj.FixedWindow(num_clients=n, num_slots=m, check_in_prob=rate), "replace-one"),
        (cj.FixedWindow(num_clients=m, num_slots=m, check_in_prob=rate), "add-or-remove-one"),
        (cj.SlidingWindow(num_clients=6 * m, window=m), "replace-one"),
        (cj.AveragedUpdates(num_clients=n, num_slots=5, check_in_prob=rate), "replace-one"),
    )


@pytest.mark.parametrize("seed", [1, *(pytest.param(i, marks=pytest.mark.slow) for i in range(2, 12))])
def test_a_class_is_never_above_one_that_contains_it(seed):
    rng = np.random.default_rng(seed)
    epsilon0 = float(np.exp(rng.uniform(np.log(0.2), np.log(4.0))))
    for run, relation in protocols(rng):
        upper = functools.cache(functools.partial(_upper, run, relation))
        for name, (one, above) in containing(epsilon0, rng).items():
            # Two ways to write one mechanism, of which one has B0.
            slack = 0.03 if "matrix" in name else NEAR
            assert upper(one) <= upper(above) * (1.0 + slack), (name, run, relation, epsilon0)


def _upper(run, relation, randomizer):
    return cj.account(run, randomizer, delta=1e-6, neighboring_relation=relation).epsilon
