"""Table of bounds: one row a theorem, with its word, cost, assumptions and builder.

`WORDS` has the nine words for bounds, each with a sentence and the pages of its proof. A row of `BOUNDS` is one theorem
of these pages, with its cases. Its builder reads facts of protocol and randomizer, and returns None where a hypothesis
fails. `select` takes the pointwise minimum of all bounds that apply. No other module depends on which protocol or
randomizer it has.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.interface import UnitBound, upper_sides
from checkin_jax.accounting.bounds.unequal import populations
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import (
    common_slots,
    gaussian_slots,
    sliding_windows,
)
from checkin_jax.rates import RateLimits

# Bounds that cost less (seconds of one core, once compiled) are "fast".
FAST = 0.06
# Losses at which a registered bound is checked, and the largest of them.
_CHECKED, _LAST_CHECKED = 33, 60.0

# More clients leave fewer empty slots.
_COUNTED = "the stated number of clients is exact; a lower bound on it is not enough"
# A lower rate leaves more slots empty, and less noise in a sum.
_STATED_RATE = "clients take part with exactly the stated probability; an upper bound on it is not enough"
_STATED_NOISE = (
    f"{_STATED_RATE}, and drop-outs count as not taking part: fewer messages bring less noise into a sum"
)
# A message that depends on another of the same sum moves it a second time; of slots nobody sees less than a sum.
_NOT_ADAPTIVE = "no client's message depends on another message of the same round"
_BALL = "every client clips its update to the same ball"
_SAME_BALL = f"{_BALL}, and no update depends on a message of the same round"

# Word -> sentence and reference.
WORDS: dict[str, tuple[str, str]] = {
    "clones": (
        "every eps0-LDP message is, with some probability, a clone of the client's own message; the bound counts "
        "clones",
        "docs/theory.md, docs/theory_mechanisms.md, docs/theory_rates.md; the privacy blanket of [BBGN19] with convex "
        "order, [FMT23]",
    ),
    "hexagon": (
        "the worst case over all laws that the likelihood ratios of eps0-LDP messages can have, chosen message by "
        "message",
        "docs/theory.md, docs/theory_hexagon.md, docs/theory_rates.md",
    ),
    "own-laws": (
        "the worst case over the laws of likelihood ratios of this one mechanism, chosen message by message: every "
        "other client holds the record that hides the client least",
        "docs/theory_mechanisms.md, docs/theory_hexagon.md, docs/theory_rates.md",
    ),
    "profile": (
        "the worst case over all laws of likelihood ratios that the privacy profile of one message allows, chosen "
        "message by message",
        "docs/theory_gaussian.md, docs/theory.md, docs/theory_hexagon.md, docs/theory_mechanisms.md, "
        "docs/theory_allocation.md, docs/theory_rates.md",
    ),
    "gaussian-cover": (
        "two laws replace the worst case over all laws of likelihood ratios: every other client's Gaussian message is "
        "below a mixture of the two in convex order",
        "docs/theory_gaussian.md",
    ),
    "everybody": (
        "if all clients send, a few messages count as dummies that depend on no record, and the others as a sample of "
        "the clients; or the laws of messages are cut where the likelihood ratio is large",
        "docs/theory_gaussian.md, docs/theory_shuffle.md; compare [BBGN19], Section 5",
    ),
    "subsampling": (
        "the client's message is used with some probability, by itself or in a sum whose noise adds up; other "
        "messages are not counted as hiding it",
        "docs/theory_gaussian.md, docs/theory_mechanisms.md, docs/theory_allocation.md, docs/theory_rates.md; "
        "[BBG18], Theorem 2",
    ),
    "allocation": (
        "a Gaussian message is in one of several slots, hidden among dummies, empty slots and other clients",
        "docs/theory_allocation.md; random allocation is [FS25]",
    ),
    "two-steps": (
        "replacing a record is composed of two steps: from one record to no message of the client, and from there to "
        "the other record",
        "docs/theory_allocation.md",
    ),
}


@dataclasses.dataclass(frozen=True)
class Bound:
    """A theorem as the accountant uses it.

    `build` returns a `checkin_jax.accounting.bounds.interface.UnitBound`. Its `name` contains the word, and its
    `witnesses` may be empty. `upper(loss)` takes losses >= 0 in nats, of any shape. Its values are upper
    bounds, in both directions, on the hockey-stick divergence of one unit at e^loss.

    Attributes:
      word: name in `bounds=`, `method` and statements.
      statement: the claim, in one sentence.
      reference: pages of the proof, and source of the idea.
      seconds: approximate cost of one unit, once compiled.
      build: the bound on a unit, or None where a hypothesis fails.
      caveat: warning about a unit that has no other bound; empty for none.
      assumes: assumptions besides the protocol's own.
      assumes_of_sums: further assumptions where sums with accumulated noise are observed.
      assumes_of: further assumptions that depend on the unit.
      theorem: labels in the proofs of its cases, of which one at most applies.
    """

    word: str
    statement: str
    reference: str
    seconds: float
    build: Callable[[Unit], UnitBound | None]
    caveat: Callable[[Unit], str] | None = None
    assumes: tuple[str, ...] = ()
    assumes_of_sums: tuple[str, ...] = ()
    assumes_of: Callable[[Unit], tuple[str, ...]] | None = None
    theorem: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels in the proofs."""
        return tuple(self.theorem.split())

    @property
    def stated(self) -> str:
        """Word, sentence and reference, as statements print them."""
        return f"{self.word}: {self.statement} [{self.reference}]"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        """Assumptions about this unit besides the protocol's own."""
        theirs = self.assumes_of(unit) if self.assumes_of is not None else ()
        found = (*self.assumes, *theirs, *(self.assumes_of_sums if unit.sums_noise else ()))
        # The stated rate is 1 where the protocol's own assumption says that everybody sends.
        known = (_STATED_RATE, _STATED_NOISE) if unit.protocol.all_send else ()
        return tuple(text for text in found if text not in known)

    def on(self, unit: Unit) -> Bound:
        """The row with its assumptions about this unit, for a unit that is a post-processing of it."""
        return dataclasses.replace(
            self, caveat=None, assumes=self.needs(unit), assumes_of_sums=(), assumes_of=None
        )


