"""Independent check of a certificate of `checkin_jax.certificate`; it shares no code with the accountant.

It imports only the standard library and python-flint (`pip install '.[verify]'`):

    python -m checkin_jax.verify FILE

prints one line for each step, and then "verified; taken on trust: ..." or "refuted: ..."; `checkin verify` prints one
line for each of several files. Real numbers are balls (Arb intervals) that contain them. Masses are whole multiples of
2^-bits, each rounded up, or down for lower ends. docs/guarantees.md describes the contents of a certificate.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, NamedTuple

from flint import arb, ctx, fmpq, fmpz_poly

FORMAT = "checkin-jax certificate 2"
PRECISION = 128
# Limits of the size of a certificate; larger ones are refused.
MOST_BYTES, MOST_KNOTS, MOST_UNITS, MOST_COUNT = 1 << 24, 1 << 14, 64, 10**9
MOST_PLACES, MOST_ALL_KNOTS = 1 << 20, 1 << 16
# Most bits of all polynomials of a composition together. Share of delta, as -log2, that all units may lose at an end.
MOST_WORK, NEGLIGIBLE = 3 * 10**9, 45
# Most entries of a table of binomial laws, steps of all exact profiles, and outcomes of all pairs of laws of a message;
# beyond them a profile is trusted.
MOST_ENTRIES, MOST_STEPS, MOST_OUTCOMES = 3_000_000, 10_000_000, 20_000
FLOAT = re.compile(r"-?0x[01](\.[0-9a-f]{1,13})?p[+-][0-9]{1,4}")
# Relative violation of convexity that counts as rounding.
ROUNDED = Fraction(1, 10**9)


class Malformed(Exception):
    """The file is no certificate; the message is one line."""


class Refuted(Exception):
    """A step of the certificate does not hold; the message is one line."""


class TooLarge(Exception):
    """A sum would take too long."""


class JsonObject(NamedTuple):
    """A JSON object and its place in the file; each method returns a field of one kind, and refuses others."""

    where: str
    fields: dict[str, Any]

    def field(self, name: str, kind: type) -> Any:
        if name not in self.fields:
            raise Malformed(f"{self.where}: no field {name!r}")
        value = self.fields[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise Malformed(f"{self.where}.{name}: expected {kind.__name__}, got {type(value).__name__}")
        return value

    def record(self, name: str) -> JsonObject:
        return JsonObject(self._inside(name), self.field(name, dict))

    def records(self, name: str, most: int) -> list[JsonObject]:
        values = self.field(name, list)
        if not 1 <= len(values) <= most or not all(isinstance(each, dict) for each in values):
            raise Malformed(f"{self.where}.{name}: expected from 1 to {most} objects")
        return [JsonObject(f"{self._inside(name)}[{i}]", each) for i, each in enumerate(values)]

    def _inside(self, name: str) -> str:
        return name if self.where == "certificate" else f"{self.where}.{name}"

    def text(self, name: str) -> str:
        return _line(self.field(name, str))

    def whole(self, name: str, least: int, most: int) -> int:
        value = self.field(name, int)
        if not least <= value <= most:
            raise Malformed(f"{self.where}.{name}: expected a whole number in [{least}, {most}]")
        return value

    def number(self, name: str, least: float, most: float) -> Fraction:
        text, value = self.field(name, str), math.inf
        if not FLOAT.fullmatch(text):
            raise Malformed(f"{self.where}.{name}: expected a hexadecimal float such as '0x1.8p+1'")
        with contextlib.suppress(OverflowError):
            value = float.fromhex(text)
        if not least <= value <= most:
            raise Malformed(f"{self.where}.{name}: expected a number in [{least}, {most}]")
        return Fraction(value)

    def wholes(self, name: str, least: int, most: int) -> list[int]:
        values = self._list(name)
        return [values.whole(str(i), least, most) for i in range(len(values.fields))]

    def numbers(self, name: str, least: float, most: float, size: int) -> list[Fraction]:
        values = self._list(name)
        if len(values.fields) != size:
            raise Malformed(f"{values.where}: expected {size} values")
        return [values.number(str(i), least, most) for i in range(size)]

    def _list(self, name: str) -> JsonObject:
        values = self.field(name, list)
        if not 1 <= len(values) <= MOST_KNOTS:
            raise Malformed(f"{self.where}.{name}: expected from 1 to {MOST_KNOTS} values")
        return JsonObject(self._inside(name), {str(i): each for i, each in enumerate(values)})


def _line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:500])


class CertificateUnit(NamedTuple):
    """One kind of unit; losses are `knots` times the spacing, `forward` and `backward` profiles of P||Q and Q||P."""

    where: str
    bound: str
    model: JsonObject
    times: int
    knots: list[int]
    forward: list[Fraction]
    backward: list[Fraction]


class Composition(NamedTuple):
    """Units whose losses are multiples of one spacing."""

    spacing: Fraction
    units: list[CertificateUnit]

    @property
    def total(self) -> int:
        return sum(unit.times for unit in self.units)


class Certificate(NamedTuple):
    """Two compositions: of profiles that are not below the units', and of profiles that are not above them."""

    claim: str
    epsilon: Fraction
    lower: Fraction
    delta: Fraction
    above: Composition
    below: Composition | None


