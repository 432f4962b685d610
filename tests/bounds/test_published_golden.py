"""Every published formula against its values in 40-digit arithmetic, to the tolerance that comes with them."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from checkin_jax.accounting import published
from checkin_jax.accounting.published import formula, shuffled
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld, series
from checkin_jax.kernels.execution.devices import float64
from tests.oracles import pairs

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "published.json").read_text())["golden"]
TOLERANCE = 1e-10


def moment(bound, order):
    return np.exp(bound.value[..., 0] * (order - 1))


def rate_setting(case):
    return case["n"], case["gamma"], case["eps0"], [case["lam"]]


def approximate_ldp(case):
    pure = published.fixed_window(case["m"], 8 * case["eps0"], case["delta"], check_in_prob=case["p0"])
    return published.approximate_ldp(pure, case["m"], case["eps0"], case["delta"], 0.0, case["delta1"])


def corollary(name):
    def evaluate(case):
        args = (case["n"], case["m"], case["eps0"], case["beta"], case["delta"])
        return getattr(published.corollary_3_3(*args), name).value

    return evaluate


def lemma_2(case):
    with jax.enable_x64(True):
        order, rdp = case["lam"], case["rdp"]
        moments = np.array([rdp * (order - 1)])
        value = pld.epsilon_from_log_moments(
            host(np.array([order])), host(moments), host(np.log(case["delta"]))
        )
        return float(value[0])


def binary_rr(case):
    pair = pairs.enumerate_pair(pairs.binary_rr_labels(np.exp(case["eps0"]), case["gamma"]), int(case["n"]))
    return 1.0 + pairs.renyi_excess(pair, [case["lam"]])[0]


def repaired(case):
    """Three ranges of k with the ends of the case, instead of the best of several."""
    with float64():
        n, gamma, *rest = (np.array([case[name]]) for name in ("n", "gamma", "eps0", "k1", "k2"))
        size, _ = formula.window(case["n"], case["gamma"])
        evaluate = functools.partial(shuffled._repaired, size=size)
        table = series.table(np.array([case["lam"]]))
        (value,) = formula.in_batches(evaluate, [n, gamma, *rest], table)
    return np.exp(value[0, 0] * (case["lam"] - 1))


# Group of golden values, what evaluates it, and the name of the output where there are several.
CHECKS = [
    ("thm2_rdp", lambda c: published.theorem_2(*rate_setting(c), spread=c["Delta"]).value[0], None),
    ("thm3_rdp", lambda c: published.theorem_3(*rate_setting(c), spread=c["Delta"]).value[0], None),
    ("thm3_clean_rdp", lambda c: published.theorem_3_sharper(*rate_setting(c)).value[0], None),
    (
        "lemma4_moment",
        lambda c: moment(published.lemma_4(c["k"], c["n"], c["eps0"], [c["lam"]]), c["lam"]),
        None,
    ),
    ("thm1_sum_moment", lambda c: moment(published.theorem_1(*rate_setting(c)), c["lam"]), None),
    (
        "thm1_sum_moment_fixed_gamma",
        lambda c: moment(published.theorem_1_fixed_weight(*rate_setting(c)), c["lam"]),
        None,
    ),
    ("rr2_exact_moment_pq", binary_rr, None),
    (
        "subsampling_only_moment",
        lambda c: moment(published.subsampling_only(*rate_setting(c)), c["lam"]),
        None,
    ),
    ("rdp_to_eps_at", lemma_2, None),
    (
        "lemma3_printed",
        lambda c: np.exp(
            (published.lemma_3(c["eps"], c["delta"], [c["lam"]]).value[0] - c["eps"]) * (c["lam"] - 1)
        ),
        None,
    ),
    ("asoodeh_min_rdp", lambda c: published.lemma_3(c["eps"], c["delta"], [c["lam"]]).value[0], None),
    ("pure_dp_rdp", lambda c: published.pure_rdp(c["eps"], [c["lam"]]).value[0], None),
    (
        "fmt_shuffle",
        lambda c: published.shuffle_epsilon(c["k"], c["eps0"], c["delta"], delta0=c["delta0"]).value,
        "eps",
    ),
    (
        "fmt_shuffle",
        lambda c: published.shuffle_epsilon(c["k"], c["eps0"], c["delta"], delta0=c["delta0"]).delta,
        "delta_total",
    ),
    (
        "thm32_eps",
        lambda c: published.fixed_window(c["m"], c["eps0"], c["delta"], check_in_prob=c["p0"]).value,
        None,
    ),
    ("thm32_approx", lambda c: approximate_ldp(c).value, "eps"),
    ("thm32_approx", lambda c: approximate_ldp(c).delta, "delta_total"),
    ("delta0_max", lambda c: published.delta0_limit(c["eps0"], c["delta1"]), "ceil_T"),
    ("thm43_eps", lambda c: published.sliding_window(c["m"], c["eps0"], c["delta"]).value, None),
    (
        "thm41_eps",
        lambda c: published.averaged_updates(c["n"], c["m"], c["eps0"], c["delta"], c["delta2"]).value,
        "eps",
    ),
    ("thmA5_eps", lambda c: published.weighted_shuffle(c["x"], c["eps0"], c["delta"]).value, None),
    ("thm51_eps", lambda c: published.shuffle(c["n"], c["eps0"], c["delta"]).value, None),
    ("efmrtt7_eps", lambda c: published.shuffle_2019(c["n"], c["eps0"], c["delta"]).value, None),
    ("cor33", corollary("first"), "eps1"),
    ("cor33", corollary("exact"), "ineq7"),
    ("cor33", corollary("relaxed"), "ineq7_relaxed"),
    ("cor33", corollary("closed"), "closed"),
    ("prop34_dummy", lambda c: published.fixed_window_dummies(c["n"], c["m"], c["p0"]).value, None),
    ("prop44_dummy", lambda c: published.sliding_window_dummies(c["n"], c["m"]).value, None),
    (
        "thm32_unrelaxed",
        lambda c: (
            published.fixed_window_unrelaxed(c["m"], c["eps0"], c["delta"], check_in_prob=c["p0"]).value
        ),
        None,
    ),
    ("thm51_unrelaxed", lambda c: published.shuffle_unrelaxed(c["n"], c["eps0"], c["delta"]).value, None),
    ("thm2_corrected_moment", repaired, None),
]


@pytest.mark.parametrize(
    ("group", "evaluate", "output"), CHECKS, ids=lambda v: v if isinstance(v, str) else ""
)
@pytest.mark.thorough(but=14)
def test_agrees_with_the_golden_values(group, evaluate, output):
    for case in GOLDEN[group]["cases"]:
        expected = float(case["out"] if output is None else case["out"][output])
        got = float(evaluate({name: float(value) for name, value in case["in"].items()}))
        assert got == pytest.approx(expected, rel=TOLERANCE, abs=0), case


def test_every_group_of_golden_values_is_used():
    assert {group for group, _, _ in CHECKS} == set(GOLDEN)
    assert all(group["tolerance"] == f"rel {TOLERANCE:g}" for group in GOLDEN.values())