def _row(
    word: str, theorem: str, seconds: float, build: Callable[[Unit], UnitBound | None], **more: Any
) -> Bound:
    return Bound(word, *WORDS[word], seconds, build, theorem=theorem, **more)


def _only_subsampling(unit: Unit) -> str:
    """Caveat of subsampling as the only bound; empty where no other bound is known."""
    if unit.sums_noise or not unit.replaced:
        return ""
    if unit.slots is not None:
        observed = "sums of slots" if unit.summed_slots else "messages"
        return f"only subsampling was used; where profile and two-steps apply, they may be far smaller for {observed}"
    if unit.view == "aggregate":
        return (
            "subsampling counts no gain from shuffling or from summation; the true epsilon may be far smaller"
        )
    return "subsampling counts no gain from shuffling; the true epsilon may be far smaller, as the lower end shows"


def _of_everybody(unit: Unit) -> tuple[str, ...]:
    """Two laws serve one bit and Gaussian messages, unless slots are averaged; the ball is that of noise alone."""
    adaptive, gaussian = (
        unit.protocol.averaged_slot_choices is not None,
        unit.randomizer.gaussian_mu is not None,
    )
    if gaussian:
        return (_BALL,) if adaptive else (_SAME_BALL,)
    return () if adaptive or unit.randomizer.one_bit is None else (_NOT_ADAPTIVE,)


def _of_others_dummies(unit: Unit) -> tuple[str, ...]:
    """Gaussian dummies are noise alone, at the centre of the ball."""
    return (_NOT_ADAPTIVE,) if unit.randomizer.gaussian_mu is None else (_SAME_BALL,)


def _of_rivals(unit: Unit) -> tuple[str, ...]:
    """The stated rate is assumed where clients choose among common slots: each message is used against its rivals."""
    slots = unit.slots
    common = slots is not None and slots.contested and unit.protocol.used_slot_choices is not None
    return (_STATED_RATE,) if common else ()


