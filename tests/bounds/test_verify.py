"""The program that re-checks certificates: against sums over all outcomes, on altered and on hostile files."""

from __future__ import annotations

import ast
import csv
import functools
import itertools
import json
import math
import random
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkin_jax as cj
from benchmarks.census import rechecked
from benchmarks.drawn_settings import answer
from checkin_jax import cli
from checkin_jax._rounding import down, up

verify = pytest.importorskip("checkin_jax.verify", reason="python-flint is not installed")
ball = verify.ball


def _trinomial(n, rate, epsilon0, loss):
    """The profile of T1's pair, over all numbers of both labels and of the absent."""
    p, c = math.exp(epsilon0), math.exp(loss)
    label, absent, total = rate / (p + 1), 1 - rate, 0.0
    nothing = max(1 - 2 * label - absent, 0.0)
    for first in range(n + 1):
        for second in range(n + 1 - first):
            for away in range(n + 1 - first - second):
                rest = n - first - second - away
                ways = (
                    math.comb(n, first) * math.comb(n - first, second) * math.comb(n - first - second, away)
                )
                chance = ways * label ** (first + second) * absent**away * nothing**rest
                total += chance * max((p - c) * first - (c * p - 1) * second - (c - 1) * away, 0.0) / n
    return total


@pytest.mark.parametrize(("n", "rate"), [(1, 0.5), (5, 0.3), (8, 1.0), (12, 0.1)])
def test_profiles_are_sums_over_all_outcomes(n, rate):
    verify.ctx.prec = 300
    label = ball(Fraction(rate)) / (ball(1).exp() + 1)
    arguments = (label, ball(1 - Fraction(rate)), ball(1), ball(0), Fraction(1))
    pair = verify.ClonesPair(n, *arguments, 120)
    for loss in (0.0, 1e-3, 0.1, 0.5, 0.9):
        exact = _trinomial(n, rate, 1.0, loss)
        assert float(pair.upper(Fraction(loss)).upper()) == pytest.approx(exact, rel=1e-12, abs=1e-18)
    assert pair.upper(Fraction(1)) == 0


def test_a_total_variation_is_a_sum_over_all_outcomes():
    """Of 6 draws, one of them used with probability 0.6, with the labels (p, 1), (1, p), (p, p) and none."""
    verify.ctx.prec = 300
    m, used, epsilon0, beta = 6, 0.6, 1.0, 0.3
    p = math.exp(epsilon0)
    pair = beta / (p - 1)
    high = (1 - (p + 1) * pair) / p
    model = {"kind": "total variation", "draws": m, "total_variation": beta.hex()}
    model |= {"used": used.hex(), "epsilon0": epsilon0.hex()}
    found = verify.of_clones(verify.JsonObject("model", model), 120)
    for loss in (0.0, 0.01, 0.1, 0.3):
        c, exact = math.exp(loss), 0.0
        for first, second, both in itertools.product(range(m + 1), repeat=3):
            rest = m - first - second - both
            if rest < 0:
                continue
            ways = math.factorial(m)
            for number in (first, second, both, rest):
                ways //= math.factorial(number)
            chance = ways * pair ** (first + second) * high**both * (1 - 2 * pair - high) ** rest
            equal = (c - 1) * (p * both + m * (1 - used) / used)
            exact += chance * max((p - c) * first - (c * p - 1) * second - equal, 0.0) * used / m
        assert float(found(Fraction(loss)).upper()) == pytest.approx(exact, rel=1e-12, abs=1e-18)
    with pytest.raises(verify.Malformed, match="too large for this epsilon0"):
        verify.of_clones(verify.JsonObject("model", model | {"epsilon0": (1e-11).hex()}), 120)


def test_laws_of_one_message_are_compared_for_all_pairs_of_records():
    verify.ctx.prec = 200
    table = [[1.0, 2.0, 1.0], [0.5, 0.25, 0.25], [0.125, 0.125, 0.75]]
    # Rows are divided by their sums.
    laws = [[0.25, 0.5, 0.25], *table[1:]]
    model = {
        "kind": "laws",
        "rate": (0.5).hex(),
        "laws": [{"masses": [m.hex() for m in row]} for row in table],
    }
    with pytest.raises(verify.Malformed, match="masses"):
        verify.of_laws(verify.JsonObject("model", model), 120)
    model["laws"][0]["masses"] = [(m / 2).hex() for m in table[0]]
    found = verify.of_laws(verify.JsonObject("model", model), 120)
    for loss in (0.0, 0.3, 0.9, 1.3, 2.0):
        c = math.exp(loss)
        exact = max(
            sum(max(a - c * b, 0.0) for a, b in zip(*pair)) for pair in itertools.permutations(laws, 2)
        )
        assert float(found(Fraction(loss)).upper()) == pytest.approx(0.5 * exact, rel=1e-12, abs=1e-30)


