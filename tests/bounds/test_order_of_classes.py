"""A class of messages is never above a class that contains it: every protocol, both relations, random settings."""

import functools
import math
import time

import numpy as np
import pytest

import checkin_jax as cj

# Staged domination chooses laws and stages for each step set, and bounds that are not expected to be smallest are not
# evaluated: ends of two classes differ by less than this (by 1.6% in one setting of 764 slots).
NEAR = 0.025
# Staged domination may lose so much more on a part than on the whole: 6.8% at seed 1795914416.
OF_A_PART = 0.1


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


def random_matrix(rng, epsilon0):
    """Rows whose likelihood ratios are about e^epsilon0 at most; many columns are extreme."""
    records, messages = rng.integers(2, 5, size=2)
    extreme = epsilon0 * rng.integers(0, 2, (records, messages))
    logs = np.where(rng.random(messages) < 0.7, extreme, rng.uniform(0.0, epsilon0, (records, messages)))
    table = np.exp(logs) * rng.dirichlet(np.ones(messages)) + 1e-6
    table[0, 0] *= 1.1  # some record's messages must differ
    return table / table.sum(axis=1, keepdims=True)


def parts_of(matrix, rng):
    """Mechanisms that a finite one contains: fewer records, mixtures of records, messages told as one."""
    found = {"mixtures": rng.dirichlet(np.ones(len(matrix)), len(matrix)) @ matrix}
    if len(matrix) > 2:
        found["fewer records"] = matrix[1:]
    if matrix.shape[1] > 2:
        found["messages told as one"] = np.column_stack([matrix[:, :-2], matrix[:, -2:].sum(axis=1)])
    return {
        name: cj.FiniteMechanism(probabilities=each / each.sum(axis=1, keepdims=True))
        for name, each in found.items()
        if np.abs(each - each[0]).max() > 1e-3
    }


def classes_of(mechanism):
    """Classes that contain a mechanism."""
    epsilon0, distance = mechanism.epsilon0, mechanism.total_variation
    return {
        "any": cj.PureLDP(epsilon0=epsilon0),
        "any of its total variation": cj.PureLDP(epsilon0=epsilon0, total_variation=distance),
        "any of its profile": cj.KnownProfile(function=mechanism.profile, largest_loss=epsilon0),
    }


# The last one draws settings that nobody has seen.
SEEDS = [4, int(time.time()), *(pytest.param(i, marks=pytest.mark.slow) for i in range(5, 25))]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: "clock" if seed > 1000 else str(seed))
def test_a_finite_mechanism_is_between_its_parts_and_its_classes(seed):
    rng = np.random.default_rng(seed)
    epsilon0 = float(np.exp(rng.uniform(np.log(0.2), np.log(5.5))))
    matrix = random_matrix(rng, epsilon0)
    whole = cj.FiniteMechanism(probabilities=matrix)
    runs = protocols(rng)
    for run, relation in (runs[i] for i in rng.choice(len(runs), 2, replace=False)):
        upper = _upper(run, relation, whole)
        told = (run, relation, matrix.tolist(), seed)
        for name, each in classes_of(whole).items():
            assert upper <= _upper(run, relation, each) * (1.0 + NEAR), (name, *told)
        for name, each in parts_of(matrix, rng).items():
            assert _upper(run, relation, each) <= upper * (1.0 + OF_A_PART), (name, *told)


@pytest.mark.parametrize("epsilon0", [4.5, 5.5])
def test_two_records_of_large_epsilon0_among_few_messages(epsilon0):
    """Most steps have the law above all others, so that the sum is wider than sums of the mechanism's own steps."""
    p = math.exp(epsilon0)
    one = cj.FiniteMechanism(probabilities=np.array([[p, 1.0], [1.0, p]]) / (1.0 + p))
    run = cj.FixedWindow(num_clients=344, num_slots=344, check_in_prob=0.1, num_epochs=1000)
    every = cj.PureLDP(epsilon0=one.epsilon0)
    assert _upper(run, "replace-one", one) <= _upper(run, "replace-one", every)


def test_rivals_are_counted_at_large_epsilon0():
    """Messages too few for the mechanism's own laws to show e^epsilon0 of them."""
    one, run = cj.Laplace(epsilon0=4.0), cj.SlidingWindow(num_clients=3120, window=520)
    known = cj.KnownProfile(function=one.profile, largest_loss=one.largest_loss)
    assert _upper(run, "replace-one", one) <= _upper(run, "replace-one", known) * (1.0 + NEAR)