def _of_hidden_rivals(unit: Unit) -> tuple[str, ...]:
    """The same, where other clients compete for slots with hidden dummies, beside colluders too."""
    slots, known = unit.slots, unit.protocol.known_slots
    if known is not None and known.others:
        return (_STATED_RATE,)
    return _of_rivals(unit) if slots is not None and slots.hidden and slots.num_rivals else ()


def _of_fair_dummies(unit: Unit) -> tuple[str, ...]:
    """The same, and the stated number of clients where slots are known to hold dummies that are fair bits."""
    slots, found = unit.slots, _of_hidden_rivals(unit)
    fair = slots is not None and slots.hidden and theorems.fair_dummies(unit)
    return (*found, _COUNTED) if fair else found


def _of_common_slots(unit: Unit) -> tuple[str, ...]:
    """More clients than are stated displace each other more often, at twice the distance of a dummy."""
    return (_COUNTED,) if unit.protocol.used_slot_choices is not None else ()


def _of_few_clients(unit: Unit) -> tuple[str, ...]:
    """The stated number is assumed where some slots of a common window are known to hold dummies."""
    slots = unit.slots
    return _of_common_slots(unit) if slots is not None and slots.num_rivals < slots.number else ()


def _of_competitors(unit: Unit) -> tuple[str, ...]:
    """The stated number, and rates unless only limits on them are known: others may be displaced, or hide who is."""
    chosen = unit.protocol.unequal_used_slot_choices
    limited = chosen is not None and isinstance(chosen.unequal_rates, RateLimits)
    return (_COUNTED,) if limited else (_COUNTED, _STATED_RATE)


def _of_slots(unit: Unit) -> tuple[str, ...]:
    """The stated rate is assumed where sums count on a message in every slot: an empty one brings no noise."""
    slots = unit.slots
    if not unit.replaced:
        return _of_common_slots(unit)
    return (_STATED_NOISE,) if unit.summed_slots and slots is not None and not slots.hidden else ()


BOUNDS: tuple[Bound, ...] = (
    _row("clones", "T1 T1h T2 T3 T3h", 0.02, theorems.clones),
    _row("hexagon", "T1+ T1h+ T2+ T2d", 0.5, theorems.hexagon, assumes_of=_of_hidden_rivals),
    _row("everybody", "E+", 0.5, theorems.e_plus, assumes_of=_of_everybody),
    _row("everybody", "E+'", 0.5, theorems.e_plus_of_others, assumes_of=_of_others_dummies),
    _row("hexagon", "T2++", 0.3, theorems.t2_plus_plus, assumes=(_STATED_RATE,)),
    _row("hexagon", "Td", 0.5, theorems.t_delta, assumes_of=_of_hidden_rivals),
    _row("clones", "T2' T2'h", 0.05, theorems.t2_prime),
    _row("clones", "A", 0.05, theorems.total_variation),
    _row("own-laws", "t_k", 0.05, theorems.t_k),
    _row("own-laws", "B0 B0h", 0.6, theorems.b0, assumes=(_NOT_ADAPTIVE,)),
    _row("own-laws", "B", 0.5, theorems.own_laws, assumes_of=_of_fair_dummies),
    _row("profile", "T*", 0.7, theorems.t_star),
    _row("profile", "T*' T*'h", 0.7, theorems.t_star_averages, assumes=(_NOT_ADAPTIVE, _STATED_NOISE)),
    _row("gaussian-cover", "T** T**h", 3.0, theorems.t_two, assumes=(_SAME_BALL,)),
    _row(
        "subsampling",
        "G1 G1h",
        0.03,
        theorems.g1,
        caveat=_only_subsampling,
        assumes_of_sums=(_NOT_ADAPTIVE, _STATED_NOISE),
    ),
    _row("subsampling", "", 1.0, theorems.message_sums, assumes=(_NOT_ADAPTIVE, _STATED_NOISE)),
    _row("everybody", "G2", 0.05, theorems.g2),
    _row("subsampling", "R1 R1'", 0.02, gaussian_slots.r1, caveat=_only_subsampling, assumes_of=_of_slots),
    _row("two-steps", "R2", 0.5, gaussian_slots.r2, assumes_of=_of_slots),
    _row("profile", "R3 T2r", 0.5, gaussian_slots.r3, assumes_of=_of_rivals),
    _row("profile", "R3", 0.5, gaussian_slots.r3_of_sums, assumes=(_NOT_ADAPTIVE,), assumes_of=_of_rivals),
    _row("profile", "R3", 0.2, theorems.small_window),
    _row("allocation", "G3", 0.05, gaussian_slots.g3, assumes_of=_of_few_clients),
    _row("allocation", "G3'", 0.05, gaussian_slots.g3_prime, assumes=(_COUNTED, _STATED_RATE)),
    _row("allocation", "G5 R4", 0.5, common_slots.g5, assumes_of=_of_competitors),
    _row("allocation", "G7", 1.0, common_slots.g7, assumes=(_COUNTED, _STATED_RATE)),
    _row("allocation", "R5", 3.0, sliding_windows.r5),
    _row("allocation", "G9", 1.0, sliding_windows.g9),
    _row("two-steps", "R7", 1.0, sliding_windows.r7),
    _row("subsampling", "G4 G4h", 0.02, theorems.g4, assumes=(_NOT_ADAPTIVE, _STATED_NOISE)),
    _row("clones", "S", 0.03, populations.s),
    _row("clones", "T1m", 0.2, populations.t1m, assumes=(_NOT_ADAPTIVE,)),
    _row("profile", "R3c", 1.0, populations.r3c, assumes_of=_of_hidden_rivals),
    _row("profile", "T*h", 3.0, populations.t_star_h),
)


