"""Brackets that are narrow, or whose ends are known: each row was wide before the theorem that it names."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import pytest
import rows

import checkin_jax as cj

ADDED = "add-or-remove-one"


@dataclasses.dataclass(frozen=True)
class Row:
    """A run, and what is known of its bracket.

    Attributes:
      ratio: upper over lower end at most.
      least, most: below the lower end, and above the upper one.
      method, lower_method, assumed: words of the method, of that from below, and of one of the assumptions.
      theorems: labels of rows of the table of bounds, if these alone are asked.
    """

    run: cj.CheckInProtocol
    randomizer: cj.Randomizer
    ratio: float = math.inf
    least: float = 0.0
    most: float = math.inf
    delta: float = 1e-6
    relation: str = "replace-one"
    view: str = "messages"
    bounds: str | Sequence[str] = "best"
    theorems: str = ""
    method: str = ""
    lower_method: str = ""
    assumed: str = ""


def check_in(n, rate, rounds=1):
    return cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds)


def shuffle(n, rounds=1):
    return cj.Shuffle(num_clients=n, num_rounds=rounds)


def fixed(n, slots, prob=1.0, epochs=1):
    return cj.FixedWindow(num_clients=n, num_slots=slots, check_in_prob=prob, num_epochs=epochs)


def sliding(n, window, epochs=1, **more):
    return cj.SlidingWindow(num_clients=n, window=window, num_epochs=epochs, **more)


def averaged(n, slots, prob=1.0, epochs=1, **more):
    return cj.AveragedUpdates(num_clients=n, num_slots=slots, check_in_prob=prob, num_epochs=epochs, **more)


def pure(epsilon0):
    return cj.PureLDP(epsilon0=epsilon0)


def noise(multiplier):
    return cj.Gaussian(noise_multiplier=multiplier)


FINITE = cj.FiniteMechanism(
    probabilities=[[0.25, 0.26, 0.22, 0.27], [0.26, 0.24, 0.25, 0.25], [0.25, 0.22, 0.27, 0.26]]
)
RARE = cj.FiniteMechanism(probabilities=[[0.57, 0.43, 3e-46], [0.5, 0.5, 5e-46], [0.515, 0.485, 8e-46]])
UNEQUAL = cj.Rates(values=[0.00338, 0.425, 0.532, 0.00213], counts=[7_634, 734_382, 1_770_234, 807_748])
LIMITS = cj.RateLimits(largest=0.163, expected_check_ins=1.87e7)
NEARLY = functools.partial(cj.ApproximateLDP, epsilon0=0.3, delta0=1e-14)

ROWS = [
    # Everybody sends.
    *(
        Row(shuffle(n, rounds), pure(epsilon0), ratio, method="everybody")
        for n, rounds, epsilon0, ratio in [
            (1000, 1, 0.25, 1.035),
            (10_000, 1, 0.25, 1.02),
            (10_000, 1, 0.5, 1.025),
            (10_000, 1, 1.0, 1.03),
            (10_000, 1, 2.0, 1.06),
            (10_000, 100, 1.0, 1.03),
            (1_000_000, 1, 1.0, 1.01),
            (1_000_000, 100, 2.0, 1.01),
        ]
    ),
    Row(shuffle(10_000), cj.Rappor(epsilon0=1.0), 1.03, method="everybody"),
    Row(shuffle(10_000), cj.Laplace(epsilon0=1.0), 1.045, method="everybody"),
    Row(shuffle(1_000_000), cj.Laplace(epsilon0=1.0), 1.01, method="everybody"),
    Row(shuffle(1_000_000), cj.Rappor(epsilon0=4.0), 1.03, method="everybody"),
    Row(shuffle(1_000_000), cj.L2Mechanism(epsilon0=4.0), 1.05, method="everybody"),
    Row(shuffle(1_000_000), cj.L2Mechanism(epsilon0=6.0), 1.25, method="everybody"),
    Row(averaged(100_000, 100, epochs=5), pure(1.0), 1.04, delta=1e-7, method="everybody"),
    Row(averaged(100_000, 100, epochs=5), cj.Laplace(epsilon0=1.0), 1.04, delta=1e-7, method="everybody"),
    Row(shuffle(10_000), noise(4.0), 1.25, most=0.0215, method="everybody"),
    Row(shuffle(10**6, 10), noise(1.5), 1.35, most=0.0305),
    Row(shuffle(int(4.1e11), 269), noise(0.607), 3.0, most=0.17),
    Row(averaged(10**6, 10, epochs=10), noise(4.0), most=0.0095, theorems="E+"),
    *(
        Row(run, cj.ApproximateLDP(epsilon0=epsilon0, delta0=delta0), ratio, delta=delta, method="everybody")
        for run, epsilon0, delta0, delta, ratio in [
            (shuffle(210_000_000, 3), 0.874, 1.66e-11, 1.27e-10, 1.24),
            (averaged(77_600_000, 346_872_000, epochs=27), 0.0924, 4.42e-15, 2.66e-12, 1.02),
            (shuffle(57_000_000, 74), 0.368, 4.62e-15, 2.36e-10, 1.01),
            (shuffle(61_300_000, 596), 1.73, 2.61e-16, 4.99e-12, 1.025),
        ]
    ),
    Row(shuffle(3_000, 20), cj.HadamardResponse(epsilon0=1.0), 1.25),
    Row(shuffle(3_000, 20), cj.OneBit(epsilon0=1.0, differ=0.5), 1.25),
    # Some check in.
    *(
        Row(check_in(n, rate, rounds), pure(epsilon0), ratio, delta=delta, method="hexagon")
        for n, rate, rounds, epsilon0, delta, ratio in [
            (60_000, 0.1, 6800, 0.25, 1e-6, 1.007),
            (60_000, 0.1, 6800, 0.69, 1e-6, 1.012),
            (60_000, 0.1, 6800, 4.0, 1e-6, 1.010),
            (3000, 0.1, 100, 0.69, 1e-6, 1.035),
            (10_000, 0.012, 100, 0.69, 1e-6, 1.06),
            (10**5, 0.5, 1000, 0.69, 1e-200, 1.02),
            (10**6, 0.9999, 100, 0.69, 1e-6, 1.005),
        ]
    ),
    *(
        Row(check_in(60_000, 0.1, 6800), cj.L2Mechanism(epsilon0=epsilon0), ratio, method="own-laws")
        for epsilon0, ratio in [(0.25, 1.0011), (1.0, 1.0017), (3.0, 1.0060), (6.0, 1.0290)]
    ),
    *(
        Row(check_in(60_000, 0.1, 6800), cj.KaryResponse(epsilon0=epsilon0, num_values=values), 1.0005)
        for values in (3, 10, 100)
        for epsilon0 in (0.25, 2.0, 6.0)
    ),
    Row(averaged(60_000, 1, 0.1, 6800), cj.L2Mechanism(epsilon0=6.0), most=17.40),
    Row(check_in(1190, 0.00138, 16_000), cj.OneBit(epsilon0=2.35), 1.15, delta=3.96e-5),
    Row(check_in(400, 30 / 400, 2000), pure(1.0), 1.03, method="hexagon"),
    Row(check_in(400, 30 / 400, 2000), cj.Rappor(epsilon0=1.0), 1.03, method="own-laws"),
    Row(check_in(100, 0.02, 100), cj.Rappor(epsilon0=9.0), 1.015, lower_method="by scores"),
    Row(check_in(3000, 0.1, 500), cj.Rappor(epsilon0=9.0), 1.015, lower_method="by scores"),
    Row(check_in(60_000, 0.1, 10), cj.KaryResponse(epsilon0=2.0, num_values=3), 1.001, view="local"),
    Row(
        check_in(60_000, 0.1, 3_000),
        noise(1.42),
        1.1,
        least=0.7326,
        method="gaussian-cover",
        assumed="same ball",
    ),
    Row(check_in(100_000, 0.01, 1_000), noise(0.5), least=31.0, most=46.0, delta=1e-7),
    Row(
        check_in(42_700_000, 0.000162, 81),
        cj.KnownProfile(function=cj.Laplace(epsilon0=0.0521).profile),
        least=2.4e-6,
        most=2.5e-6,
        delta=1.11e-9,
    ),
    # Sums and averages.
    *(
        Row(
            run,
            cj.Rappor(epsilon0=epsilon0),
            ratio,
            delta=1e-7,
            view="aggregate",
            method="subsampling",
            assumed="depends on another message",
        )
        for run, epsilon0, ratio in [
            (shuffle(39_300, 500), 4.84, 1.06),
            (check_in(30_000, 0.1, 100), 4.0, 1.08),
            (check_in(270_000_000, LIMITS), 4.92, 1.05),
        ]
    ),
    Row(
        averaged(319_000_000, 1_087_790, 0.101, 11, num_colluding=94_607_126),
        noise(0.645),
        2.0,
        delta=3.99e-5,
        view="aggregate",
        method="averages",
    ),
    Row(
        averaged(22_300, 29, 0.000921, 19),
        noise(0.427),
        1.2,
        least=16.0,
        delta=4.86e-7,
        view="aggregate",
        lower_method="average",
    ),
    # Fixed windows.
    Row(fixed(1000, 1000), noise(1.0), 1.25, relation=ADDED, theorems="G5"),
    Row(fixed(1000, 1000), noise(1.0), 1.36, theorems="R4"),
    Row(fixed(1000, 1000), noise(2.0), 1.16, relation=ADDED, theorems="G7"),
    Row(fixed(10**4, 1000), noise(1.0), 1.03),
    Row(fixed(1000, 1000), noise(4.0), 1.25, relation=ADDED),
    Row(fixed(1000, 1000), pure(2.0), 1.01, method="hexagon"),
    Row(fixed(1000, 1000), pure(0.5), 1.02, method="hexagon"),
    Row(fixed(300, 1000, 0.5), pure(1.0), 1.02, method="hexagon"),
    Row(fixed(10**5, 10**5), pure(2.0), 1.02, method="hexagon"),
    Row(fixed(60_000, 600, 0.3), pure(1.0), 1.03, method="hexagon"),
    Row(fixed(1000, 1000), pure(2.0), 1.17, bounds=("clones", "hexagon")),
    Row(
        fixed(75_600, 7_469, epochs=220),
        noise(0.376),
        least=160.0,
        most=305.0,
        delta=2.38e-11,
        relation=ADDED,
    ),
    Row(fixed(60_000, 1_000, epochs=10), pure(1.0), 1.25),
    Row(fixed(10**12, 1), noise(0.1), most=0.0, relation=ADDED),
    Row(fixed(10**12, 1), noise(1e-3), most=0.0, relation=ADDED),
    Row(fixed(1, 1), noise(1.0), least=4.886, most=4.887, relation=ADDED),
    Row(fixed(1, 100), noise(1.0), least=0.857, most=0.859, relation=ADDED),
    Row(fixed(1, 10_000), noise(0.5), least=1.941, most=1.943, relation=ADDED),
    Row(fixed(3, 1, 0.84), RARE, 1.5, delta=1e-3, relation=ADDED),
    Row(fixed(10**5, 4_000, epochs=20), pure(1.0), 1.15, delta=1e-8, relation=ADDED, method="profile"),
    Row(
        fixed(10**5, 4_000, epochs=20),
        cj.KaryResponse(epsilon0=1.0, num_values=20),
        1.15,
        delta=1e-8,
        relation=ADDED,
        method="profile",
    ),
    Row(
        fixed(3_319_998, 81_672, UNEQUAL, 23_800),
        cj.ApproximateLDP(epsilon0=0.375, delta0=4.93e-11),
        1.12,
        delta=8.6e-7,
        method="profile",
    ),
    Row(fixed(3, 1000, epochs=50), cj.KaryResponse(epsilon0=40.0, num_values=3)),
    # Sliding windows.
    Row(sliding(10**5, 10**4), pure(0.5), 1.06, bounds=("clones", "hexagon")),
    Row(sliding(10**5, 10**4), pure(2.0), 1.05, bounds=("clones", "hexagon")),
    Row(sliding(10**4, 1_000), pure(2.0), 1.16, bounds=("clones", "hexagon")),
    Row(sliding(10**6, 10**4, 50), cj.KaryResponse(epsilon0=0.5, num_values=3_000), 1.2),
    Row(sliding(10**6, 10**5, 50), NEARLY(), 1.23),
    Row(sliding(10**6, 10**5, 50), NEARLY(), 1.16, relation=ADDED),
    *(
        Row(sliding(1000, window, epochs), pure(epsilon0), 1.3, delta=1e-7, relation=relation)
        for window, epsilon0, epochs in [(12, 0.3, 1), (40, 0.2, 400), (250, 1.0, 100)]
        for relation in ("replace-one", ADDED)
    ),
    Row(sliding(158_000, 5, 30_500), pure(0.41), most=495.0, delta=9.05e-11),
    Row(
        sliding(3470, 14, 867, minibatch=38),
        cj.OneBit(epsilon0=0.722, differ=0.5),
        1.3,
        delta=1e-8,
        method="own-laws",
    ),
    Row(sliding(1190, 3, 4180), cj.Rappor(epsilon0=0.658), 1.25, delta=1e-8, method="own-laws"),
    Row(sliding(10, 1), noise(3.0), 1.001, bounds="subsampling"),
    Row(
        sliding(10**4, 1000),
        noise(1.0),
        least=0.186,
        bounds="subsampling",
        lower_method="the largest Gaussian message in slots, all others at the farthest record",
    ),
    Row(
        sliding(10**4, 1000),
        noise(4.0),
        least=0.033,
        bounds="subsampling",
        lower_method="Gaussian messages in slots, opposite records among zeros",
    ),
    Row(
        sliding(20_000, 10_000),
        noise(3.0),
        least=0.0198,
        delta=1e-9,
        bounds="subsampling",
        lower_method="Gaussian messages, opposite records among zeros",
    ),
    # Colluders.
    Row(
        sliding(2000, 50, 100, num_colluding=500),
        cj.Laplace(epsilon0=1.0),
        1 / 0.3,
        lower_method="in a colluder's slot",
    ),
    Row(sliding(7_140_000, 489_000, 5, num_colluding=1_554_138), FINITE, 1.01, delta=1e-9),
    Row(
        sliding(2_820_000, 104, 1640, num_colluding=959_498),
        cj.KaryResponse(epsilon0=0.315, num_values=68),
        2.5,
    ),
]


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{type(row.run).__name__}-{type(row.randomizer).__name__}"
)
@pytest.mark.turns(2)
@pytest.mark.thorough(but=20)
def test_a_bracket_is_narrow(row):
    ask = functools.partial(rows.account, row.theorems) if row.theorems else cj.account
    how = {} if row.theorems else {"bounds": row.bounds}
    g = ask(row.run, row.randomizer, delta=row.delta, view=row.view, neighboring_relation=row.relation, **how)
    assert row.least <= g.lower <= g.epsilon <= row.most
    assert g.epsilon <= row.ratio * g.lower or row.ratio == math.inf
    assert row.method in g.method
    assert row.lower_method in g.lower_method
    assert any(row.assumed in each for each in g.assumptions)