def test_laplace_noise_is_an_integral_over_all_outcomes():
    verify.ctx.prec = 200
    epsilon0, rate = 1.5, 0.25
    model = {"kind": "Laplace", "rate": rate.hex(), "epsilon0": epsilon0.hex()}
    found = verify.of_laplace(verify.JsonObject("model", model), 120)
    step = 2.0**-12
    outcomes = [step * (i + 0.5) for i in range(-120_000, 120_000)]
    for loss in (0.0, 0.5, 1.4, 1.5, 2.0):
        exact = math.fsum(
            0.5 * max(math.exp(-abs(y)) - math.exp(loss - abs(y - epsilon0)), 0.0) for y in outcomes
        )
        assert float(found(Fraction(loss)).upper()) == pytest.approx(rate * exact * step, rel=1e-6, abs=1e-12)


def _slots(m, used, epsilon0, loss):
    """The profile of T2's pair: each of m slots shows either label or neither."""
    p, c = math.exp(epsilon0), math.exp(loss)
    label, constant, total = 1 / (p + 1), m * (1 - used) / used, 0.0
    for first in range(m + 1):
        for second in range(m + 1 - first):
            ways = math.comb(m, first) * math.comb(m - first, second)
            chance = ways * label ** (first + second) * (1 - 2 * label) ** (m - first - second)
            total += chance * max((p - c) * first - (c * p - 1) * second - (c - 1) * constant, 0.0)
    return total * used / m


@pytest.mark.parametrize(("m", "used"), [(1, 1.0), (6, 0.4), (10, 0.9)])
def test_slots_are_sums_over_all_outcomes(m, used):
    verify.ctx.prec = 300
    constant = ball(m * (1 - Fraction(used)) / Fraction(used))
    pair = verify.ClonesPair(m, 1 / (ball(1).exp() + 1), ball(0), ball(1), constant, Fraction(1), 120)
    for loss in (0.0, 0.01, 0.1, 0.3):
        exact = _slots(m, used, 1.0, loss)
        assert float(pair.upper(Fraction(loss)).upper()) == pytest.approx(exact, rel=1e-12, abs=1e-18)


ROUNDS, RATE, EPSILON0, DELTA = 50, 0.1, 1.0, 1e-6


def _exact_delta(epsilon):
    """Of so many randomized responses, each sent with a probability, by the numbers of both answers."""
    p, total = math.exp(EPSILON0), 0.0
    likely, other = RATE * p / (p + 1), RATE / (p + 1)
    for first in range(ROUNDS + 1):
        for second in range(ROUNDS + 1 - first):
            ways = math.comb(ROUNDS, first) * math.comb(ROUNDS - first, second)
            chance = ways * likely**first * other**second * (1 - RATE) ** (ROUNDS - first - second)
            total += chance * max(-math.expm1(epsilon - (first - second) * EPSILON0), 0.0)
    return total


@functools.cache
def _exact_epsilon():
    low, high = 0.0, ROUNDS * EPSILON0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _exact_delta(middle) > DELTA else (low, middle)
    return high


_WORDS = "that its theorems, its assumptions and these words fit the units: 'own'"