class LossLaw(NamedTuple):
    """Law of the loss under P: masses at (low + i) times the spacing, and at infinity, times 2^bits, rounded."""

    low: int
    masses: list[int]
    infinite: int


def _unit(record: JsonObject) -> CertificateUnit:
    knots = record.wholes("knots", 0, 1 << 40)
    if len(knots) < 2 or knots[0] != 0 or any(b <= a for a, b in itertools.pairwise(knots)):
        raise Malformed(f"{record.where}.knots: expected 0 first and then increasing numbers")
    if 2 * knots[-1] + 1 > MOST_PLACES:
        raise Malformed(f"{record.where}.knots: more than {MOST_PLACES} places")
    sides = [record.numbers(name, 0.0, 2.0, len(knots)) for name in ("forward", "backward")]
    times, model = record.whole("count", 1, MOST_COUNT), record.record("model")
    return CertificateUnit(record.where, record.text("bound"), model, times, knots, *sides)


def _composition(record: JsonObject) -> Composition:
    spacing = record.number("spacing", 1e-12, 1e4)
    found = Composition(spacing, [_unit(each) for each in record.records("units", MOST_UNITS)])
    if sum(len(unit.knots) for unit in found.units) > MOST_ALL_KNOTS:
        raise Malformed(f"{record.where}.units: more than {MOST_ALL_KNOTS} knots")
    if any(unit.knots[-1] * spacing > 700 for unit in found.units):
        raise Malformed(f"{record.where}.spacing: knots beyond a loss of 700")
    return found


def _no_constant(name: str) -> Any:
    raise Malformed(f"{name} is no number")


def read(text: bytes) -> Certificate:
    """Parses a certificate.

    Raises:
      Malformed, Refuted: the bytes are no certificate, or its fields contradict each other.
    """
    if len(text) > MOST_BYTES:
        raise Malformed(f"more than {MOST_BYTES} bytes")
    try:
        fields = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed("no JSON") from None
    whole = JsonObject("certificate", fields if isinstance(fields, dict) else {})
    if whole.text("format") != FORMAT:
        raise Malformed(f"certificate.format: expected {FORMAT!r}")
    claim = whole.record("claim")
    found = Certificate(
        claim.text("words"),
        claim.number("epsilon", 0.0, 1e9),
        claim.number("lower", 0.0, 1e9),
        claim.number("delta", 1e-300, 1.0),
        _composition(whole),
        _composition(whole.record("below")) if "below" in fields else None,
    )
    rounds = claim.whole("units", 1, MOST_COUNT)
    if rounds != found.above.total:
        raise Refuted(f"count: the claim is about {rounds} units, the certificate composes others")
    if found.below is not None and found.below.total > rounds:
        raise Refuted(f"count: the claim is about {rounds} units, its lower end about more")
    if not found.lower <= found.epsilon:
        raise Refuted("claim: the lower end is above the upper one")
    return found


def ball(value: Fraction | int) -> arb:
    value = Fraction(value)
    return arb(fmpq(value.numerator, value.denominator))


def zeros(value: Fraction) -> int:
    """Number of binary zeros behind the point, about."""
    return max(0, value.denominator.bit_length() - value.numerator.bit_length())


def integer(value: arb) -> int:
    """The only whole number in a ball; raises TooLarge if there are several."""
    found = value.unique_fmpz()
    if found is None:
        raise TooLarge("a bound on an index")
    return int(found)


def at_most(value: arb) -> int:
    """Least whole number that is certainly at least the value."""
    return integer(value.upper().ceil())


