"""Independent check of a certificate of `checkin_jax.certificate`; it shares no code with the accountant.

It imports only the standard library and python-flint (`pip install 'checkin-jax[verify]'`):

    python -m checkin_jax.verify FILE

prints one line for each step, and then "verified; taken on trust: ..." or "refuted: ..."; `checkin verify` prints one
line for each of several files. Real numbers are balls (Arb intervals) that contain them. Masses are whole multiples of
2^-bits, each rounded up. docs/guarantees.md describes the contents of a certificate.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from fractions import Fraction
from typing import Any, NamedTuple

from flint import arb, ctx, fmpq, fmpz_poly

PRECISION = 256
# Limits of the size of a certificate; larger ones are refused.
MOST_BYTES, MOST_KNOTS, MOST_UNITS, MOST_COUNT = 1 << 24, 1 << 14, 64, 10**9
MOST_PLACES, MOST_ALL_KNOTS = 1 << 18, 1 << 16
# Most bits of all polynomials of a composition together.
MOST_WORK = 3 * 10**9
# Most entries of a table of binomial laws, and most steps of all exact profiles; beyond them a profile is trusted.
MOST_ENTRIES, MOST_STEPS = 3_000_000, 12_000_000
FLOAT = re.compile(r"-?0x[01](\.[0-9a-f]{1,13})?p[+-][0-9]{1,4}")
# Relative violation of convexity that counts as rounding.
ROUNDED = Fraction(1, 10**9)


class Malformed(Exception):
    """The file is no certificate; the message is one line."""


class Refuted(Exception):
    """A step of the certificate does not hold; the message is one line."""


class TooLarge(Exception):
    """An exact profile would take too long."""


class CertificateUnit(NamedTuple):
    """One kind of unit; losses are `knots` times the spacing, `forward` and `backward` profiles of P||Q and Q||P."""

    bound: str
    model: dict[str, Any]
    times: int
    knots: list[int]
    forward: list[Fraction]
    backward: list[Fraction]


class Certificate(NamedTuple):
    claim: str
    epsilon: Fraction
    lower: Fraction
    delta: Fraction
    spacing: Fraction
    units: list[CertificateUnit]


class LossLaw(NamedTuple):
    """Law of the loss under P: masses at (low + i) times the spacing, and at infinity, times 2^bits, rounded up."""

    low: int
    masses: list[int]
    infinite: int


def _field(where: str, record: Any, name: str, kind: type) -> Any:
    if not isinstance(record, dict) or name not in record:
        raise Malformed(f"{where}: no field {name!r}")
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Malformed(f"{where}.{name}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _whole(where: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Malformed(f"{where}: expected a whole number in [{least}, {most}]")
    return value


def _number(where: str, text: Any, least: float, most: float) -> Fraction:
    if not isinstance(text, str) or not FLOAT.fullmatch(text):
        raise Malformed(f"{where}: expected a hexadecimal float such as '0x1.8p+1'")
    try:
        value = float.fromhex(text)
    except OverflowError:
        value = math.inf
    if not least <= value <= most:
        raise Malformed(f"{where}: expected a number in [{least}, {most}]")
    return Fraction(value)


def _profile(where: str, values: list[Any], size: int) -> list[Fraction]:
    if len(values) != size:
        raise Malformed(f"{where}: expected {size} values, one for each knot")
    return [_number(f"{where}[{i}]", each, 0.0, 2.0) for i, each in enumerate(values)]


def _unit(where: str, record: Any) -> CertificateUnit:
    index = _field(where, record, "knots", list)
    if not 2 <= len(index) <= MOST_KNOTS:
        raise Malformed(f"{where}.knots: expected from 2 to {MOST_KNOTS} knots")
    index = [_whole(f"{where}.knots[{i}]", each, 0, 1 << 40) for i, each in enumerate(index)]
    if index[0] != 0 or any(b <= a for a, b in itertools.pairwise(index)):
        raise Malformed(f"{where}.knots: expected 0 first and then increasing numbers")
    forward = _profile(f"{where}.forward", _field(where, record, "forward", list), len(index))
    backward = _profile(f"{where}.backward", _field(where, record, "backward", list), len(index))
    model = _field(where, record, "model", dict)
    _field(f"{where}.model", model, "kind", str)
    count = _whole(f"{where}.count", record.get("count"), 1, MOST_COUNT)
    return CertificateUnit(_line(_field(where, record, "bound", str)), model, count, index, forward, backward)


def _line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:500])


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
        whole = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON ({type(error).__name__})") from None
    if _field("certificate", whole, "format", str) != "checkin-jax certificate 1":
        raise Malformed("certificate.format: expected 'checkin-jax certificate 1'")
    claim = _field("certificate", whole, "claim", dict)
    units = _field("certificate", whole, "units", list)
    if not 1 <= len(units) <= MOST_UNITS:
        raise Malformed(f"certificate.units: expected from 1 to {MOST_UNITS} units")
    found = Certificate(
        _line(_field("claim", claim, "words", str)),
        _number("claim.epsilon", claim.get("epsilon"), 0.0, 1e9),
        _number("claim.lower", claim.get("lower"), 0.0, 1e9),
        _number("claim.delta", claim.get("delta"), 1e-300, 1.0),
        _number("certificate.spacing", whole.get("spacing"), 1e-12, 1e4),
        [_unit(f"units[{i}]", each) for i, each in enumerate(units)],
    )
    rounds = _whole("claim.units", claim.get("units"), 1, MOST_COUNT)
    if rounds != sum(unit.times for unit in found.units):
        raise Refuted(f"count: the claim is about {rounds} units, the certificate composes others")
    if sum(len(unit.knots) for unit in found.units) > MOST_ALL_KNOTS:
        raise Malformed(f"certificate.units: more than {MOST_ALL_KNOTS} knots")
    if any(unit.knots[-1] * found.spacing > 700 for unit in found.units):
        raise Malformed("certificate.spacing: knots beyond a loss of 700")
    if not found.lower <= found.epsilon:
        raise Refuted("claim: the lower end is above the upper one")
    return found


def ball(value: Fraction | int) -> arb:
    value = Fraction(value)
    return arb(fmpq(value.numerator, value.denominator))


def integer(value: arb) -> int:
    """The only whole number in a ball; raises TooLarge if there are several."""
    found = value.unique_fmpz()
    if found is None:
        raise TooLarge("a bound on an index")
    return int(found)


def at_most(value: arb) -> int:
    """Least whole number that is certainly at least the value."""
    return integer(value.upper().ceil())


class Binomial(NamedTuple):
    """Probabilities of low, low + 1, ... successes; bounds on Pr[X < low], Pr[X > high] and E (X - high)_+."""

    low: int
    masses: list[arb]
    fewer: arb
    more: arb
    excess: arb

    @property
    def high(self) -> int:
        return self.low + len(self.masses) - 1


def binomial(draws: int, prob: arb, bits: int) -> Binomial:
    """Bin(draws, prob) for prob in (0, 1), on the values with probability above 2^-bits."""
    mode = min(max(integer((prob * (draws + 1)).mid().floor()), 0), draws)
    peak = (
        arb(draws + 1).lgamma()
        - arb(mode + 1).lgamma()
        - arb(draws - mode + 1).lgamma()
        + mode * prob.log()
        + (draws - mode) * (1 - prob).log()
    ).exp()
    if not peak.is_finite():
        raise TooLarge
    least, odds = arb(2) ** -bits, prob / (1 - prob)
    up, more, excess = _beyond(draws, mode, odds, peak, least)
    # Fewer successes are more failures.
    down, fewer, _ = _beyond(draws, draws - mode, 1 / odds, peak, least)
    return Binomial(mode - len(down), [*down[::-1], peak, *up], fewer, more, excess)


def _beyond(draws: int, mode: int, odds: arb, peak: arb, least: arb) -> tuple[list[arb], arb, arb]:
    """Probabilities of mode + 1, ... successes down to `least`; bounds on Pr[X > last] and E (X - last)_+."""
    found, value, k = list[arb](), peak, mode
    while k < draws:
        value = value * odds * (draws - k) / (k + 1)
        k += 1
        if value < least:
            # Later ratios are smaller, so a geometric series bounds the tail from above.
            ratio = (odds * (draws - k) / (k + 1)).upper()
            if ratio < 1:
                return found, value / (1 - ratio), value / (1 - ratio) ** 2
        found.append(value)
    return found, arb(0), arb(0)


class BinomialTail:
    """Pr[X >= k] of a binomial law, as balls."""

    def __init__(self, law: Binomial) -> None:
        self.low = law.low
        total = arb(0).union(law.more)
        found = [total]
        for mass in reversed(law.masses):
            total = total + mass
            found.append(total)
        self.values = found[::-1]
        self.below = total + arb(0).union(law.fewer)

    def __call__(self, k: int) -> arb:
        if k < self.low:
            return self.below
        return self.values[min(k - self.low, len(self.values) - 1)]


class ClonesPair:
    """Pair (P, Q) of `draws` draws, one of them the target's: it shows label 0 or 1 at odds p : 1, or is absent.

    Each draw shows label 0 or label 1 with probability `label` each, is absent with probability `absent`, and otherwise
    carries no information. With the numbers N0, N1 and Z of these, and B = `constant`,
      dP/dF = scale (p N0 + N1 + Z + B) / draws,  dQ/dF = scale (N0 + p N1 + Z + B) / draws,
    so that H_c = scale / draws E (a N0 - b N1 - d (Z + B))_+ for a = p - c, b = c p - 1, d = c - 1. Given N = N0 + N1,
    N0 is Bin(N, 1/2), and Z is binomial and independent of N0. The profile is a sum over N and N0, with E (z - Z)_+
    from tables of the law of Z.
    """

    def __init__(
        self, draws: int, label: arb, absent: arb, constant: arb, scale: arb, epsilon0: Fraction, bits: int
    ):
        self.draws, self.constant, self.scale, self.epsilon0 = draws, constant, scale, epsilon0
        self.p, self.steps = ball(epsilon0).exp(), 0
        self.largest = (self.p * draws + constant) / (draws + constant)
        self.shown = binomial(draws, 2 * label, bits)
        low, high = self.shown.low, self.shown.high
        self.numbers = range(max(low, 1), high + 1)
        with_absent = absent > 0
        of_rest = absent / (1 - 2 * label)
        # About 12 standard deviations on either side.
        widths = math.sqrt(high) + (2.0 * math.sqrt(draws * float(absent.mid())) if with_absent else 0.0)
        if len(self.numbers) * widths * math.sqrt(1.4 * bits) > MOST_ENTRIES:
            raise TooLarge
        half = arb(1) / 2
        self.fair = {n: binomial(n, half, bits) for n in range(max(low, 1), high + 1)}
        self.tails = {n: BinomialTail(law) for n, law in self.fair.items()}
        self.tails[low - 1 if low > 1 else 0] = BinomialTail(binomial(max(low - 1, 0), half, bits))
        self.absent: dict[int, Binomial] = {}
        self.lacking: dict[int, BinomialTail] = {}
        self.mean: dict[int, arb] = {}
        if with_absent:
            for n in range(max(low, 1), min(high + 1, draws) + 1):
                self.absent[n] = binomial(draws - n, of_rest, bits)
                self.lacking[n] = BinomialTail(self.absent[n])
                self.mean[n] = (draws - n) * of_rest

    def _below(self, n: int, z: arb) -> arb:
        """Upper bound on E (z - Z)_+, Z the number of absent draws among draws - n."""
        z = z.upper()
        j = integer(z.floor())
        # E (z - Z)_+ = z - E Z + E (Z - z)_+, and Z Pr[Z] is the mean times the law of one draw fewer.
        over = self.lacking[n](j + 1)
        further = self.lacking[n + 1](j) if n < self.draws else arb(0)
        return z - self.mean[n] + self.mean[n] * further - z * over

    def upper(self, loss: Fraction) -> arb:
        """Ball whose upper end is at least the profile at e^loss, loss >= 0."""
        c, p = ball(loss).exp(), self.p
        if loss >= self.epsilon0 or c > self.largest:
            return arb(0)
        a, b, d = p - c, c * p - 1, c - 1
        both, total = a + b, arb(0)
        self.steps += len(self.numbers)
        for n in self.numbers:
            law, tail, fewer = self.fair[n], self.tails[n], self.tails[n - 1]
            first, mean, some = b * n + d * self.constant, arb(0), arb(0)
            threshold = first / both
            k_full = at_most(threshold)
            # Covers the case that the threshold is just above a whole number.
            some += 2 * both * threshold.rad()
            if loss > 0 and n in self.absent:
                others = self.absent[n]
                k_full = at_most((first + d * others.high) / both)
                least = integer(((first + d * others.low) / both).lower().floor()) + 1
                mean = d * self.mean[n]
                self.steps += max(min(k_full, law.high) - max(least, law.low), 0)
                for k in range(max(least, law.low), min(k_full - 1, law.high) + 1):
                    some += law.masses[k - law.low] * d * self._below(n, (both * k - first) / d)
                # Contribution beyond the tables of Z, and beyond those of N0 unless `tail` contains it.
                some += d * (others.excess + self.draws * others.fewer)
                some += a * n * (law.more + (law.fewer if least < law.low else 0))
            # Sum of k over k >= k_full is n / 2 times a tail of n - 1.
            if self.steps > MOST_STEPS:
                raise TooLarge
            full = both * n / 2 * fewer(k_full - 1) - (first + mean) * tail(k_full)
            total += self.shown.masses[n - self.shown.low] * (full + some)
        more = self.shown.more * self.shown.high + self.shown.excess
        total += a * (more + self.shown.low * self.shown.fewer)
        return total * self.scale / self.draws


def model(unit: CertificateUnit, where: str) -> ClonesPair | None:
    """Model of the unit's exact profile; None if the certificate names only a bound, which is then trusted."""
    kind, about = unit.model["kind"], unit.model

    def number(name: str, least: float, most: float) -> Fraction:
        return _number(f"{where}.model.{name}", about.get(name), least, most)

    positive = [value for value in unit.forward + unit.backward if value > 0]
    smallest = min(positive, default=Fraction(1))
    bits = 60 + max(0, smallest.denominator.bit_length() - smallest.numerator.bit_length())
    ctx.prec = PRECISION + bits
    if kind == "trusted":
        return None
    epsilon0 = number("epsilon0", 1e-12, 50.0)
    p = ball(epsilon0).exp()
    if kind == "shuffled":
        draws = _whole(f"{where}.model.clients", about.get("clients"), 1, 10**9)
        rate = number("rate", 1e-30, 1.0)
        absent = ball(1 - rate)
        return ClonesPair(draws, ball(rate) / (p + 1), absent, arb(0), arb(1), epsilon0, bits)
    if kind == "slots":
        draws = _whole(f"{where}.model.slots", about.get("slots"), 1, 10**9)
        used = number("used", 1e-30, 1.0)
        constant = ball(draws * (1 - used) / used)
        return ClonesPair(draws, 1 / (p + 1), arb(0), constant, ball(used), epsilon0, bits)
    raise Malformed(f"{where}.model.kind: expected 'shuffled', 'slots' or 'trusted'")


