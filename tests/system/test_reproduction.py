"""docs/reproduction.md: its counterexamples run, its functions exist, its figures are what the library computes."""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax._rounding import down, up
from checkin_jax.accounting import published

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reproduction.md").read_text()
ORDERS = np.unique(np.concatenate([np.arange(2, 257), np.geomspace(256, 4096, 60).round()]))


def test_the_counterexamples_run():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "docs/reproduction.md", "exec"), names)


def test_what_the_page_names_exists():
    verdicts = PAGE.split("## What stands")[1].split("## Printed claims")[0]
    functions = {
        name
        for row in verdicts.splitlines()
        if row.count("|") == 4
        for name in re.findall(r"`([a-z_0-9*]+)`", row.split("|")[2])
    }
    assert len(functions) > 20
    for name in functions:
        pattern = re.compile(name.replace("*", ".*") + "$")
        assert any(pattern.match(public) for public in dir(published)), name
    for program in re.findall(r"`((?:accountants|train)/\w+\.py)`", PAGE):
        assert (ROOT / program).exists()


def run_epsilon(bound, num_rounds, delta):
    upper = dataclasses.replace(bound, direction="upper")
    return float(published.epsilon(upper, ORDERS, num_rounds=num_rounds, delta=delta).value)


def row(start):
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| {start}")]
    return found


def said(text, *values):
    for value in values:
        assert f"{value:.4g}" in text, f"{value:.4g}: {text[:60]}"


def ends(guarantee, digits):
    return f"{down(guarantee.lower, digits)} to {up(guarantee.epsilon, digits)}"


@pytest.mark.slow
def test_ldp_sgd():
    setting, rounds = (60_000, 0.1, 2.0), 6_800
    line = row("SCI, MNIST with LDP-SGD")
    for delta in (1e-6, 60_000**-1.5):
        said(line, run_epsilon(published.theorem_1(*setting, ORDERS), rounds, delta))
        said(line, run_epsilon(published.theorem_2(*setting, ORDERS), rounds, delta))
        said(line, run_epsilon(published.theorem_3(*setting, ORDERS), rounds, delta))
        run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=rounds)
        for messages in (cj.L2Mechanism(epsilon0=2.0), cj.PureLDP(epsilon0=2.0)):
            assert ends(cj.account(run, messages, delta=delta), 5) in line
    clones = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6, bounds="clones")
    assert f"{up(clones.epsilon, 5)} by clones alone" in line
    strong = published.strong_composition(*setting, num_rounds=rounds, delta=1e-6)
    said(row("SCI, the same run by strong composition"), float(strong.value))


@pytest.mark.slow
def test_gaussian_messages():
    n, delta = 10**7, 1e-7
    setting, inner = (n, 1e-4, 8.0), {"delta0": n**-1.5}
    base = published.baseline(*setting, ORDERS, tail_delta=delta, **inner)
    line = row("SCI, Gaussian messages")
    said(line, run_epsilon(base, 2_000, delta))
    run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=1e-4, num_rounds=2_000)
    noise = cj.Gaussian.from_local(epsilon0=8.0, delta0=n**-1.5)
    for view in ("messages", "aggregate"):
        assert f"{ends(cj.account(run, noise, delta=delta, view=view), 3)} in view `{view}`" in line
    for bounds in ("profile", "subsampling"):
        alone = cj.account(run, noise, delta=delta, bounds=bounds).epsilon
        assert f"by `{bounds}` alone {up(alone, 3)}" in line
    line = row("SCI, the same with shuffling")
    for approach in (published.approach_1, published.approach_2):
        bound = approach(*setting, ORDERS, shuffle_delta=delta, **inner)
        said(line, run_epsilon(bound, 2_000, delta))
    assert bound.value[0] == pytest.approx(4e-15, rel=0.1)
    strong = published.strong_composition(*setting, num_rounds=2_000, delta=delta, **inner)
    said(line, float(strong.value))
    for order in (19, 20):
        zero = (math.log(1 / delta) + (order - 1) * math.log(1 - 1 / order) - math.log(order)) / (order - 1)
        said(line, zero)


@pytest.mark.slow
def test_three_times():
    line = row("SCI, RDP improves")
    factors = []
    for epsilon0 in (0.5, 2.0):
        setting = (60_000, 0.1, epsilon0)
        bound = published.theorem_1(*setting, ORDERS)
        for rounds in (1, 10, 100, 10_000):
            strong = published.strong_composition(*setting, num_rounds=rounds, delta=1e-6)
            by_rdp = run_epsilon(bound, rounds, 1e-6)
            said(line, float(strong.value) / by_rdp)
        run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=10_000)
        factors.append(
            by_rdp / cj.account(run, cj.PureLDP(epsilon0=epsilon0), delta=1e-6, bounds="fast").epsilon
        )
    assert f"a further factor of {min(factors):.1f} to {max(factors):.2g} below Theorem 1" in line


@pytest.mark.slow
def test_random_check_ins():
    line = row("RCI Figure 2")
    said(line, *(4 * math.exp(epsilon0) for epsilon0 in (0.1, 1.0, 2.0)))
    said(
        line,
        float(published.shuffle(1e4, 1.0, 1e-6).value),
        float(published.shuffle_2019(1e4, 1.0, 1e-6).value),
    )
    g = cj.account(cj.Shuffle(num_clients=10_000), cj.PureLDP(epsilon0=1.0), delta=1e-6)
    assert ends(g, 4) in line
    line, n, m = row("RCI Table 1"), 100_000, 10_000
    for bound in (
        published.fixed_window(m, 1.0, 1e-6),
        published.averaged_updates(n, m, 1.0, 5e-7, 5e-7),
        published.shuffle(n, 1.0, 1e-6),
    ):
        said(line, float(bound.value))
    for name, protocol in (
        ("A_fix at most", cj.FixedWindow(num_clients=n, num_slots=m)),
        ("A_sldw", cj.SlidingWindow(num_clients=n, window=m)),
        ("A_avg", cj.AveragedUpdates(num_clients=n, num_slots=m)),
        ("shuffling", cj.Shuffle(num_clients=n)),
    ):
        assert f"{name} {up(cj.account(protocol, cj.PureLDP(epsilon0=1.0), delta=1e-6).epsilon, 4)}" in line
    line = row("RCI, short forms")
    for theorem in (published.fixed_window, published.shuffle):
        said(line, float(theorem(1, 1.0, 0.01).value) / math.sqrt(math.log(100)))