class Binomial:
    """Bin(draws, prob), prob in (0, 1): probabilities of low, low + 1, ..., high successes, all that are above 2^-bits.

    fewer, more: bounds on Pr[X < low] and Pr[X > high]. excess: bound on E (X - high)_+.
    """

    def __init__(self, draws: int, prob: arb, bits: int) -> None:
        mode = min(max(integer((prob * (draws + 1)).mid().floor()), 0), draws)
        ways = arb(draws + 1).lgamma() - arb(mode + 1).lgamma() - arb(draws - mode + 1).lgamma()
        peak = (ways + mode * prob.log() + (draws - mode) * (1 - prob).log()).exp()
        if not peak.is_finite():
            raise TooLarge
        least, odds = arb(2) ** -bits, prob / (1 - prob)
        up, self.more, self.excess = _beyond(draws, mode, odds, peak, least)
        # Fewer successes are more failures.
        down, self.fewer, _ = _beyond(draws, draws - mode, 1 / odds, peak, least)
        self.low, self.high, self.masses = mode - len(down), mode + len(up), [*down[::-1], peak, *up]
        tails = itertools.accumulate(reversed(self.masses), initial=arb(0).union(self.more))
        self.tails = list(tails)[::-1]

    def tail(self, k: int) -> arb:
        """Pr[X >= k]."""
        if k < self.low:
            return self.tails[0] + arb(0).union(self.fewer)
        return self.tails[min(k - self.low, len(self.masses))]


def _beyond(draws: int, mode: int, odds: arb, peak: arb, least: arb) -> tuple[list[arb], arb, arb]:
    """Probabilities of mode + 1, ... successes down to `least`; bounds on Pr[X > last] and E (X - last)_+."""
    found, value = list[arb](), peak
    for k in range(mode + 1, draws + 1):
        value = value * odds * (draws - k + 1) / k
        # Later ratios are smaller, so a geometric series bounds the tail from above.
        ratio = (odds * (draws - k) / (k + 1)).upper()
        if value < least and ratio < 1:
            return found, value / (1 - ratio), value / (1 - ratio) ** 2
        found.append(value)
    return found, arb(0), arb(0)