def check_profile(unit: CertificateUnit, spacing: Fraction, where: str) -> str:
    """Checks the profile at every knot in both directions; returns the name of a part that is trusted, or ""."""
    trusted = f"the profile of {where} ({unit.bound})"
    try:
        exact = model(unit, where)
        if exact is None:
            return trusted
        for i, index in enumerate(unit.knots):
            # The radii of the balls are far below the rounding margin of any accountant.
            given = min(unit.forward[i], unit.backward[i])
            if not exact.upper(index * spacing).upper() <= ball(given):
                raise Refuted(
                    f"{where}: profile at knot {i}: the exact one is not surely below {float(given)!r}"
                )
    except TooLarge:
        return f"{trusted}, too large to be summed here"
    return ""


def slopes(values: list[Fraction], c: list[arb], where: str) -> list[arb]:
    """Negative slopes in e^loss between knots, nonincreasing, of a convex function at or above the values."""
    found = []
    for i in range(1, len(values)):
        if values[i] > values[i - 1]:
            raise Refuted(f"{where}[{i}]: the profile rises")
        found.append(ball(values[i - 1] - values[i]) / (c[i] - c[i - 1]))
    value = ball(values[-1])
    for i in reversed(range(len(found))):
        if i + 1 < len(found):
            found[i] = found[i].max(found[i + 1])
        value = value + found[i] * (c[i + 1] - c[i])
        if value > ball(values[i] * (1 + ROUNDED)):
            raise Refuted(f"{where}[{i}]: the profile is not convex")
    return found