def words() -> tuple[str, ...]:
    """Words of all bounds, registered ones last."""
    return tuple(dict.fromkeys([*WORDS, *(bound.word for bound in BOUNDS)]))


def word_of(label: str) -> str | None:
    """Word for a label of the proofs, which `bounds=` took before version 0.3; None if unknown."""
    return next((bound.word for bound in BOUNDS if label in bound.labels), None)


def register(bound: Bound) -> Callable[[], None]:
    """Adds a bound to those that `account` tries in this process. Its proof is not checked.

    `account` raises ArithmeticError if the upper end falls below the leakage of a witness at the requested delta. A
    bound that is false elsewhere is not detected. Register before the first call of `account`, in every process.

    Args:
      bound: its word is a single word that no other bound has.

    Returns:
      A function that removes the bound.

    Raises:
      TypeError: `bound` is no `Bound`.
      ValueError: its word is taken, or is not a single word. Later, of `account`: its values are NaN or negative, or
        positive at its largest loss.
    """
    global BOUNDS
    if not isinstance(bound, Bound):
        raise _validate.type_error("a Bound", bound=bound)
    if bound.word in (*words(), "best", "fast") or not re.fullmatch(r"[^\s,;()]+", bound.word):
        raise _validate.error(f"one word that is none of {', '.join(words())}", word=bound.word)

    def build(unit: Unit) -> UnitBound | None:
        made = bound.build(unit)
        if made is not None:
            _check_values(bound.word, made)
        return made

    row = dataclasses.replace(bound, build=build)
    BOUNDS = (*BOUNDS, row)

    def remove() -> None:
        global BOUNDS
        BOUNDS = tuple(each for each in BOUNDS if each is not row)

    return remove


def _check_values(word: str, made: UnitBound) -> None:
    """Raises ValueError if the values of a registered bound are no bounds at sample losses."""
    last = made.largest_loss
    if not last >= 0.0:
        raise ValueError(f"bound {word!r}: largest_loss={last!r}: expected a number of at least 0")
    losses = min(last, _LAST_CHECKED) * np.linspace(0.0, 1.0, _CHECKED)
    for values in map(np.asarray, upper_sides(made, losses)):
        if values.shape != losses.shape or not np.all(values >= 0.0):
            raise ValueError(f"bound {word!r}: expected a number of at least 0 for each loss")
        if last <= _LAST_CHECKED and values[-1] > 0.0:
            raise ValueError(
                f"bound {word!r}: expected 0 at largest_loss={last!r}, not {values[-1].item()!r}"
            )