class ClonesPair:
    """Pair (P, Q) of `draws` draws, one of them the target's: it shows label 0 or 1 at odds p : 1, or is absent.

    Each draw shows label 0 or label 1 with probability `label` each, is an absence, or a label of equal odds, with
    probability `equal`, and is otherwise no label of the target's. With the numbers N0, N1 and Z of these, w = `weight`
    and B = `constant`,
      dP/dF = (p N0 + N1 + w Z + B) / (draws + B),  dQ/dF = (N0 + p N1 + w Z + B) / (draws + B),
    so that H_c = E (a N0 - b N1 - d (w Z + B))_+ / (draws + B) for a = p - c, b = c p - 1, d = c - 1. Given N = N0 +
    N1, N0 is Bin(N, 1/2), and Z is binomial and independent of N0. The profile is a sum over N and N0, with E (z - Z)_+
    from tables of the law of Z.
    """

    def __init__(
        self, draws: int, label: arb, equal: arb, weight: arb, constant: arb, epsilon0: Fraction, bits: int
    ) -> None:
        self.draws, self.weight, self.constant, self.epsilon0 = draws, weight, constant, epsilon0
        self.p, self.steps = ball(epsilon0).exp(), 0
        self.largest = (self.p * draws + constant) / (draws + constant)
        self.shown = Binomial(draws, 2 * label, bits)
        self.numbers = range(max(self.shown.low, 1), self.shown.high + 1)
        # About 12 standard deviations on either side.
        widths = math.sqrt(self.shown.high) + 2.0 * math.sqrt(draws * float(equal.mid()))
        if len(self.numbers) * widths * math.sqrt(1.4 * bits) > MOST_ENTRIES:
            raise TooLarge
        self.of_rest, half = equal / (1 - 2 * label), arb(1) / 2
        self.fair = {n: Binomial(n, half, bits) for n in range(self.numbers[0] - 1, self.numbers[-1] + 1)}
        self.equal: dict[int, Binomial] = {}
        if equal > 0:
            numbers = range(self.numbers[0], min(self.numbers[-1] + 1, draws) + 1)
            self.equal = {n: Binomial(draws - n, self.of_rest, bits) for n in numbers}

    def _below(self, n: int, z: arb) -> arb:
        """Upper bound on E (z - Z)_+, Z the number of equal odds among draws - n."""
        z = z.upper()
        j = integer(z.floor())
        # E (z - Z)_+ = z - E Z + E (Z - z)_+, and Z Pr[Z] is the mean times the law of one draw fewer.
        over, mean = self.equal[n].tail(j + 1), (self.draws - n) * self.of_rest
        further = self.equal[n + 1].tail(j) if n < self.draws else arb(0)
        return z - mean + mean * further - z * over

    def upper(self, loss: Fraction) -> arb:
        """Ball whose upper end is at least the profile at e^loss, loss >= 0."""
        c, p = ball(loss).exp(), self.p
        if loss >= self.epsilon0 or c > self.largest:
            return arb(0)
        a, b, d = p - c, c * p - 1, c - 1
        both, total = a + b, arb(0)
        self.steps += len(self.numbers)
        for n in self.numbers:
            law = self.fair[n]
            first, mean, some = b * n + d * self.constant, arb(0), arb(0)
            threshold = first / both
            k_full = at_most(threshold)
            # Covers the case that the threshold is just above a whole number.
            some += 2 * both * threshold.rad()
            if loss > 0 and n in self.equal:
                others, each = self.equal[n], d * self.weight
                k_full = at_most((first + each * others.high) / both)
                least = integer(((first + each * others.low) / both).lower().floor()) + 1
                mean = each * (self.draws - n) * self.of_rest
                self.steps += max(min(k_full, law.high) - max(least, law.low), 0)
                for k in range(max(least, law.low), min(k_full - 1, law.high) + 1):
                    some += law.masses[k - law.low] * each * self._below(n, (both * k - first) / each)
                # Contribution beyond the tables of Z, and beyond those of N0 unless `tail` contains it.
                some += each * (others.excess + self.draws * others.fewer)
                some += a * n * (law.more + (law.fewer if least < law.low else 0))
            # Sum of k over k >= k_full is n / 2 times a tail of n - 1.
            if self.steps > MOST_STEPS:
                raise TooLarge
            full = both * n / 2 * self.fair[n - 1].tail(k_full - 1) - (first + mean) * law.tail(k_full)
            total += self.shown.masses[n - self.shown.low] * (full + some)
        more = self.shown.more * self.shown.high + self.shown.excess
        total += a * (more + self.shown.low * self.shown.fewer)
        return total / (self.draws + self.constant)


def _precision(unit: CertificateUnit) -> int:
    """Bits after the point for 2^-60 of the unit's least positive value; sets the precision of balls."""
    bits = 60 + zeros(
        min((value for value in unit.forward + unit.backward if value > 0), default=Fraction(1))
    )
    ctx.prec = PRECISION + bits
    return bits


def of_clones(model: JsonObject, bits: int) -> Callable[[Fraction], arb]:
    """The pair of `draws` draws, each sent with probability `rate`, one used with probability `used`.

    A message shows either record with odds p : 1 among `values` labels; of more than two, the others are as an absence.
    With a total variation every draw is sent, and shows a record with odds p : 1, both p times as likely, or neither.
    """
    draws, used = model.whole("draws", 1, MOST_COUNT), model.number("used", 1e-30, 1.0)
    epsilon0 = model.number("epsilon0", 1e-12, 50.0)
    p = ball(epsilon0).exp()
    if model.text("kind") == "total variation":
        label, weight = ball(model.number("total_variation", 1e-30, 1.0)) / (p - 1), p
        if (p + 1) * label > 1:
            raise Malformed(f"{model.where}.total_variation: too large for this epsilon0")
        equal = ((1 - (p + 1) * label) / p).max(arb(0))
    else:
        rate, values = model.number("rate", 1e-30, 1.0), model.whole("values", 2, 1 << 42)
        label, weight = ball(rate) / (p + values - 1), arb(1)
        equal = ball(1 - rate) + (values - 2) * label
    constant = ball(draws * (1 - used) / used)
    return ClonesPair(draws, label, equal, weight, constant, epsilon0, bits).upper


def shares(masses: list[Fraction], where: str) -> list[Fraction]:
    """The masses divided by their sum."""
    if min(masses) < 0 or not sum(masses):
        raise Malformed(f"{where}: a law with a negative mass, or without any")
    return [mass / sum(masses) for mass in masses]