def _own(epsilon, lower=0.0):
    """A certificate written without the accountant: the profile of randomized response at ten knots.

    Its lower end, if that is positive, is the same pair as a sum of scores.
    """
    spacing, size = 0.1 * EPSILON0, 10
    p, knots = math.exp(EPSILON0), [Fraction(spacing) * i for i in range(size)]
    values = [RATE * (p - math.exp(loss)) / (p + 1) * (1 + 1e-13) for loss in knots] + [0.0]
    unit = {
        "bound": "randomized response",
        "model": {
            "kind": "clones",
            "draws": 1,
            "values": 2,
            "rate": RATE.hex(),
            "used": (1.0).hex(),
            "epsilon0": EPSILON0.hex(),
        },
        "count": ROUNDS,
        "knots": list(range(size + 1)),
        "forward": [value.hex() for value in values],
        "backward": [value.hex() for value in values],
    }
    claim = {"words": "own", "units": ROUNDS, "lower": float(lower).hex()}
    claim |= {"epsilon": float(epsilon).hex(), "delta": DELTA.hex()}
    found = {"format": verify.FORMAT, "claim": claim, "spacing": spacing.hex(), "units": [unit]}
    if lower > 0.0:
        often, seldom = p / (p + 1), 1 / (p + 1)
        model = {"kind": "labels", "draws": 1, "scores": [1, -1], "rate": RATE.hex(), "used": (1.0).hex()}
        model |= {"others": [seldom.hex(), often.hex()], "other": [seldom.hex(), often.hex()]}
        model |= {"apart": [(often - seldom).hex(), (seldom - often).hex()]}
        side = [(value * (1 - 3e-13)).hex() for value in values]
        below = unit | {"model": model, "forward": side, "backward": side}
        found["below"] = {"spacing": spacing.hex(), "units": [below]}
    return found


def _checked(certificate):
    return verify.check(verify.read(json.dumps(certificate).encode()))


@pytest.mark.parametrize("off", [1e-9, 1e-4])
def test_composition_agrees_with_a_sum_over_all_outcomes_on_both_sides(off):
    _, trusted = _checked(_own(_exact_epsilon() * (1 + off)))
    assert trusted == [_WORDS]
    with pytest.raises(verify.Refuted, match="upper end"):
        _checked(_own(_exact_epsilon() * (1 - off)))


@pytest.mark.parametrize("off", [1e-9, 1e-4])
def test_the_lower_end_agrees_with_a_sum_over_all_outcomes_on_both_sides(off):
    upper = _exact_epsilon() * (1 + 2e-4)
    lines, trusted = _checked(_own(upper, _exact_epsilon() * (1 - off)))
    assert lines[-1].startswith("lower end: 50 units composed have delta >= ")
    assert trusted == [_WORDS]
    with pytest.raises(verify.Refuted, match="lower end"):
        _checked(_own(upper, _exact_epsilon() * (1 + off)))


def _sums_over_all_outcomes(draws, rate, used, laws, scores):
    """The laws of the sum of all scores under P and Q, by every sequence of labels, `None` an absent draw."""
    target, other, others = laws
    labels = [None, *range(len(scores))]
    found = [{}, {}]
    for outcome in itertools.product(labels, repeat=draws):
        total = sum(scores[label] for label in outcome if label is not None)
        for law, mine in zip(found, (target, other)):
            first, *rest = (
                [1 - rate if label is None else rate * law[label] for law in (mine, others)]
                for label in outcome
            )
            chance = used * first[0] + (1 - used) * first[1]
            for each in rest:
                chance *= each[1]
            law[total] = law.get(total, 0) + chance
    return found


def test_sums_of_scores_are_sums_over_all_outcomes():
    eighths = [Fraction(i, 8) for i in range(9)]
    laws = [[eighths[i] for i in law] for law in ((5, 2, 1), (1, 4, 3), (2, 3, 3))]
    scores, rate, used, bits = [3, -1, 0], Fraction(3, 4), Fraction(1, 2), 200
    model = {"kind": "labels", "draws": 4, "rate": float(rate).hex(), "used": float(used).hex()}
    model |= {"scores": scores, "other": [float(x).hex() for x in laws[1]]}
    model |= {"apart": [float(a - b).hex() for a, b in zip(laws[0], laws[1])]}
    model |= {"others": [float(x).hex() for x in laws[2]]}
    found = verify.sums(verify.JsonObject("model", model), bits)
    for law, exact in zip(found, _sums_over_all_outcomes(4, rate, used, laws, scores)):
        assert len(law) == 17
        for place, mass in enumerate(law):
            wanted = exact.get(place - 4, 0) * (1 << bits)
            assert wanted - 1000 <= mass <= wanted


def _altered(certificate, alteration):
    made = json.loads(json.dumps(certificate))
    ALTERATIONS[alteration][0](made)
    return made


def _scaled(record, name, by):
    record[name] = (float.fromhex(record[name]) * by).hex()


def _value(unit, i, by):
    for side in ("forward", "backward"):
        unit[side][i] = (float.fromhex(unit[side][i]) * by).hex()


