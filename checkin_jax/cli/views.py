"""One run in all views: a line for each, the view that was asked for on top."""

from __future__ import annotations

from collections.abc import Iterable

from checkin_jax._rounding import down, up
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.accounting.stated import in_short
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol

_WHO = "somebody who sees "


def views_of(protocol: CheckInProtocol, relation: str, asked: str) -> tuple[str, ...]:
    """The views in which this neighboring relation has a bound, `asked` first."""
    known = [view for view in VIEWS if relation == REPLACE or protocol.refuses(relation, view) is None]
    return (asked, *(view for view in known if view != asked))


def in_view(answer: Guarantee, view: str) -> Guarantee | str:
    """The same run in another view, or a line that says why there is no answer.

    Numbers and words are those of `account` at the same delta, by the same choice of theorems.
    """
    from checkin_jax.accounting.account import account

    try:
        return account(
            answer.protocol,
            answer.randomizer,
            delta=answer.delta,
            view=view,
            bounds=answer.bounds,
            neighboring_relation=answer.neighboring_relation,
            client_rate=answer.client_rate,
        )
    except ValueError:  # labels of theorems that do not apply here
        return f"{view:<10} none of the bounds asked for applies"


def table(guarantees: Iterable[Guarantee | str]) -> str:
    """Columns of view, both ends of epsilon and what is seen; a text stands for a view that has no answer."""
    lines = ["view       at least   epsilon <= against somebody who sees"]
    for each in guarantees:
        if isinstance(each, str):
            lines.append(each)
            continue
        ends = f"{down(each.lower, 5):<10} {up(each.epsilon, 5):<10}"
        lines.append(f"{each.view:<10} {ends} {in_short(each.against).removeprefix(_WHO)}")
    return "\n".join(lines)


def notes(guarantee: Guarantee, *, attack: bool = False) -> list[str]:
    """What must be read beside the numbers: whom they cover, an attacker's terms where asked for, and warnings."""
    rows = [*guarantee.covers, *(guarantee.attack.lines if attack else ())]
    return [f"  {name:<10} {text}" for name, text in rows] + [
        f"warning: {each}" for each in guarantee.warnings
    ]