def of_laws(model: JsonObject, bits: int) -> Callable[[Fraction], arb]:
    """One message, sent with probability `rate`: the largest profile of two of its laws, one for each record."""
    rate, rows = ball(model.number("rate", 1e-30, 1.0)), model.records("laws", MOST_UNITS)
    size = len(rows[0].field("masses", list))
    if len(rows) ** 2 * size > MOST_OUTCOMES:
        raise TooLarge
    laws = [[*map(ball, shares(row.numbers("masses", 0.0, 1.0, size), row.where))] for row in rows]

    def upper(loss: Fraction) -> arb:
        c = ball(loss).exp()
        pairs = itertools.permutations(laws, 2)
        found = (sum(((a - c * b).max(arb(0)) for a, b in zip(*pair)), arb(0)) for pair in pairs)
        return rate * functools.reduce(arb.max, found, arb(0))

    return upper


def of_laplace(model: JsonObject, bits: int) -> Callable[[Fraction], arb]:
    """One number with Laplace noise, sent with probability `rate`, whose values are `epsilon0` scales apart at most."""
    rate, epsilon0 = ball(model.number("rate", 1e-30, 1.0)), model.number("epsilon0", 1e-12, 50.0)
    return lambda loss: rate * (1 - ball((loss - epsilon0) / 2).exp()).max(arb(0))


# By the kind of model.
PROFILES = {"clones": of_clones, "total variation": of_clones, "laws": of_laws, "Laplace": of_laplace}


def check_above(unit: CertificateUnit, spacing: Fraction) -> None:
    """Checks that the profile is not below the exact one at any knot, in both directions."""
    exact = PROFILES[unit.model.text("kind")](unit.model, _precision(unit))
    for i, index in enumerate(unit.knots):
        # The radii of the balls are far below the rounding margin of any accountant.
        given = min(unit.forward[i], unit.backward[i])
        if not exact(index * spacing).upper() <= ball(given):
            raise Refuted(f"{unit.where}: profile at knot {i}: {float(given)!r} is below the exact one")


