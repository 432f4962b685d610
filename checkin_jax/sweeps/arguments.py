"""Arguments of a sweep with their types, for completion in editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import Randomizer

if TYPE_CHECKING:
    from checkin_jax.sweeps.tables import Frame, Sweep

# Numbers, or a range as text: "1e3:1e9:log25", "0:1:lin11", ".1,.2".
Numbers = float | str | Sequence[float]
Words = str | Sequence[str]


class Arguments(TypedDict, total=False):
    """Arguments of `sweep` and `sweep_to_file`; each may be one value or several."""

    what: str
    protocol: type[CheckInProtocol]
    randomizer: type[Randomizer] | None
    num_clients: Numbers
    check_in_prob: Numbers
    largest_rate: Numbers
    expected_check_ins: Numbers
    client_rate: Numbers
    drop_out_prob: Numbers
    num_rounds: Numbers
    num_slots: Numbers
    window: Numbers
    num_epochs: Numbers
    num_colluding: Numbers
    min_reports: Numbers
    empty_slots: Words
    epsilon0: Numbers
    noise_multiplier: Numbers
    delta: Numbers
    view: Words
    neighboring_relation: Words
    order: Numbers
    bound: Words
    target_epsilon: Numbers
    axes: Mapping[str, Any]
    rows: str
    table: str | Path | Sweep | Frame | Mapping[str, Any] | None
    bounds: str | Sequence[str]
    free: str | None
    orders: Sequence[int] | None
    block_rows: int | None
