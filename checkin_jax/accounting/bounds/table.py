"""The table of bounds: which theorem serves which unit, by what it needs to know.

`BOUNDS` is the one place where a theorem is added: a label, a sentence, a reference, its cost, and a builder that reads
facts of protocol and randomizer and returns None where a hypothesis fails. `choice` takes the smallest of all that
apply at every loss. Nothing else in the package asks which protocol or randomizer it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from checkin_jax.accounting.bounds import families
from checkin_jax.accounting.bounds.facts import Unit
from checkin_jax.accounting.bounds.staged import OWN_LAWS
from checkin_jax.accounting.bounds.unequal import builders
from checkin_jax.accounting.bounds.unit import (
    UnitBound,
)
from checkin_jax.accounting.bounds.windows import among, competitors, sliding, slots, thrown

# Bounds that take less, in seconds of one core once compiled, are "fast".
FAST = 0.06

_SAMPLE = "docs/theory.md; the privacy blanket of [BBGN19] with convex order"
# More clients leave fewer empty slots to hide in.
_COUNTED = "the number of clients is as stated, no lower bound on it"
# Of clients that take part less often more slots are empty, and less noise adds up.
_STATED_RATE = "clients take part as often as is stated, not less"
_STATED_NOISE = (
    f"{_STATED_RATE}, drop-outs included: noise adds up in sums, and fewer messages bring less of it"
)
_UNEQUAL = "docs/theory_rates.md"


@dataclasses.dataclass(frozen=True)
class Bound:
    """A theorem as the accountant uses it.

    Attributes:
      label: its name in the documentation.
      statement: what it states, in one sentence.
      of_sums: the same where sums are seen whose noise adds up, if that is another sentence.
      assumes_of_sums: what it needs besides there.
      reference: where it is proved, and whose idea it is.
      seconds: about what one unit costs, once compiled.
      build: the bound on a unit, or None where a hypothesis fails.
      caveat: what a reader should be told of a unit for which no other bound was used; empty for nothing.
      assumes: what the theorem needs besides the protocol's own assumptions.
      assumes_of: the same, where it depends on the unit.
    """

    label: str
    statement: str
    reference: str
    seconds: float
    build: Callable[[Unit], UnitBound | None]
    caveat: Callable[[Unit], str] | None = None
    assumes: tuple[str, ...] = ()
    of_sums: str = ""
    assumes_of_sums: tuple[str, ...] = ()
    assumes_of: Callable[[Unit], tuple[str, ...]] | None = None

    def stated(self, unit: Unit) -> str:
        """Label, sentence and reference, as a statement about such a unit prints them."""
        sentence = self.of_sums if unit.sums_noise and self.of_sums else self.statement
        return f"{self.label}: {sentence} [{self.reference}]"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        """What it needs besides the protocol's own assumptions, for such a unit."""
        theirs = self.assumes_of(unit) if self.assumes_of is not None else ()
        return (*self.assumes, *theirs, *(self.assumes_of_sums if unit.sums_noise else ()))


def _nothing_from_shuffling(label: str) -> Callable[[Unit], str]:
    def caveat(unit: Unit) -> str:
        if unit.sums_noise:
            return ""
        if unit.view == "aggregate":
            return f"{label} counts no gain from shuffling or from adding messages up; the truth may be far below"
        return f"{label} counts no gain from shuffling; the truth may be far below, as the lower end shows"

    return caveat


def _r1_caveat(unit: Unit) -> str:
    seen = "sums of slots" if unit.summed_slots else "messages"
    return f"only subsampling is counted; R2 and R3 for {seen}, where they apply, may be far below"


def _of_own_laws(unit: Unit) -> tuple[str, ...]:
    """False labels are used in common slots with hidden dummies."""
    return (_STATED_RATE,) if families.labels_are_false(unit) else ()


