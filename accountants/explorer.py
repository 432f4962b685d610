"""Builds one self-contained page with sliders over a table of certified epsilons: docs/explore.html.

Between points of the table the page shows the value of a point that dominates what was chosen, never an interpolation.
That is sound in the number of clients (of one client more the record may be known, so that its message is
post-processing), in the number of rounds (fewer are part of more), in epsilon0, in delta, and in the noise (whoever
sees a message, or how many there are in a sum, can add to its noise: more of it is post-processing). In the check-in
rate so much has not been proved here: that slider stops at the table's own values only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any

from rich.progress import track

import checkin_jax as cj
from checkin_jax._rounding import up
from checkin_jax.disclosure import page

PAGE = Path(__file__).parents[1] / "docs" / "explore.html"
# Its look and its script, around the tables.
TEMPLATE = Path(__file__).with_suffix(".html")
AXES: dict[str, list[float]] = {
    "num_clients": [1e4, 3e4, 1e5, 1e6, 1e7],
    "check_in_prob": [0.001, 0.003, 0.01, 0.03, 0.1],
    "num_rounds": [1, 10, 100, 1_000, 10_000],
    "delta": [1e-8, 1e-6],
}
MESSAGES = {
    "epsilon0": [0.5, 1.0, 2.0, 3.0, 4.0, 6.0],
    "noise_multiplier": [0.5, 0.7, 1.0, 2.0, 4.0],
}
MESSAGE: dict[str, Any] = {"epsilon0": cj.PureLDP, "noise_multiplier": cj.Gaussian}
# What is seen of each kind of message where no name is.
VIEWS = {"epsilon0": "messages", "noise_multiplier": "aggregate"}


def tables(axes: dict[str, list[float]], messages: dict[str, list[float]]) -> dict[str, Any]:
    """Certified upper ends, rounded up to five digits, of all combinations: by kind of message and view, as flat lists
    in the order of axes and the message's own value last; None where no bound is finite."""
    out: dict[str, Any] = {}
    for name, values in messages.items():
        for view in (VIEWS[name], "local"):
            # Against names it does not matter how many others there are.
            clients = axes["num_clients"] if view != "local" else axes["num_clients"][:1]
            grid = list(itertools.product(*{**axes, "num_clients": clients, name: values}.values()))
            numbers = [
                _upper(MESSAGE[name](**{name: value}), view, *setting)
                for *setting, value in track(grid, f"{MESSAGE[name].__name__}, view {view}")
            ]
            told = [(axis, each) for axis, each in axes.items() if view != "local" or axis != "num_clients"]
            out[f"{name}/{view}"] = {"axes": [*told, (name, values)], "epsilon": numbers}
    return out


def _upper(
    message: cj.Randomizer, view: str, clients: float, rate: float, rounds: float, delta: float
) -> float | None:
    """The upper end alone: an accountant is asked, which leaves out the lower end that a sweep would have."""
    one_round = cj.ShuffledCheckIn(num_clients=int(clients), check_in_prob=rate)
    event = cj.to_event(one_round, message, view=view)
    epsilon = cj.CheckInAccountant(bounds="fast").compose(event, int(rounds)).get_epsilon(delta)
    return float(up(epsilon, 5)) if math.isfinite(epsilon) else None


_CONTROLS = (
    ("num_clients", "clients", "sliding"),
    ("check_in_prob", "check-in rate, each round", "stops"),
    ("num_rounds", "rounds", "sliding"),
    ("epsilon0", "epsilon0 of a message", "sliding"),
    ("noise_multiplier", "noise of a message, in clip norms", "sliding"),
    ("delta", "delta", "sliding"),
)


def build(found: dict[str, Any], version: str = cj.__version__) -> str:
    """The page over tables of `tables`, which this version of the package made."""
    stops = dict(pair for table in found.values() for pair in table["axes"])
    lines = []
    for name, words, kind in _CONTROLS:
        values = stops[name]
        most = 1_000 if kind == "sliding" else len(values) - 1
        # A point of the table, or the first that is shown would be a much worse one's.
        middle = values[len(values) // 2]
        start = (
            round(most * math.log(middle / min(values)) / math.log(max(values) / min(values)))
            if kind == "sliding"
            else values.index(middle)
        )
        lines.append(
            f'<label class="slider"><span>{words}</span><input type="range" id="{name}" data-kind="{kind}" min="0" '
            f'max="{most}" step="1" value="{start}"><output id="o-{name}"></output></label>'
        )
    below = TEMPLATE.read_text(encoding="utf-8")
    for name, text in {
        "__SLIDERS__": "\n".join(lines),
        "__VERSION__": version,
        "__VIEWS__": json.dumps(VIEWS),
        "__TABLES__": json.dumps(found, separators=(",", ":"), allow_nan=False),
    }.items():
        below = below.replace(name, text)
    return page.document("How private would a fleet be?", [below])


def main() -> None:
    """Accounts for the table, for a minute, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE)
    out = parser.parse_args().out
    out.write_text(build(tables(AXES, MESSAGES)))
    print(out)


if __name__ == "__main__":
    main()