def law_of(unit: CertificateUnit, spacing: Fraction, bits: int, where: str) -> LossLaw:
    """Law of the loss under P whose hockey-stick divergences are at least the unit's at every c > 0.

    At c >= 1 the masses at positive losses give the chords of the forward profile. At c < 1 the masses at negative
    losses give c times the chords of the backward profile, plus P's total mass minus c times Q's total mass. This
    suffices if P's mass is at least 1 and at least Q's mass. So the forward side is scaled until its value at c = 1 is
    at least the backward one's, and the mass missing to 1 is put at loss 0. Rounding up a mass raises every divergence.
    """
    c = [ball(index * spacing).exp() for index in unit.knots]
    sides = []
    for name, values in (("forward", unit.forward), ("backward", unit.backward)):
        found = slopes(values, c, f"{where}.{name}")
        far = [here - after for here, after in zip(found, [*found[1:], arb(0)])]
        at_one = ball(values[-1]) + sum((s * (c[i + 1] - c[i]) for i, s in enumerate(found)), arb(0))
        sides.append((far, at_one))
    (far, at_one), (below, at_one_below) = sides
    scale = arb(1)
    infinite = ball(unit.forward[-1])
    if unit.forward[0] > 0 and unit.forward != unit.backward:
        scale = (at_one_below / at_one).max(arb(1))
    elif unit.forward[0] == 0:
        infinite = at_one_below
    near = [scale * mass * c[i + 1] for i, mass in enumerate(far)]
    infinite = scale * infinite
    centre = (1 - sum(near, arb(0)) - sum(below, arb(0)) - infinite).max(arb(0))
    whole = arb(2) ** bits
    last = unit.knots[-1]
    if 2 * last + 1 > MOST_PLACES:
        raise Malformed(f"{where}.knots: more than {MOST_PLACES} places")
    masses = [0] * (2 * last + 1)
    masses[last] = at_most(centre * whole)
    for i, index in enumerate(unit.knots[1:]):
        masses[last + index] = max(at_most(near[i] * whole), 0)
        masses[last - index] = max(at_most(below[i] * whole), 0)
    return LossLaw(-last, masses, at_most(infinite * whole))