BOUNDS: tuple[Bound, ...] = (
    Bound(
        "T1",
        "shuffled check-in of eps0-LDP messages is dominated by counting clones of the two records, absent clients "
        "included; rate 1 is shuffling [FMT23]",
        _SAMPLE,
        0.02,
        families.t1,
    ),
    Bound(
        "T3",
        "with loads that do not depend on the data, averaged updates are adaptive shuffling of all clients: T1 at the "
        "probability of taking part",
        _SAMPLE,
        0.02,
        families.t3,
    ),
    Bound(
        "T1+",
        "T1 with the likelihood constraints from below as well: the worst of all laws on a hexagon, step by step",
        "docs/theory.md, docs/theory_hexagon.md",
        0.25,
        families.t1_plus,
    ),
    Bound(
        "E+",
        "eps0-LDP messages of all clients: T1+ for the client's message in the place of another one, whose own message "
        "joins those of a few clients that are spared",
        "docs/theory_shuffle.md",
        1.2,
        families.e_plus,
        assumes=("no client's message depends on another message of the same round",),
    ),
    Bound(
        "T2",
        "one message a slot, the client's own in a uniform slot: clones of the two records among the slots",
        _SAMPLE + "; compare [RCI], Theorem 3.2",
        0.02,
        families.t2,
    ),
    Bound(
        "T2+",
        "T2 with the likelihood constraints from below as well, step by step, and with what the client may expect of "
        "slots that it shares",
        "docs/theory.md, docs/theory_hexagon.md",
        0.5,
        families.t2_plus,
    ),
    Bound(
        "T2++",
        "common slots with hidden dummies: T2+ with slots that all have nearly the same share of the client's message, "
        "as the kind of its slot is told truly or falsely by chance",
        "docs/theory_hexagon.md",
        0.3,
        families.t2_plus_plus,
        assumes=(_STATED_RATE,),
    ),
    Bound(
        "T2'",
        "the messages of the occupied slots are a uniform ordered sample of the clients: T1's pair without absent "
        "clients, for the law of the number of occupied slots",
        _SAMPLE,
        0.03,
        families.t2_prime,
    ),
    Bound(
        "A",
        "messages whose laws for two records differ by a known total variation: T1, T2, T2' and T3 with fewer clones",
        "docs/theory_mechanisms.md",
        0.05,
        families.total_variation,
    ),
    Bound(
        "t_k",
        "k-ary randomized response: T1, T2, T2' and T3 with clones that are as rare as single values",
        "docs/theory_mechanisms.md",
        0.05,
        families.t_k,
    ),
    Bound(
        "B0",
        "messages of one bit and public coins: every other client may be taken to hold one of the two records",
        "docs/theory_mechanisms.md",
        0.6,
        families.b0,
        assumes=("no client's message depends on another message of the same round",),
    ),
    Bound(
        OWN_LAWS,
        "the worst of the mechanism's own laws, step by step: every other client may be taken to hold whichever record "
        "hides least",
        "docs/theory_mechanisms.md, docs/theory_hexagon.md",
        0.5,
        families.own_laws,
        assumes_of=_of_own_laws,
    ),
    Bound(
        "T*",
        "the worst of all laws that the messages of the others may have, step by step in convex order, for any "
        "privacy profile of the randomizer",
        "docs/theory_gaussian.md",
        0.7,
        families.t_star,
    ),
    Bound(
        "T**",
        "for Gaussian messages, T* with two laws in place of the worst of all: every message of the others is below a "
        "mixture of the two",
        "docs/theory_gaussian.md",
        3.0,
        families.t_two,
        assumes=(
            "all clients' updates are clipped to the same ball, and none depends on a message of the same round",
        ),
    ),
    Bound(
        "G1",
        "subsampling of a message by the visible fraction that checked in",
        "docs/accounting.md; [BBG18], Theorem 2",
        0.02,
        families.g1,
        _nothing_from_shuffling("G1"),
        of_sums="subsampling of a Gaussian sum, whose noise adds up, by the visible fraction that checked in",
        assumes_of_sums=(_STATED_NOISE,),
    ),
    Bound(
        "G2",
        "all clients' messages, their laws cut where the likelihood ratio is large: T1 at rate 1, at a cost in delta",
        "docs/theory_gaussian.md; compare [BBGN19], Section 5",
        0.05,
        families.g2,
    ),
    Bound(
        "E*",
        "Gaussian messages of all clients: T** for the client's message in the place of another one, whose own message "
        "joins those of a few clients that are spared",
        "docs/theory_gaussian.md",
        3.0,
        families.e_star,
        assumes=(
            "all clients' updates are clipped to the same ball, and none depends on a message of the same round",
        ),
    ),
    Bound(
        "R1",
        "subsampling: the client's message is used with a bounded probability, all else revealed",
        "docs/theory_allocation.md; [BBG18], Theorem 2",
        0.02,
        slots.r1,
        _r1_caveat,
    ),
    Bound(
        "R1'",
        "subsampling, the slot and how many share it revealed: a client added or removed takes the place of one",
        "docs/theory_allocation.md; [BBG18], Theorem 2",
        0.02,
        slots.r1_prime,
    ),
    Bound(
        "R2",
        "replacement in two steps, through the world in which the client's message is never used",
        "docs/theory_allocation.md; random allocation is [FS25]",
        0.5,
        slots.r2,
    ),
    Bound(
        "R3",
        "T* for the message of every slot",
        "docs/theory_allocation.md",
        0.5,
        slots.r3,
    ),
    Bound(
        "R4",
        "common slots, Gaussian messages: both records, and whichever other client these take the place of, are hidden "
        "among the empty slots",
        "docs/theory_allocation.md",
        0.5,
        among.r4,
        assumes=(_COUNTED, _STATED_RATE),
    ),
    Bound(
        "G3",
        "one client's Gaussian message in one of m slots, in place of a dummy or of another client's, whichever is "
        "worse in convex order",
        "docs/theory_allocation.md; random allocation is [FS25]",
        0.05,
        slots.g3,
    ),
    Bound(
        "G3'",
        "G3 with the other clients competing for the slots",
        "docs/theory_allocation.md",
        0.05,
        slots.g3_prime,
        assumes=(_COUNTED, _STATED_RATE),
    ),
    Bound(
        "G5",
        "common slots, Gaussian messages: the client, and whichever other it takes the place of, are hidden among the "
        "empty slots",
        "docs/theory_allocation.md",
        0.5,
        among.g5,
        assumes=(_COUNTED, _STATED_RATE),
    ),
    Bound(
        "G7",
        "common slots, Gaussian messages: empty slots and occupied ones, in which the client is drawn as often as may "
        "be expected, in one sum",
        "docs/theory_allocation.md",
        1.0,
        competitors.g7,
        assumes=(_COUNTED, _STATED_RATE),
    ),
    Bound(
        "R6",
        "replacement in two steps as in R2, each bounded by G7",
        "docs/theory_allocation.md",
        1.0,
        competitors.r6,
        assumes=(_COUNTED, _STATED_RATE),
    ),
    Bound(
        "G6",
        "sliding windows, Gaussian messages: the client, and all others in its slot, are hidden among the empty slots "
        "that are in all of their windows",
        "docs/theory_allocation.md",
        3.0,
        sliding.g6,
    ),
    Bound(
        "R5",
        "sliding windows, Gaussian messages: both records, and all others in the client's slot, are hidden among the "
        "empty slots that are in all of their windows",
        "docs/theory_allocation.md",
        3.0,
        sliding.r5,
    ),
    Bound(
        "G9",
        "sliding windows, Gaussian messages: the client takes the place of a dummy, and whoever shares its slot is "
        "taken to have thrown again; or loads are revealed (G8)",
        "docs/theory_allocation.md",
        1.0,
        thrown.g9,
    ),
    Bound(
        "R7",
        "replacement in two steps as in R2, each bounded by G9",
        "docs/theory_allocation.md",
        1.0,
        thrown.r7,
    ),
    Bound(
        "G4",
        "the noise of all clients of a slot adds up in their average",
        "docs/theory_allocation.md",
        0.02,
        families.g4,
        assumes=(_STATED_NOISE,),
    ),
    Bound(
        "T1h",
        "check-in rates that differ: T1 for one client and a pool of members of one rate, whose number is a sum of "
        "independent indicators; the others' coins are mixtures of a member's, an absent one and a present one",
        _UNEQUAL + "; compare [Hoe56]",
        0.03,
        builders.t1h,
    ),
    Bound(
        "T3h",
        "with loads that do not depend on the data, averaged updates of clients with different rates: T1h",
        _UNEQUAL,
        0.03,
        builders.t3h,
    ),
    Bound(
        "T2'h",
        "the messages of the occupied slots, at rates that differ: T2' among a pool of members of one rate, of whom "
        "it is revealed how many throw",
        _UNEQUAL,
        0.05,
        builders.t2_prime_h,
    ),
    Bound(
        "T1h+",
        "T1h with the likelihood constraints from below as well: the worst of all laws on a hexagon, step by step",
        _UNEQUAL + ", docs/theory_hexagon.md",
        0.3,
        builders.t1h_plus,
    ),
    Bound(
        "B0h",
        "messages of one bit and public coins, at check-in rates that differ: every other client of T1h's pool may be "
        "taken to hold one of the two records",
        _UNEQUAL,
        1.0,
        builders.b0h,
        assumes=("no client's message depends on another message of the same round",),
    ),
    Bound(
        "S",
        "who else takes part is revealed: shuffling of those who are there, times the client's rate",
        _UNEQUAL,
        0.03,
        builders.s,
    ),
    Bound(
        "T1m",
        "clients who always come hide, too, which messages are the pool's",
        _UNEQUAL,
        0.2,
        builders.t1m,
        assumes=("no client's message depends on another message of the same round",),
    ),
    Bound(
        "T2c",
        "T2 where clients collude: a slot that holds the message of one of them hides nothing",
        _UNEQUAL,
        0.02,
        builders.t2c,
    ),
    Bound(
        "T*h",
        "T* at rates that differ: the others are a pool of one rate, of which each is a member by chance",
        _UNEQUAL,
        3.0,
        builders.t_star_h,
        assumes=("no client's message depends on another message of the same round",),
    ),
    Bound(
        "G1h",
        "subsampling of a message, at rates that differ, by the visible number that checked in",
        _UNEQUAL + "; [BBG18], Theorem 2",
        0.03,
        builders.g1h,
        _nothing_from_shuffling("G1h"),
        of_sums="subsampling of a Gaussian sum, whose noise adds up, at rates that differ, by the visible number that "
        "checked in",
    ),
    Bound(
        "G4h",
        "the noise of all clients of a slot adds up in their average, at rates that differ",
        _UNEQUAL,
        0.02,
        builders.g4h,
    ),
)
LABELS = tuple(bound.label for bound in BOUNDS)