def _counts(certificate):
    certificate["units"][0]["count"] *= 2
    certificate["claim"]["units"] *= 2


def _moved(certificate, by):
    unit = certificate["units"][0]
    unit["knots"] = [2 * index for index in unit["knots"]]
    certificate["spacing"] = (0.5 * float.fromhex(certificate["spacing"])).hex()
    unit["knots"][len(unit["knots"]) // 2] += by


ALTERATIONS = {
    "epsilon lowered": (lambda c: _scaled(c["claim"], "epsilon", 1 - 1e-3), "upper end"),
    "a value lowered": (lambda c: _value(c["units"][0], 5, 0.99), "profile|convex"),
    "twice the units": (_counts, "upper end"),
    "a knot moved down": (lambda c: _moved(c, -1), "profile|convex"),
    "a knot moved up": (lambda c: _moved(c, 1), "convex"),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_an_altered_certificate_is_refuted(alteration):
    good = _own(_exact_epsilon() * (1 + 1e-6))
    _checked(good)
    with pytest.raises(verify.Refuted, match=ALTERATIONS[alteration][1]):
        _checked(_altered(good, alteration))


@pytest.mark.parametrize("alteration", ["a value lowered", "a knot moved down", "a knot moved up"])
def test_an_altered_profile_is_refuted_where_it_is_taken_on_trust(alteration):
    good = _own(_exact_epsilon() * (1 + 1e-6))
    good["units"][0]["model"] = {"kind": "trusted"}
    assert "the profile from above of 50 of the units (randomized response)" in _checked(good)[1]
    with pytest.raises(verify.Refuted, match="convex"):
        _checked(_altered(good, alteration))


def _with(place, value):
    made = _own(14.0)
    *way, last = place
    record = made
    for step in way:
        record = record[step]
    record[last] = value
    return json.dumps(made).encode()


UNIT = ("units", 0)
HOSTILE = {
    "empty": b"",
    "no JSON": b"\x00\xff",
    "nesting": b"[" * 100_000,
    "NaN": json.dumps(_own(1.0)).replace('"own"', "NaN").encode(),
    "many digits": b"1" * 100_000,
    "another format": _with(("format",), "x"),
    "claim of another type": _with(("claim",), [1]),
    "decimal epsilon": _with(("claim", "epsilon"), 1.0),
    "NaN as text": _with(("claim", "epsilon"), "nan"),
    "huge": _with(("claim", "epsilon"), "0x1.0p+9999"),
    "negative": _with(("claim", "epsilon"), "-0x1.0p+1"),
    "delta of zero": _with(("claim", "delta"), "0x0p+0"),
    "huge count": _with((*UNIT, "count"), 10**30),
    "count of true": _with((*UNIT, "count"), True),
    "huge knot": _with((*UNIT, "knots", 10), 10**39),
    "far knot": _with((*UNIT, "knots", 10), 10**9),
    "disordered knots": _with((*UNIT, "knots", 3), 9),
    "text for a profile": _with((*UNIT, "forward"), "0x1p+0"),
    "short profile": _with((*UNIT, "forward"), ["0x1p+0"]),
    "unknown model": _with((*UNIT, "model", "kind"), "word"),
    "fine spacing": _with(("spacing",), (1e-11).hex()),
    "many units": _with(("units",), _own(1.0)["units"] * 65),
    "too large": b" " * ((1 << 24) + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_clear_line(name, tmp_path, capsys):
    file = tmp_path / "certificate.json"
    file.write_bytes(HOSTILE[name])
    began = time.process_time()
    status = verify.main([str(file)])
    assert time.process_time() - began < 10
    shown = capsys.readouterr().out
    assert status in (1, 2)
    assert shown.count("\n") == 1
    assert shown.startswith(("no certificate: ", "refuted: "))
    assert len(shown) < 700


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path, capsys):
    assert verify.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().out.startswith("not read: ")


def test_the_program_imports_nothing_of_the_package():
    source = Path(verify.__file__).read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"flint"}
    assert len(_lines_of_code(source)) <= 500


def _lines_of_code(source):
    """Lines without blank ones, comments, imports and docstrings."""
    left_out = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, node.end_lineno + 1))
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node) is not None:
            left_out.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(source.splitlines(), start=1)
    return [i for i, line in lines if line.strip() and line.strip()[0] != "#" and i not in left_out]