def window(
    laws: list[LossLaw], counts: list[int], spacing: float, bits: int, claim: Certificate
) -> tuple[int, int]:
    """First and last place of the window, by Chernoff's bound in plain floats; every window is sound."""
    epsilon, log_far = float(claim.epsilon), math.log(claim.delta) - 30.0
    atoms = []
    for law in laws:
        scaled = [(law.low + i, mass / (1 << bits)) for i, mass in enumerate(law.masses) if mass]
        atoms.append([(place * spacing, math.log(mass)) for place, mass in scaled if mass > 0.0])
    best = math.inf
    for step in range(48):
        t = 0.05 * 1.3**step
        total = 0.0
        for count, some in zip(counts, atoms):
            terms = [t * loss + log_mass for loss, log_mass in some]
            most = max(terms)
            total += count * (most + math.log(sum(math.exp(each - most) for each in terms)))
        best = min(best, (total - log_far) / t)
    high = max(best, epsilon + spacing) + spacing
    low = -(high - epsilon) - spacing
    if not (high - low) / spacing < MOST_PLACES:
        raise Malformed(f"certificate.spacing: the composition needs more than {MOST_PLACES} places")
    return math.floor(low / spacing), math.ceil(high / spacing)


def raised(masses: list[int], low: int, infinite: int, kept: tuple[int, int]) -> LossLaw:
    """The law in this window: mass above it moves to infinity, mass below it to its first place."""
    first, last = kept
    if low + len(masses) - 1 > last:
        cut = max(last - low + 1, 0)
        infinite += sum(masses[cut:])
        masses = masses[:cut]
    if low < first and masses:
        cut = min(first - low, len(masses))
        lump = sum(masses[:cut])
        masses = masses[cut:] or [0]
        masses[0] += lump
        low = first
    return LossLaw(low, masses or [0], infinite)


