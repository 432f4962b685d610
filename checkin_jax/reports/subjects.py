"""Ledgers and plans as subjects of a page: runs made elsewhere, or not yet made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.accounting.interop.composed_guarantee import LedgerGuarantee
from checkin_jax.accounting.interop.ledger_file import Entry, Ledger
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.reports.declarations import COMPOSED, Deployment
from checkin_jax.reports.record import PROTECTED, Promise, Record, reliable_view, sentence

_UNIT = f"{PROTECTED[:1].upper()}{PROTECTED[1:]}, over {{}}."
_RELEASED = (
    "The view of the adversary, and results computed from that view without the clients' data: the model after every "
    "round, its last parameters, averages of them."
)


def of_ledger(
    name: str,
    found: LedgerGuarantee,
    others: Mapping[str, LedgerGuarantee],
    *,
    ledger: Ledger,
    deployment: Deployment,
) -> Record:
    """Record of a ledger. Views named by its entries are not declarations, since they may be defaults.

    Args:
      name: name of the ledger.
      found: the guarantee of all entries in their own views.
      others: view -> the guarantee if all entries were observed in that view. Beliefs are those of the
        guarantee that may be relied on, if it has attack terms.
      ledger: the file, with dates, notes and target.
      deployment: the deployer's declarations.
    """
    views = {unit.view for unit, _ in found.units}
    each = dict(others)
    if len(views) == 1 and not found.central:
        each[next(iter(views))] = found
    if len(views) != 1 or found.central or deployment.view == COMPOSED:
        each[COMPOSED] = found
    guarantees = {view: each[view] for view in (*VIEWS, COMPOSED) if view in each}
    units = sum(count * unit.protocol.num_units for unit, count in found.units)
    units += sum(count for _, count in found.central)
    sizes = {unit.protocol.num_clients for unit, _ in found.units}
    days = sorted(each.on for each in ledger.counted if each.on is not None)
    period = f", {days[0]} to {days[-1]}" if days else ""
    twice = [
        f"Entries {one} and {other} are the same run on the same day, and both count: remove one if it ran once."
        for one, other in ledger.repeated
    ]
    target = None
    if ledger.epsilon is not None:
        target = ledger.epsilon, reliable_view(guarantees, deployment)
    return Record(
        kind="ledger",
        rounds=units,
        target=target,
        run_by=deployment.operator or "whoever trains",
        state=tuple(twice),
        title=f"Privacy of {name}",
        lead=f"{units:,} rounds or windows of the same clients, composed{period}",
        promises=(Promise(guarantees=guarantees),),
        clients=max(sizes, default=None),
        clients_at_once=True,
        unit=_UNIT.format("everything in the ledger"),
        mechanism=tuple(map(_entry, ledger.entries)),
        covered=(
            "Every entry of the ledger that was not removed, whether or not its results were used. The keeper of the "
            "ledger answers for its completeness.",
        ),
        released=(_RELEASED,),
        deployment=deployment,
    )


def _entry(entry: Entry) -> str:
    counted = "" if entry.removed is None else ", and not counted"
    return sentence(f"Entry {entry.id}, {entry.on or 'without a date'}: {entry.told}{counted}")


def of_plan(
    name: str,
    protocol: CheckInProtocol,
    found: Sequence[Mapping[str, Guarantee] | str],
    *,
    target: tuple[float, str] | None = None,
    deployment: Deployment,
) -> Record:
    """Record of a plan.

    Args:
      name: name of the plan.
      protocol: the run.
      found: for each kind of message the guarantees by view, or the reason that there is none.
      target: the target epsilon, and its view.
      deployment: the deployer's declarations.

    Raises:
      ValueError: no kind of message has guarantees.
    """
    kinds = [each for each in found if not isinstance(each, str)]
    if not kinds:
        raise ValueError(f"nothing to report: {'; '.join(str(each) for each in found)}")
    promises = []
    for each in kinds:
        first = next(iter(each.values()))
        promises.append(
            Promise(
                name=sentence(
                    first.randomizer.description
                    + (f", {first.protocol.description}" if first.protocol != protocol else "")
                ).rstrip("."),
                guarantees=each,
            )
        )
    state = ["This is a plan: nothing has run. The figures hold for a run exactly as described."]
    if target is not None and deployment.view not in (None, target[1]):
        state.append(
            f"The target is in view {target[1]}, but view {deployment.view} applies here, as declared: a target met in "
            "one view says nothing about another."
        )
    state += [each for each in found if isinstance(each, str)]
    return Record(
        kind="plan",
        rounds=protocol.num_units,
        protocol=(protocol.title, protocol.in_words),
        run_by="nobody yet",
        title=f"Plan of {name}",
        lead=f"{protocol.title[:1].upper()}{protocol.title[1:]}: {protocol.in_words}",
        state=tuple(state),
        promises=tuple(promises),
        target=target,
        clients=protocol.num_clients,
        clients_at_once=True,
        unit=_UNIT.format("the whole run"),
        mechanism=tuple(sentence(next(iter(each.values())).randomizer.description) for each in kinds),
        covered=("All planned rounds, even if the run ends before.",),
        released=(_RELEASED,),
        deployment=deployment,
    )