SMALL = {"num_clients": 300, "check_in_prob": 0.3, "num_rounds": 50}
PURE = cj.PureLDP(epsilon0=1.0)
# Protocol, randomizer, how, and whether the profiles of the upper and of the lower end are re-checked too.
SETTINGS = {
    "T1": (cj.ShuffledCheckIn(**SMALL), PURE, {"bounds": "clones"}, (True, True)),
    "shuffled once": (cj.Shuffle(num_clients=1_000), PURE, {"bounds": "clones"}, (True, True)),
    "local": (cj.ShuffledCheckIn(**SMALL), PURE, {"view": "local"}, (True, True)),
    "laws": (
        cj.ShuffledCheckIn(**SMALL),
        cj.FiniteMechanism(probabilities=[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.4, 0.2, 0.4]]),
        {"view": "local"},
        (True, True),
    ),
    "Laplace": (cj.ShuffledCheckIn(**SMALL), cj.Laplace(epsilon0=1.0), {"view": "local"}, (True, True)),
    "a share": (cj.ShuffledCheckIn(**SMALL), cj.Rappor(epsilon0=1.0), {"view": "local"}, (True, True)),
    "T*": (cj.ShuffledCheckIn(**SMALL), cj.Laplace(epsilon0=1.0), {"bounds": "profile"}, (False, True)),
    "t_k": (
        cj.Shuffle(num_clients=2_000, num_rounds=20),
        cj.KaryResponse(epsilon0=2.0, num_values=8),
        {},
        (True, True),
    ),
    "A": (cj.Shuffle(num_clients=300, num_rounds=20), cj.HadamardResponse(epsilon0=1.0), {}, (True, True)),
    "G1": (
        cj.ShuffledCheckIn(**SMALL),
        cj.Gaussian(noise_multiplier=4.0),
        {"bounds": "gaussian-cover"},
        (False, False),
    ),
}


@functools.cache
def _certificate(name):
    protocol, randomizer, how, _ = SETTINGS[name]
    guarantee = cj.account(protocol, randomizer, delta=1e-6, **how)
    return json.loads(json.dumps(cj.certificate(guarantee))), guarantee


@pytest.mark.parametrize("name", SETTINGS)
def test_certificates_verify(name):
    certificate, guarantee = _certificate(name)
    assert float.fromhex(certificate["claim"]["epsilon"]) == guarantee.epsilon
    began = time.process_time()
    _, trusted = _checked(certificate)
    assert time.process_time() - began < 60
    for side, checked in zip(("from above", "from below"), SETTINGS[name][3]):
        assert any(f"profile {side}" in each for each in trusted) != checked
    assert guarantee.lower * 0.98 <= float.fromhex(certificate["claim"]["lower"]) <= guarantee.lower


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("end", ["lower", "upper"])
@pytest.mark.turns(3)
def test_certificates_that_claim_more_are_refuted(name, end):
    certificate = json.loads(json.dumps(_certificate(name)[0]))
    if end == "lower":
        _scaled(certificate["claim"], "epsilon", 2.0)
        _scaled(certificate["claim"], "lower", 1.01)
    else:
        # Where the bracket is narrow the claim would else contradict itself.
        certificate["claim"]["lower"] = (0.0).hex()
        _scaled(certificate["claim"], "epsilon", 1 - 1e-3)
    with pytest.raises(verify.Refuted, match=f"{end} end"):
        _checked(certificate)


@pytest.mark.parametrize("name", ["T1", "local", "laws", "Laplace", "a share"])
def test_certificates_of_a_client_that_sends_more_often_are_refuted(name):
    certificate = json.loads(json.dumps(_certificate(name)[0]))
    _scaled(certificate["units"][0]["model"], "rate", 1.01)
    with pytest.raises(verify.Refuted, match="profile at knot"):
        _checked(certificate)


def _fixed(randomizer):
    protocol = cj.FixedWindow(num_clients=13_200_000, num_slots=50_556_000, check_in_prob=5e-4, num_epochs=10)
    return cj.account(protocol, randomizer, delta=8.46e-9, neighboring_relation="add-or-remove-one")


def _rare(randomizer):
    protocol = cj.ShuffledCheckIn(num_clients=12_100_000, check_in_prob=0.000846, num_rounds=11)
    return cj.account(protocol, randomizer, delta=4.27e-5)


