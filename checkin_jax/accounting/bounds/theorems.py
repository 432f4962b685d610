"""The theorems behind the bounds, in words, with their references; proofs are in docs/theory.md."""

from __future__ import annotations

from checkin_jax.accounting.bounds.unit import Round
from checkin_jax.accounting.guarantee import LOCAL_ASSUMPTIONS
from checkin_jax.protocols import CheckInProtocol, FixedWindow, SlidingWindow

_SAMPLE = "docs/theory.md; the privacy blanket of Balle, Bell, Gascon, Nissim (2019) with convex order"

# In the order in which they are looked for: T2' before T2.
THEOREMS = {
    "T1+": (
        "T1 with the likelihood constraints from below as well: the worst of all laws on a hexagon, step by step",
        "docs/theory.md",
    ),
    "T1": (
        "shuffled check-in of eps0-LDP messages is dominated by counting clones of the two records, absent clients "
        "included; rate 1 is shuffling (Feldman, McMillan, Talwar 2023)",
        _SAMPLE,
    ),
    "T2'": (
        "the messages of the occupied slots are a uniform ordered sample of the clients: T1's pair without absent "
        "clients, for the law of the number of occupied slots",
        _SAMPLE,
    ),
    "T2": (
        "one message a slot, the client's own in a uniform slot: clones of the two records among the slots",
        _SAMPLE + "; compare Balle, Kairouz, McMahan, Thakkar, Thakurta (2020), Theorem 3.2",
    ),
    "T3": (
        "with loads that do not depend on the data, averaged updates are adaptive shuffling of all clients: T1",
        _SAMPLE,
    ),
    "T*": (
        "the worst of all laws that the messages of the others may have, step by step in convex order, for any "
        "privacy profile of the randomizer",
        "docs/theory_gaussian.md",
    ),
    "G4": (
        "the noise of all clients of a slot adds up in their average",
        "docs/theory_allocation.md",
    ),
    "G2": (
        "all clients' messages, their laws cut where the likelihood ratio is large: T1 at rate 1, at a cost in delta",
        "docs/theory_gaussian.md; compare Balle, Bell, Gascon, Nissim (2019), Section 5",
    ),
    "G3'": (
        "G3 with the other clients competing for the slots",
        "docs/theory_allocation.md",
    ),
    "G3": (
        "one client's Gaussian message in one of m slots, in place of a dummy or of another client's, whichever is "
        "worse in convex order",
        "docs/theory_allocation.md; random allocation is Feldman, Shenfeld (2025)",
    ),
    "R1": (
        "subsampling: the client's message is used with a bounded probability, all else revealed",
        "Balle, Barthe, Gaboardi (2018), Theorem 2; docs/theory_allocation.md",
    ),
    "R1'": (
        "subsampling, the slot and how many share it revealed: a client added or removed takes the place of one",
        "Balle, Barthe, Gaboardi (2018), Theorem 2; docs/theory_allocation.md",
    ),
    "R2": (
        "replacement in two steps, through the world in which the client's message is never used",
        "docs/theory_allocation.md; random allocation is Feldman, Shenfeld (2025)",
    ),
    "R3": (
        "T* for the message of every slot",
        "docs/theory_allocation.md",
    ),
    "G1": (
        "subsampling of a Gaussian message, or of a sum whose noise adds up, by the visible fraction that checked in",
        "Balle, Barthe, Gaboardi (2018), Theorem 2; docs/accounting.md",
    ),
}


def assumptions(protocol: CheckInProtocol, view: str) -> tuple[str, ...]:
    """What must hold for a guarantee in this view to be true."""
    if view == "local":
        return LOCAL_ASSUMPTIONS
    if view == "aggregate" and isinstance(protocol, FixedWindow | SlidingWindow) and protocol.minibatch > 1:
        summed = (
            f"the messages of {protocol.minibatch:,} successive slots are summed before anybody sees them"
        )
        return (*protocol.assumptions, summed)
    return protocol.assumptions


def theorem(name: str) -> list[str]:
    """Lines of statement and reference for each theorem that a bound's name mentions."""
    words = name.replace(",", " ").replace("(", " ").split()
    return [f"{label}: {THEOREMS[label][0]} [{THEOREMS[label][1]}]" for label in THEOREMS if label in words]


def describe(one: Round, assumed: tuple[str, ...]) -> str:
    """The bound of one unit: its theorem, reference and assumptions, one a line."""
    lines = [f"  upper end  {one.name}"]
    lines += [f"  theorem    {line}" for line in theorem(one.name)]
    lines += [f"  lower end  {each.name}" for each in one.instances]
    return "\n".join(lines + [f"  assumes    {each}" for each in assumed])
