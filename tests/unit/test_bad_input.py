"""Arguments that are wrong: one line, which names the argument and says what was expected."""

import dataclasses
import math
import re

import jax
import pytest

import checkin_jax as cj
from checkin_jax.accounting import published
from checkin_jax.flower import ClientMod, local_dp_worth

THEOREMS = (
    published.theorem_1,
    published.theorem_1_smaller,
    published.theorem_1_fixed_weight,
    published.theorem_2,
    published.theorem_2_repaired,
    published.theorem_3,
    published.theorem_3_sharper,
    published.subsampling_only,
)
RUN, PURE = cj.ShuffledCheckIn(num_clients=100, check_in_prob=0.3), cj.PureLDP(epsilon0=1.0)
PUBLISHED = {"num_clients": 10, "rate": 0.5, "epsilon0": 1.0, "orders": [2]}
SLOTS = {"num_slots": 5, "epsilon0": 1.0, "delta": 0.1}
ALLOCATION = {
    "noise_multiplier": 1.0,
    "num_steps": 10,
    "delta": 1e-6,
    "neighboring_relation": "add-or-remove-one",
}


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A function, arguments that are right, and what is wrong in the place of one of them or beside them."""

    function: object
    right: dict
    wrong: tuple[dict, ...]


def of(function, *wrong, **right):
    return Wrong(function, right, wrong)


CALLS = [
    of(cj.PureLDP, {"epsilon0": 51}, {"total_variation": 0.0}, {"total_variation": 1.1}, epsilon0=1.0),
    of(cj.OneBit, {"epsilon0": 0.0}, {"differ": 0.0}, epsilon0=1.0),
    of(cj.Gaussian, {"noise_multiplier": math.inf}),
    of(cj.KnownProfile, {"function": 3}),
    of(cj.Gaussian.from_local, {"delta0": 0.0}, epsilon0=1.0),
    of(cj.Shuffle, {"num_clients": 0}, {"num_colluding": 5}, {"num_colluding": -1}, num_clients=5),
    of(cj.ShuffledCheckIn, {"check_in_prob": "0.5"}, {"check_in_prob": True}, num_clients=10),
    of(
        cj.FixedWindow,
        *({"num_slots": 0}, {"num_epochs": 0}, {"empty_slots": "skip"}, {"minibatch": 10}, {"minibatch": 0}),
        num_clients=100,
        num_slots=9,
    ),
    of(cj.SlidingWindow, {"window": 101}, {"minibatch": 3}, num_clients=100, window=99),
    of(cj.AveragedUpdates, {"check_in_prob": 2}, num_clients=5, num_slots=2),
    of(
        cj.RateLimits.between,
        *({"smallest": 0.3}, {"smallest": 0.0}, {"largest": 1.0}, {"num_clients": 1}),
        smallest=0.1,
        largest=0.2,
        num_clients=9,
    ),
    of(
        cj.RateLimits,
        *({"largest": 1.0}, {"largest": math.nan}, {"expected_check_ins": 0.0}),
        largest=0.3,
        expected_check_ins=5.0,
    ),
    of(cj.Rates, {"values": "fast"}),
    of(
        cj.DeviceBudget,
        *({"target_epsilon": 0.0}, {"target_epsilon": math.nan}, {"target_delta": 1.0}),
        target_epsilon=1.0,
        target_delta=1e-6,
    ),
    of(
        cj.training.PrivateRun,
        *({"target_epsilon": 0.0}, {"target_epsilon": math.nan}, {"target_epsilon": "1"}),
        *({"target_view": "all"}, {"before": 3}, {"before": [RUN]}, {"clip_norm": 1e-7}),
        protocol=RUN,
        randomizer=PURE,
    ),
    of(cj.training.Performance, {"gradients": "fast"}, {"microbatch": 0}, {"microbatch": 60}),
    of(cj.rdp, {"orders": [1.0]}, protocol=RUN, randomizer=PURE),
    of(cj.rdp, {"randomizer": cj.ApproximateLDP(epsilon0=1, delta0=1e-9)}, protocol=RUN, orders=[2.0]),
    of(
        cj.to_pld,
        *({"value_discretization_interval": 0.0}, {"value_discretization_interval": 1e-12}),
        *({"tail_mass": 1.0}, {"view": "all"}),
        protocol=RUN,
        randomizer=PURE,
        bounds="fast",
    ),
    of(
        cj.random_allocation,
        *({"neighboring_relation": "both"}, {"num_selected": 11}, {"noise_multiplier": 0.0}),
        *({"delta": 2.0}, {"num_epochs": 0}, {"unfinished_steps": 10}, {"sampling_prob": 0.0}),
        {"num_selected": 5, "num_epochs": 10**9},
        **ALLOCATION,
    ),
    of(
        local_dp_worth,
        *({"delta": 0.0}, {"epsilon": 0.0}, {"sensitivity": -1.0}, {"clipping_norm": math.nan}),
        **{"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5},
    ),
    of(
        ClientMod,
        *({"check_in_prob": 0.0}, {"check_in_prob": 1.5}, {"clip_norm": 0.0}, {"num_rounds": 0}),
        **{"randomizer": cj.Gaussian(noise_multiplier=1.0), "clip_norm": 1.0},
        **{"check_in_prob": 0.5, "num_rounds": 3},
    ),
    *(
        of(
            theorem,
            *({"num_clients": 0}, {"num_clients": 2.5}, {"rate": 0.0}, {"rate": [0.5, math.nan]}),
            *({"rate": "a"}, {"epsilon0": 51.0}, {"orders": [1, 2]}, {"orders": [2.5]}, {"orders": []}),
            {"num_clients": [1, 2], "rate": [0.1, 0.2, 0.3]},
            **PUBLISHED,
        )
        for theorem in THEOREMS
    ),
    of(published.theorem_3, {"spread": 0.0}, **PUBLISHED),
    of(published.lemma_4, {"num_messages": 11}, num_clients=10, epsilon0=1.0, orders=[2]),
    of(published.lemma_3, {"delta": 1.0}, {"epsilon": -1.0}, epsilon=1.0, delta=0.1, orders=[2]),
    of(published.strong, {"num_rounds": 0}, epsilon=1.0, slack=0.1),
    of(published.approach_1, {"shuffle_delta": 0.0}, **PUBLISHED),
    of(published.baseline, {"tail_delta": 1.0}, **PUBLISHED),
    of(
        published.fixed_window,
        *({"num_slots": 0}, {"delta": 1.0}, {"epsilon0": math.nan}, {"check_in_prob": 0}),
        **SLOTS,
    ),
    of(published.averaged_updates, {"delta2": 0.0}, num_clients=5, **SLOTS),
    of(published.weighted_shuffle, {"norm": 1.5}, epsilon0=1.0, delta=0.1),
    of(published.corollary_3_3, {"num_slots": 6}, num_clients=5, epsilon0=1.0, beta=0.1, delta=0.1),
    of(published.sliding_window_dummies, {"num_slots": 6}, num_clients=5),
    of(
        published.variation_ratio,
        *({"num_clients": 0}, {"total_variation": 0.9}, {"delta": 0.0}, {"num_clients": 10**9}),
        **{"num_clients": 10, "epsilon0": 1.0, "delta": 1e-6},
    ),
    of(
        published.privacy_blanket,
        {"inequality": "Chernoff"},
        **{"num_clients": 10, "epsilon0": 1.0, "delta": 1e-6},
    ),
]


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [(each.function, each.right, wrong) for each in CALLS for wrong in each.wrong],
)
def test_what_is_wrong_is_named(function, right, wrong):
    with pytest.raises((ValueError, TypeError)) as refused:
        function(**right | wrong)
    text, name = str(refused.value), next(iter(wrong))
    assert name in text.partition(":")[0] or f": {name} " in text
    assert re.search(r"\bexpected|do not broadcast", text)
    assert "\n" not in text
    # A double-precision kernel leaves the caller's setting alone.
    assert not jax.config.read("jax_enable_x64")