def product(one: LossLaw, other: LossLaw, bits: int, kept: tuple[int, int]) -> LossLaw:
    """Law of the sum of two losses, each mass rounded up."""
    masses = [int(each) for each in (fmpz_poly(one.masses) * fmpz_poly(other.masses)).coeffs()]
    a, b = sum(one.masses), sum(other.masses)
    infinite = one.infinite * (b + other.infinite) + a * other.infinite
    wide = raised(masses, one.low + other.low, infinite, kept)
    return LossLaw(wide.low, [-(-each >> bits) for each in wide.masses], -(-wide.infinite >> bits))


def power(law: LossLaw, count: int, bits: int, kept: tuple[int, int]) -> LossLaw:
    law = raised(law.masses, law.low, law.infinite, kept)
    found = law
    for digit in bin(count)[3:]:
        found = product(found, found, bits, kept)
        if digit == "1":
            found = product(found, law, bits, kept)
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


def check(text: bytes) -> tuple[list[str], list[str]]:
    """(lines, trusted): a line for every step that holds, and the names of the parts that are trusted.

    Raises:
      Malformed, Refuted: the bytes are no certificate, or a step does not hold.
    """
    ctx.prec = PRECISION
    found = read(text)
    lines, trusted = [f"claim: {found.claim}"], []
    for i, unit in enumerate(found.units):
        where = f"units[{i}]"
        on_trust = check_profile(unit, found.spacing, where)
        if on_trust:
            trusted.append(on_trust)
        else:
            lines.append(
                f"{where}: profile of {unit.times:,} units at {len(unit.knots):,} knots holds ({unit.bound})"
            )
    counts = [unit.times for unit in found.units]
    small = max(0, found.delta.denominator.bit_length() - found.delta.numerator.bit_length())
    bits = 60 + small + sum(counts).bit_length() + MOST_PLACES.bit_length()
    ctx.prec = max(PRECISION, 2 * bits)
    orders = [found.units]
    if any(unit.forward != unit.backward for unit in found.units):
        orders.append([unit._replace(forward=unit.backward, backward=unit.forward) for unit in found.units])
    for units in orders:
        laws = [law_of(unit, found.spacing, bits, f"units[{i}]") for i, unit in enumerate(units)]
        kept = window(laws, counts, float(found.spacing), bits, found)
        products = sum(2 * count.bit_length() for count in counts)
        if products * bits * (kept[1] - kept[0]) > MOST_WORK:
            raise Malformed("certificate: too large to be composed here")
        composed = LossLaw(0, [1 << bits], 0)
        for law, count in zip(laws, counts):
            composed = product(composed, power(law, count, bits, kept), bits, kept)
        delta = delta_at(composed, found.epsilon, found.spacing, bits)
        shown = f"{sum(counts):,} units composed have delta <= {float(delta.upper()):.9g}"
        if not delta.upper() <= ball(found.delta):
            raise Refuted(
                f"epsilon: {shown} at epsilon {float(found.epsilon)!r}, more than {float(found.delta)!r}"
            )
        lines.append(f"knots are convex, and {shown} at epsilon {float(found.epsilon)!r}")
    trusted.append("that the words of the claim and its theorems fit the units")
    if found.lower > 0:
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
        lines, trusted = check(text)
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
