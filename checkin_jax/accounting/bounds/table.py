"""The table of bounds: which theorem serves which unit, by what it needs to know.

`BOUNDS` is the one place where a theorem is added: a label, a sentence, a reference, its cost, and a builder that reads
facts of protocol and randomizer and returns None where a hypothesis fails. `unit_bound` takes the smallest of all that
apply at every loss. Nothing else in the package asks which protocol or randomizer it has.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from checkin_jax import _validate
from checkin_jax.accounting.bounds import families
from checkin_jax.accounting.bounds.facts import Unit
from checkin_jax.accounting.bounds.unequal import builders
from checkin_jax.accounting.bounds.unit import (
    Exact,
    Graded,
    LocalMessages,
    LocalOnly,
    UnitBound,
    least,
    log_inverse_mass,
    prepare,
)
from checkin_jax.accounting.bounds.windows import slots
from checkin_jax.kernels.devices import float64
from checkin_jax.protocols import REPLACE, CheckInProtocol
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer

# Bounds that take less, in seconds of one core once compiled, are "fast".
FAST = 0.06
# So many kinds of units take the fast bounds alone, where these are nearly as good.
_MANY = 16
# One of two bounds is not evaluated where its variance exceeds the other's by this factor.
_HOPELESS = 4.0

_SAMPLE = "docs/theory.md; the privacy blanket of [BBGN19] with convex order"
_UNEQUAL = "docs/theory_rates.md"


@dataclasses.dataclass(frozen=True)
class Bound:
    """A theorem as the accountant uses it.

    Attributes:
      label: its name in the documentation.
      statement: what it states, in one sentence.
      of_sums: the same where sums are seen whose noise adds up, if that is another sentence.
      reference: where it is proved, and whose idea it is.
      seconds: about what one unit costs, once compiled.
      build: the bound on a unit, or None where a hypothesis fails.
      caveat: what a reader should be told of a unit for which no other bound was used; empty for nothing.
      assumes: what the theorem needs besides the protocol's own assumptions.
    """

    label: str
    statement: str
    reference: str
    seconds: float
    build: Callable[[Unit], UnitBound | None]
    caveat: Callable[[Unit], str] | None = None
    assumes: tuple[str, ...] = ()
    of_sums: str = ""

    def stated(self, unit: Unit) -> str:
        """Label, sentence and reference, as a statement about such a unit prints them."""
        sentence = self.of_sums if unit.sums_noise and self.of_sums else self.statement
        return f"{self.label}: {sentence} [{self.reference}]"


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
        "T2",
        "one message a slot, the client's own in a uniform slot: clones of the two records among the slots",
        _SAMPLE + "; compare [RCI], Theorem 3.2",
        0.02,
        families.t2,
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
        "B",
        "messages of one bit and public coins in slots: the worse of two laws, step by step",
        "docs/theory_mechanisms.md",
        0.5,
        families.b,
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
    ),
    Bound(
        "G2",
        "all clients' messages, their laws cut where the likelihood ratio is large: T1 at rate 1, at a cost in delta",
        "docs/theory_gaussian.md; compare [BBGN19], Section 5",
        0.05,
        families.g2,
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
    ),
    Bound(
        "G4",
        "the noise of all clients of a slot adds up in their average",
        "docs/theory_allocation.md",
        0.02,
        families.g4,
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
        "T1h+",
        "T1h with the likelihood constraints from below as well: the worst of all laws on a hexagon, step by step",
        _UNEQUAL + ", docs/theory_hexagon.md",
        0.3,
        builders.t1h_plus,
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
# The choices of `bounds=` beside labels.
BEST, FAST_ONES = "best", "fast"


class Chosen(NamedTuple):
    """The bound on one unit, and the theorems behind it; none where only the local bound is known."""

    bound: UnitBound
    theorems: tuple[Bound, ...]
    unit: Unit

    @property
    def stated(self) -> tuple[str, ...]:
        """Label, sentence and reference of each theorem, in words for what is seen."""
        return tuple(each.stated(self.unit) for each in self.theorems)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the theorems need besides the protocol's own assumptions."""
        return tuple(text for each in self.theorems for text in each.assumes)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a careful reader should be told about the theorem, if there is only one."""
        if len(self.theorems) != 1 or self.theorems[0].caveat is None:
            return ()
        told = self.theorems[0].caveat(self.unit)
        return (told,) if told else ()


def check_bounds(bounds: Any) -> str | tuple[str, ...]:
    """ "best", "fast", or labels of the table as a tuple.

    Raises:
      TypeError, ValueError: anything else.
    """
    if isinstance(bounds, str) and bounds in (BEST, FAST_ONES):
        return bounds
    labels = (bounds,) if isinstance(bounds, str) else bounds
    if isinstance(labels, Sequence) and labels and all(label in LABELS for label in labels):
        return tuple(labels)
    raise (TypeError if not isinstance(bounds, str | Sequence) else ValueError)(
        f"bounds={_validate.shown(bounds)}: expected 'best', 'fast', or labels out of {', '.join(LABELS)}"
    )


def check_protocol(protocol: Any) -> CheckInProtocol:
    """Raises TypeError unless it is a protocol."""
    if not isinstance(protocol, CheckInProtocol):
        raise TypeError(
            f"protocol={_validate.shown(protocol)}: expected a CheckInProtocol, such as ShuffledCheckIn"
        )
    return protocol


def check_alike(protocol: CheckInProtocol) -> CheckInProtocol:
    """Raises ValueError unless all units of the protocol are one of it: others are for `whole_run`."""
    if protocol.alike(False)[0].above is not protocol:
        raise ValueError(
            f"protocol={_validate.shown(protocol)}: expected one whose rounds are alike; `account` takes others"
        )
    return protocol


def check_randomizer(randomizer: Any) -> Randomizer:
    """Raises TypeError unless it is a randomizer."""
    if not isinstance(randomizer, Randomizer):
        raise TypeError(
            f"randomizer={_validate.shown(randomizer)}: expected a Randomizer, such as PureLDP or Gaussian"
        )
    return randomizer


def check_relation(protocol: CheckInProtocol, view: str, relation: str) -> str:
    """Raises ValueError where no bound is known for this relation, one of `protocols.RELATIONS`."""
    why = protocol.refuses(relation, view)
    if why is None:
        return relation
    raise ValueError(f"neighboring_relation={relation!r}: expected {REPLACE!r} here: {why}")


def unit_bound(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    total: float,
    delta: float,
    *,
    bounds: str | tuple[str, ...] = BEST,
    relation: str = REPLACE,
    client_rate: float | None = None,
) -> Chosen:
    """The smallest bound on one unit of the protocol, one of `total` that are composed at delta.

    Args:
      bounds: "best": all of the table that apply. "fast": those of a few hundredths of a second. Labels: these alone.
      view, relation: of `protocols.VIEWS` and `protocols.RELATIONS`.
      client_rate: as in `account`.

    Raises:
      ValueError: there is no bound for this neighboring relation, or none of the labels applies; or no client has the
        rate.
    """
    check_relation(protocol, view, relation)
    check_alike(protocol)
    with float64():
        mass = log_inverse_mass(total, delta)
        return _chosen(Unit(protocol, randomizer, view, relation, mass, client_rate), bounds)


def _chosen(unit: Unit, bounds: str | tuple[str, ...]) -> Chosen:
    view, relation, randomizer = unit.view, unit.relation, unit.randomizer
    local = families.local(unit)
    if view == "local" or unit.alone:
        return Chosen(local, (), unit)
    tried = [bound for bound in BOUNDS if _wanted(bound, bounds)]
    built = [(bound, made) for bound in tried if (made := _built(bound, unit)) is not None]
    if not built and not isinstance(bounds, str):
        apply = [bound.label for bound in BOUNDS if bound.build(unit) is not None]
        raise ValueError(
            f"bounds={bounds!r}: expected labels that apply here: {', '.join(apply) or 'none does'}"
        )
    built = _promising(built)
    # What takes longest begins first.
    prepare([made for _, made in sorted(built, key=lambda each: -each[0].seconds)])
    if relation != REPLACE:
        if not built:
            why = f"no bound is known for {randomizer.words}"
            raise ValueError(f"neighboring_relation={relation!r}: expected {REPLACE!r} here: {why}")
        known = [made for _, made in built]
    elif not built:
        return Chosen(LocalOnly(local), (), unit)
    else:
        # Whoever sees less than the named messages learns no more.
        beside = unit.epsilon0 is None and (unit.slots is not None or isinstance(local, LocalMessages))
        known = [made for _, made in built] + ([local] if beside else [])
    instances = families.instances(unit, [made for _, made in built])
    if len(known) == 1 and list(map(id, instances)) == list(map(id, known[0].instances)):
        found = known[0]
    else:
        found = least(known, instances)
    # Some bounds are made with the help of others, which their names tell.
    named = {word.strip("(),") for word in found.name.split()}
    used = [bound for bound, _ in built]
    theorems = tuple(bound for bound in BOUNDS if bound in used or bound.label in named)
    return Chosen(found, theorems, unit)


def stronger(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    relation: str,
    client_rate: float | None = None,
) -> Exact | None:
    """The exact bound on one unit in the view of the strongest adversary, if this is another one's; else None.

    The composer takes the smaller end, so that no view has more than `local`.
    """
    if view == "local" or relation != REPLACE:
        return None
    local = families.local(Unit(protocol, randomizer, "local", relation, 1.0, client_rate))
    return local if isinstance(local, Exact) else None


@functools.lru_cache(maxsize=64)
def _kept(bound: Bound, unit: Unit) -> UnitBound | None:
    return bound.build(unit)


def _built(bound: Bound, unit: Unit) -> UnitBound | None:
    """What the theorem says of the unit, made once: what it has evaluated serves the next call."""
    try:
        hash(unit)
    except TypeError:  # a description with fields that cannot be hashed
        return bound.build(unit)
    return _kept(bound, unit)


class WholeRun(NamedTuple):
    """What the composer needs of a run and what was before it: bounds, how often each, and the strongest adversary's.

    The first of `chosen` is the run's own: of each kind of its units.
    """

    chosen: list[list[Chosen]]
    units: list[tuple[UnitBound, int]]
    stronger: list[tuple[Exact, int]]


def whole_run(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    delta: float,
    *,
    bounds: str | tuple[str, ...],
    relation: str,
    client_rate: float | None = None,
    before: Sequence[tuple[CheckInProtocol, Randomizer]] = (),
) -> WholeRun:
    """`unit_bound` and `stronger` for all units of the run, and of what was run before.

    Raises:
      ValueError: as `unit_bound`.
    """
    total = sum(each.repeats for each, _ in [(protocol, randomizer), *before])
    run = WholeRun([], [], [])
    with float64():
        for i, (whole, its) in enumerate([(protocol, randomizer), *before]):
            # Among clients of one rate everybody is meant.
            meant = None if i and whole.coins is None else client_rate
            finest = bounds != BEST or its.largest_loss <= MAX_EPSILON0
            kinds = whole.alike(finest)
            wanted = FAST_ONES if bounds == BEST and len(kinds) > _MANY and finest else bounds
            found = []
            for above, below, count in kinds:
                # Whoever thins a sum thins noise with it, so a smaller coin says nothing there.
                seen = "messages" if view == "aggregate" and above.rate != below.rate else view
                how = {"relation": relation, "client_rate": meant}
                one = unit_bound(above, its, seen, total, delta, bounds=wanted, **how)
                if below != above:
                    low = unit_bound(below, its, seen, total, delta, bounds=FAST_ONES, **how).bound
                    # Grids are made from the bound; other instances of the view "aggregate" are left out.
                    scaled = [
                        dataclasses.replace(cast(Any, each), scale=one.bound)
                        for each in (low.instances if seen == view else ())
                        if dataclasses.is_dataclass(each) and hasattr(each, "scale")
                    ]
                    one = one._replace(bound=least((one.bound,), scaled))
                found.append(one)
                run.units.append((one.bound, count))
                if (alone := stronger(above, its, view, **how)) is not None:
                    run.stronger.append((alone, count))
            run.chosen.append(found)
    return run if len(run.stronger) == len(run.units) else run._replace(stronger=[])


def _wanted(bound: Bound, bounds: str | tuple[str, ...]) -> bool:
    if bounds == BEST:
        return True
    return bound.seconds <= FAST if bounds == FAST_ONES else bound.label in bounds


def _promising(built: list[tuple[Bound, UnitBound]]) -> list[tuple[Bound, UnitBound]]:
    """Without bounds that others include, or whose variance says that they are smallest nowhere of interest."""
    included = {name for _, made in built for name in getattr(made, "includes", ())}
    built = [each for each in built if each[1].name not in included]
    known = [made.variance for _, made in built if isinstance(made, Graded)]
    if not known:
        return built
    most = _HOPELESS * min(known)
    return [each for each in built if not isinstance(each[1], Graded) or each[1].variance <= most]