# Total variations of several units add up; losses are so small that few orders of a moment bound them well.
ZEROS = {
    "total variation": lambda: _rare(cj.PureLDP(epsilon0=0.615)),
    "small losses": lambda: _fixed(cj.HadamardResponse(epsilon0=0.0755)),
}


@pytest.mark.parametrize("name", ZEROS)
def test_an_epsilon_of_zero_is_verified_and_its_delta_matters(name):
    guarantee = ZEROS[name]()
    assert guarantee.epsilon == 0.0
    certificate = json.loads(json.dumps(cj.certificate(guarantee)))
    lines, _ = _checked(certificate)
    (shown,) = {float(line.split("<= ")[1].split(" at")[0]) for line in lines if line.startswith("upper end")}
    assert shown <= guarantee.delta
    _scaled(certificate["claim"], "delta", 0.99 * shown / guarantee.delta)
    with pytest.raises(verify.Refuted, match="upper end"):
        _checked(certificate)


def test_no_mass_is_beyond_a_last_knot_that_is_the_largest_loss():
    """Rounded down, that knot would leave 3e-20 at infinite loss, 1e-8 of delta for the whole run."""
    rows = [
        [0.3052554970597599, 0.22800372626927884, 0.25278217147878757, 0.21395860519217363],
        [0.2622697154682459, 0.22657048821924683, 0.32850899916142917, 0.18265079715107804],
        [0.2341648760052041, 0.3504615978507408, 0.19222193934158302, 0.22315158680247207],
    ]
    mechanism = cj.FiniteMechanism(probabilities=rows)
    run = cj.ShuffledCheckIn(num_clients=1_000, check_in_prob=0.000274, num_rounds=738)
    certificate = cj.certificate(cj.account(run, mechanism, delta=1.35e-9, view="local"))
    unit = certificate["units"][0]
    assert float.fromhex(unit["forward"][-1]) < 1e-12 * 1.35e-9
    _checked(json.loads(json.dumps(certificate)))


def test_what_has_no_certificate_is_refused():
    with pytest.raises(TypeError, match="guarantee"):
        cj.certificate(1.0)
    # Few messages a round: moments of pairs of bounded chi-square divergence are below those of the profile.
    few = cj.ShuffledCheckIn(num_clients=1_190, check_in_prob=0.00138, num_rounds=16_000)
    found = cj.account(few, cj.OneBit(epsilon0=2.35), delta=3.96e-5)
    assert "RDP" in found.method
    with pytest.raises(ValueError, match="no certificate"):
        cj.certificate(found)


PROTOCOL = ["--num-clients", "1000", "--check-in-prob", "0.1", "--num-rounds", "100"]
RUN = ["epsilon", *PROTOCOL, "--epsilon0", "2", "--bounds", "clones"]


def _status(words):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return stop.value.code