def sums(model: JsonObject, bits: int) -> tuple[list[int], list[int]]:
    """Laws P and Q of the sum of whole scores of all labels, times 2^bits and rounded down; a sum is an observation.

    Each of `draws` draws is sent with probability `rate`, else its score is 0. A label has the law `others`, but one
    draw's is, with probability `used`, the target's: `other` + `apart` under P, `other` under Q.
    """
    draws, rate = model.whole("draws", 1, MOST_COUNT), model.number("rate", 1e-30, 1.0)
    used = model.number("used", 1e-30, 1.0)
    scores = model.wholes("scores", -MOST_PLACES, MOST_PLACES)
    others, other = (model.numbers(name, 0.0, 1.0, len(scores)) for name in ("others", "other"))
    apart = model.numbers("apart", -1.0, 1.0, len(scores))
    low, high = min(*scores, 0), max(*scores, 0)

    def law(masses: list[Fraction]) -> list[Fraction]:
        """Of the score of a draw, minus `low`."""
        found = [Fraction(0)] * (high - low + 1)
        found[-low] = 1 - rate
        for score, share in zip(scores, shares(masses, model.where)):
            found[score - low] += rate * share
        return found

    def rounded(masses: list[Fraction]) -> fmpz_poly:
        return fmpz_poly([(mass.numerator << bits) // mass.denominator for mass in masses])

    usual = law(others)
    rest, one = fmpz_poly([1 << bits]), rounded(usual)
    for digit in bin(draws - 1)[2:]:
        for factor in (rest, one)[: 1 + int(digit)]:
            rest = _without_zeros(rest * factor // (1 << bits), bits)
    found = []
    for target in ([a + b for a, b in zip(other, apart)], other):
        mixed = [used * mine + (1 - used) * theirs for mine, theirs in zip(law(target), usual)]
        found.append([int(each) for each in (rest * rounded(mixed) // (1 << bits)).coeffs()])
    size = max(map(len, found))
    first, second = (each + [0] * (size - len(each)) for each in found)
    return first, second


def _without_zeros(masses: fmpz_poly, bits: int) -> fmpz_poly:
    """The polynomial divided by the power of x that divides it; P and Q are shifted alike."""
    if 32 * masses.degree() * bits > MOST_WORK:
        raise TooLarge
    coefficients = masses.coeffs()
    return fmpz_poly(coefficients[next((i for i, each in enumerate(coefficients) if each), 0) :])


def check_labels(unit: CertificateUnit, spacing: Fraction) -> None:
    """Checks that each chord of the profile is below a line P(A) - c Q(A), A an event, in both directions."""
    bits = _precision(unit) + 20 + 2 * MOST_PLACES.bit_length() + MOST_COUNT.bit_length()
    ctx.prec += bits
    first, second = sums(unit.model, bits)
    c = [ball(index * spacing).exp() for index in unit.knots]
    for values, p, q in ((unit.forward, first, second), (unit.backward, second, first)):
        curve = Events(p, q, bits)
        for i, slope in enumerate(slopes(values, c, False, unit.where)):
            ends = [(c[j], ball(values[j] * (1 << bits))) for j in (i, i + 1)]
            tried = [curve.of_mass(integer((slope * (1 << bits)).lower().floor()))]
            tried += [curve.beyond(float(unit.knots[j] * spacing)) for j in (i, i + 1)]
            if not any(all(near - at * far >= value for at, value in ends) for near, far in tried):
                raise Refuted(f"{unit.where}: profile at knot {i}: no event is surely as likely")


class Events:
    """(P(A), Q(A)), from below and from above, times 2^bits, of events A of likely outcomes under P."""

    def __init__(self, p: list[int], q: list[int], bits: int) -> None:
        outcomes = [(_log(b) - _log(a), a, b) for a, b in zip(p, q) if a or b]
        outcomes.sort()
        self.order = [minus_loss for minus_loss, _, _ in outcomes]
        self.near = list(itertools.accumulate((a for _, a, _ in outcomes), initial=0))
        # Mass of Q that was rounded away may be anywhere; the empty event has none.
        missing = (1 << bits) - sum(q)
        self.far = [0, *(missing + total for total in itertools.accumulate(b for _, _, b in outcomes))]

    def beyond(self, loss: float) -> tuple[int, int]:
        place = bisect.bisect_left(self.order, -loss)
        return self.near[place], self.far[place]

    def of_mass(self, far: int) -> tuple[int, int]:
        """The event with this probability under Q; it has a part of its last outcome."""
        last = bisect.bisect_right(self.far, far) - 1
        if last == len(self.order):
            return self.near[last], self.far[last]
        part = Fraction(far - self.far[last], self.far[last + 1] - self.far[last])
        return self.near[last] + math.floor(part * (self.near[last + 1] - self.near[last])), far


def _log(mass: int) -> float:
    return math.log(mass) if mass else -math.inf


def slopes(values: list[Fraction], c: list[arb], above: bool, where: str) -> list[arb]:
    """Negative slopes in e^loss between knots, nonincreasing, of a convex function at or above (below) the values."""
    found = []
    for i in range(1, len(values)):
        if values[i] > values[i - 1]:
            raise Refuted(f"{where}[{i}]: the profile rises")
        found.append(ball(values[i - 1] - values[i]) / (c[i] - c[i - 1]))
    if not above:
        return list(itertools.accumulate(found, arb.min))
    found = list(itertools.accumulate(reversed(found), arb.max))[::-1]
    value = ball(values[-1])
    for i in reversed(range(len(found))):
        value = value + found[i] * (c[i + 1] - c[i])
        if value > ball(values[i] * (1 + ROUNDED)):
            raise Refuted(f"{where}[{i}]: the profile is not convex")
    return found


def law_of(unit: CertificateUnit, spacing: Fraction, bits: int, above: bool) -> LossLaw:
    """Law of the loss under P whose hockey-stick divergences are at least (at most) the unit's at every c > 0.

    At c >= 1 the masses at positive losses give the chords of the forward profile. At c < 1 the masses at negative
    losses give c times the chords of the backward profile, plus P's total mass minus c times Q's total mass. This
    suffices above if P's mass is at least 1 and at least Q's mass, and below if it is at most both. So the forward side
    is scaled until its value at c = 1 is at least (at most) the backward one's, and the mass missing to 1 is put at
    loss 0. Rounding up (down) a mass raises (lowers) every divergence.
    """
    c = [ball(index * spacing).exp() for index in unit.knots]
    sides = []
    for name, values in (("forward", unit.forward), ("backward", unit.backward)):
        found = slopes(values, c, above, f"{unit.where}.{name}")
        far = [here - after for here, after in zip(found, [*found[1:], arb(0)])]
        at_one = ball(values[-1]) + sum((s * (c[i + 1] - c[i]) for i, s in enumerate(found)), arb(0))
        sides.append((far, at_one))
    (far, at_one), (below, at_one_below) = sides
    scale = arb(1)
    infinite = ball(unit.forward[-1])
    if not above and (unit.forward[-1] > 0 or unit.backward[-1] > 0):
        raise Refuted(f"{unit.where}: the profile from below is not 0 at the last knot")
    if unit.forward[0] > 0 and unit.forward != unit.backward:
        scale = (at_one_below / at_one).max(arb(1)) if above else (at_one_below / at_one).min(arb(1))
    elif unit.forward[0] == 0 and above:
        infinite = at_one_below
    near = [scale * mass * c[i + 1] for i, mass in enumerate(far)]
    infinite = scale * infinite
    centre = (1 - sum(near, arb(0)) - sum(below, arb(0)) - infinite).max(arb(0))
    whole = arb(2) ** bits
    if not above:
        whole = whole / (sum(near, arb(0)) + sum(below, arb(0))).max(arb(1))
    last = unit.knots[-1]
    masses = [0] * (2 * last + 1)
    masses[last] = _rounded(centre * whole, above)
    for i, index in enumerate(unit.knots[1:]):
        masses[last + index] = _rounded(near[i] * whole, above)
        masses[last - index] = _rounded(below[i] * whole, above)
    return LossLaw(-last, masses, _rounded(infinite * whole, above))


def _rounded(value: arb, above: bool) -> int:
    """A whole number >= 0 that is certainly at least (at most) the value."""
    return max(at_most(value) if above else integer(value.lower().floor()), 0)


def _few(masses: Iterable[int], least: int) -> tuple[int, int]:
    """Number of the first masses that together are at most `least`, and their sum."""
    sums = list(itertools.takewhile(lambda total: total <= least, itertools.accumulate(masses)))
    return len(sums), sums[-1] if sums else 0


class Rounding(NamedTuple):
    """Rounding of products of laws: masses are multiples of 2^-bits, and at most 2^(few - bits) is cut at either end.

    most: most places of a law.
    """

    bits: int
    few: int
    most: int
    above: bool

    def kept(self, masses: list[int], low: int, infinite: int) -> LossLaw:
        """The law without its ends.

        Above: the mass of the upper end moves to infinity, that of the lower end to the first place that is kept.
        Below: the mass of the upper end moves to the last place that is kept, that of the lower end is dropped.
        """
        start, lump = _few(masses, 1 << self.few)
        cut, beyond = _few(reversed(masses), 1 << self.few)
        if start + cut >= len(masses):
            raise Refuted("composition: a law has hardly any mass")
        if len(masses) - start - cut > self.most:
            raise Malformed(f"certificate.spacing: the composition needs more than {self.most} places")
        masses = masses[start : len(masses) - cut]
        masses[0] += lump if self.above else 0
        masses[-1] += 0 if self.above else beyond
        return LossLaw(low + start, masses, infinite + (beyond if self.above else 0))

    def product(self, one: LossLaw, other: LossLaw) -> LossLaw:
        """Law of the sum of two losses, each mass rounded."""
        products = (int(each) for each in (fmpz_poly(one.masses) * fmpz_poly(other.masses)).coeffs())
        a, b = sum(one.masses), sum(other.masses)
        infinite = one.infinite * (b + other.infinite) + a * other.infinite
        up = (1 << self.bits) - 1 if self.above else 0
        masses = [(each + up) >> self.bits for each in products]
        return self.kept(masses, one.low + other.low, (infinite + up) >> self.bits)

    def power(self, law: LossLaw, count: int) -> LossLaw:
        law = self.kept(law.masses, law.low, law.infinite)
        found = law
        for digit in bin(count)[3:]:
            found = self.product(found, found)
            if digit == "1":
                found = self.product(found, law)
        return found


def delta_at(law: LossLaw, epsilon: Fraction, spacing: Fraction, bits: int) -> arb:
    """Sum of mass (1 - e^(epsilon - loss))_+, and the mass at infinity."""
    first = max(math.floor(epsilon / spacing) + 1, law.low)
    above = law.masses[first - law.low :]
    shrink, value = (-ball(spacing)).exp(), arb(0)
    for mass in reversed(above):
        value = value * shrink + mass
    value = value * ball(epsilon - first * spacing).exp()
    return (arb(sum(above)) - value + law.infinite) / arb(2) ** bits


def composed_delta(side: Composition, epsilon: Fraction, delta: Fraction, above: bool) -> arb:
    """Ball of the composed law's delta at epsilon, of laws rounded up, or down."""
    few = 60 + MOST_PLACES.bit_length() - NEGLIGIBLE
    bits = few + NEGLIGIBLE + zeros(delta) + side.total.bit_length()
    ctx.prec = max(PRECISION, 2 * bits)
    laws = [law_of(unit, side.spacing, bits, above) for unit in side.units]
    products = sum(2 * unit.times.bit_length() for unit in side.units)
    rounding = Rounding(bits, few, min(MOST_PLACES, MOST_WORK // (products * bits)), above)
    composed = LossLaw(0, [1 << bits], 0)
    for law, unit in zip(laws, side.units):
        composed = rounding.product(composed, rounding.power(law, unit.times))
    return delta_at(composed, epsilon, side.spacing, bits)


# By the kinds of models from above and from below.
CHECKS = {"above": dict.fromkeys(PROFILES, check_above), "below": {"labels": check_labels}}


def check_profiles(side: Composition, name: str, lines: list[str], trusted: list[str]) -> None:
    """Checks the profiles of all units, and adds to the lines of what holds and to the parts that are trusted."""
    checks = CHECKS[name]
    for unit in side.units:
        kind, size = unit.model.text("kind"), ""
        if kind not in ("trusted", *checks):
            raise Malformed(f"{unit.where}.model.kind: expected 'trusted' or {', '.join(map(repr, checks))}")
        try:
            if kind in checks:
                checks[kind](unit, side.spacing)
        except TooLarge:
            kind, size = "trusted", ", too large to be summed here"
        if kind == "trusted":
            trusted.append(f"the profile from {name} of {unit.times:,} of the units ({unit.bound}){size}")
        else:
            about = f"{unit.times:,} of the units at {len(unit.knots):,} knots"
            lines.append(f"{unit.where}: profile from {name} of {about} holds ({unit.bound})")


def check(found: Certificate) -> tuple[list[str], list[str]]:
    """(lines, trusted): a line for every step that holds, and the names of the parts that are trusted.

    Raises:
      Malformed, Refuted: a limit is exceeded, or a step does not hold.
    """
    lines, trusted = [f"claim: {found.claim}"], list[str]()
    for side, name in zip((found.above, found.below), CHECKS):
        if side is not None:
            check_profiles(side, name, lines, trusted)
    upper, lower = found.above, found.below
    orders = [(upper, found.epsilon, True)]
    if any(unit.forward != unit.backward for unit in upper.units):
        swapped = [unit._replace(forward=unit.backward, backward=unit.forward) for unit in upper.units]
        orders.append((upper._replace(units=swapped), found.epsilon, True))
    if lower is not None:
        orders.append((lower, found.lower, False))
    for side, epsilon, above in orders:
        delta = composed_delta(side, epsilon, found.delta, above)
        bound, end = (delta.upper(), "upper") if above else (delta.lower(), "lower")
        shown = f"{end} end: {side.total:,} units composed have delta {'<=' if above else '>='} {float(bound):.9g}"
        if not (bound <= ball(found.delta) if above else bound >= ball(found.delta)):
            raise Refuted(f"{shown} at epsilon {float(epsilon)!r}, not {float(found.delta)!r}")
        lines.append(f"{shown} at epsilon {float(epsilon)!r}")
    trusted.append(f"that its theorems, its assumptions and these words fit the units: {found.claim!r}")
    if lower is None and found.lower > 0:
        trusted.append("the lower end")
    return lines, trusted


def main(arguments: list[str]) -> int:
    """Exit status: 0 verified, given what is named; 1 refuted; 2 no certificate."""
    if len(arguments) != 1:
        print("usage: python -m checkin_jax.verify FILE")
        return 2
    try:
        with open(arguments[0], "rb") as file:
            text = file.read(MOST_BYTES + 1)
        lines, trusted = check(read(text))
    except OSError as error:
        print(f"not read: {_line(str(error))}")
        return 2
    except Malformed as error:
        print(f"no certificate: {error}")
        return 2
    except Refuted as error:
        print(f"refuted: {error}")
        return 1
    print("\n".join(lines))
    print(f"verified; taken on trust: {'; '.join(trusted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