def test_the_command_checks_files_and_names_what_it_trusts(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    monkeypatch.chdir(tmp_path)
    cli.main([*RUN, "--certificate", "claim.json"])
    shown = capsys.readouterr().out
    good = json.loads(Path("claim.json").read_text())
    assert f"epsilon <= {up(float.fromhex(good['claim']['epsilon']), 5)} " in shown

    def closed(self, protocol, answer):
        raise BrokenPipeError

    with monkeypatch.context() as pipe:  # as of `checkin epsilon ... | head -1`
        pipe.setattr("checkin_jax.cli.accounting.Epsilon._print", closed)
        assert _status([*RUN, "--certificate", "piped.json"]) == 141
    assert json.loads(Path("piped.json").read_text()) == good
    cli.main(["verify", "claim.json"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"claim.json: epsilon <= {up(float.fromhex(good['claim']['epsilon']), 9)} at delta 1e-06 "
        f"and >= {down(float.fromhex(good['claim']['lower']), 9)} verified; "
    )
    words = good["claim"]["words"]
    assert line.endswith(
        f"taken on trust: that its theorems, its assumptions and these words fit the units: {words!r}"
    )
    cli.main(["verify", "claim.json", "--verbose"])
    assert "knots holds (clones)" in capsys.readouterr().out
    Path("low.json").write_text(json.dumps(_altered(good, "a value lowered")))
    assert _status(["verify", "low.json", "claim.json"]) == 1
    refuted, verified = capsys.readouterr().out.splitlines()
    assert refuted.startswith("low.json: refuted: units[0]")
    assert verified == line
    Path("none.json").write_text("{}")
    assert _status(["verify", "none.json", "claim.json"]) == 2
    out, err = capsys.readouterr()
    assert out == f"{line}\n"
    assert err == "checkin: none.json: not checked: certificate: no field 'format'\n"
    assert _status(["verify", "none.json", "low.json"]) == 1
    assert capsys.readouterr().err == "none.json: not checked: certificate: no field 'format'\n"
    large = json.loads(json.dumps(good))
    _scaled(large, "spacing", 2.0**-15)
    large["units"][0]["knots"] = [index << 15 for index in large["units"][0]["knots"]]
    Path("large.json").write_text(json.dumps(large))
    assert _status(["verify", "large.json"]) == 2
    told = f"checkin: large.json: not checked: units[0].knots: more than {verify.MOST_PLACES} places\n"
    assert capsys.readouterr().err == told
    told = "missing.json: not checked: No such file or directory\n"
    assert _status(["verify", "missing.json"]) == 2
    assert capsys.readouterr().err == f"checkin: {told}"
    assert _status(["verify", "missing.json", "low.json"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("low.json: refuted: ")
    assert err == told


def test_an_answer_without_a_certificate_is_printed_all_the_same(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    run = ["epsilon", *PROTOCOL, "--noise-multiplier", "2", "--view", "local"]
    assert _status([*run, "--certificate", str(tmp_path / "claim.json")]) == 2
    out, err = capsys.readouterr()
    assert "epsilon <= " in out
    assert err.startswith("checkin: ")
    assert not list(tmp_path.iterdir())


def test_a_certificate_that_cannot_be_written_is_refused_before_the_answer(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    assert _status([*RUN, "--certificate", str(tmp_path / "no" / "claim.json")]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "expected a file in an existing folder" in err


SMALL = st.floats(1e-5, 0.5)
LOOSE = 1e-6


FIELDS = ["epsilon", "delta", "value", "rate", "count"]
FIELDS += ["lower", "lower value", "lower rate", "lower used", "apart", "lower count"]


@given(st.sampled_from(FIELDS), st.integers(0, 9), SMALL)
@settings(max_examples=110, deadline=None)
def test_any_digit_that_matters_is_checked(field, place, by):
    """Each change claims more by a share `by`, of the upper end or of the lower one."""
    made = _own(_exact_epsilon() * (1 + LOOSE), _exact_epsilon() * (1 - LOOSE))
    claim, unit, below = made["claim"], made["units"][0], made["below"]["units"][0]
    if field == "epsilon":
        _scaled(claim, "epsilon", 1 - by)
    elif field == "delta":
        _scaled(claim, "delta", 1 - 10 * LOOSE * 14 - by / 2)
    elif field == "value":
        _value(unit, place, 1 - by)
    elif field == "rate":
        _scaled(unit["model"], "rate", 1 + by)
    elif field == "count":
        unit["count"] += 1 + place
        claim["units"] = unit["count"]
    elif field == "lower":
        # A claim above the upper end would contradict itself.
        claim["epsilon"] = (2 * ROUNDS * EPSILON0).hex()
        _scaled(claim, "lower", 1 + by)
    elif field == "lower value":
        _value(below, place, 1 + by)
    elif field in ("lower rate", "lower used"):
        _scaled(below["model"], field.removeprefix("lower "), 1 - by)
    elif field == "apart":
        below["model"]["apart"] = [(float.fromhex(each) * (1 - by)).hex() for each in below["model"]["apart"]]
    else:
        below["count"] += 1 + place
    with pytest.raises(verify.Refuted):
        _checked(made)


CENSUS = Path(__file__).parents[2] / "docs" / "pictures" / "census.csv"


@pytest.mark.thorough
def test_certificates_of_twenty_random_settings_are_never_refuted():
    """Of the census, others every second; few have none, or need more places than the program takes."""
    with CENSUS.open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if float(row["seconds"]) < 2.0 and math.isfinite(float(row["upper"]))
        ]
    seed = time.time_ns()
    done = [rechecked(answer(json.loads(row["setting"]))) for row in random.Random(seed).sample(rows, 20)]
    assert not [each for each in done if each.outcome == "refuted"], (seed, done)
    verified = [each for each in done if each.outcome == "verified"]
    assert len(verified) >= 14, (seed, done)
    assert sum(each.seconds > 60.0 for each in verified) <= 1, (seed, done)
