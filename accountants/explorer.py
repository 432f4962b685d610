"""Builds one self-contained page with sliders over a table of certified epsilons: docs/explore.html.

Between points of the table the page shows the value of a point that dominates what was chosen, never an interpolation.
That is sound in the number of clients (of one client more the record may be known, so that its message is
post-processing), in the number of rounds (fewer are part of more), in epsilon0 and in delta. In the check-in rate and
the noise so much has not been proved here: those sliders stop at the table's own values only.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import checkin_jax as cj
from checkin_jax._rounding import up
from checkin_jax.disclosure import page

PAGE = Path(__file__).parents[1] / "docs" / "explore.html"
AXES: dict[str, list[float]] = {
    "num_clients": [1e4, 1e6],
    "check_in_prob": [0.01, 0.1],
    "num_rounds": [1, 100, 1_000],
    "delta": [1e-6],
}
MESSAGES = {"epsilon0": [1.0, 4.0], "noise_multiplier": [0.5, 2.0]}
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
            grid: dict[str, Any] = {**axes, "num_clients": clients, name: values}
            found = cj.sweep(view=view, bounds="fast", **grid)
            for axis, column in zip(grid, np.meshgrid(*grid.values(), indexing="ij")):
                assert np.array_equal(found[axis], column.ravel()), axis
            numbers = [
                float(up(each, 5)) if np.isfinite(each) else None for each in found["epsilon"].tolist()
            ]
            told = [(axis, each) for axis, each in grid.items() if view != "local" or axis != "num_clients"]
            out[f"{name}/{view}"] = {"axes": told, "epsilon": numbers}
    return out


_CONTROLS = (
    ("num_clients", "clients", "sliding"),
    ("check_in_prob", "check-in rate, each round", "stops"),
    ("num_rounds", "rounds", "sliding"),
    ("epsilon0", "epsilon0 of a message", "sliding"),
    ("noise_multiplier", "noise of a message, in clip norms", "stops"),
    ("delta", "delta", "sliding"),
)
_STYLE = """<style>
.slider{display:grid;grid-template-columns:15rem 1fr 6rem;gap:.8rem;align-items:center;padding:.3rem 0}
input[type=range]{width:100%;accent-color:var(--edge)}output{font-variant-numeric:tabular-nums}
#answer{font-size:2rem;font-weight:700;margin:1.2rem 0 .2rem}fieldset{border:1px solid var(--rule);margin:1rem 0}
@media(max-width:30rem){.slider{grid-template-columns:1fr 5rem}
.slider span{grid-column:1/3}}.slider[hidden]{display:none}</style>"""
_SCRIPT = """<script>
"use strict";
const TABLES = __TABLES__, VIEWS = __VIEWS__;
const at = id => document.getElementById(id), kind = () => document.querySelector("[name=kind]:checked").value;
const stops = name => Object.fromEntries(Object.values(TABLES).flatMap(table => table.axes))[name];
const given = {};  // exact values from the address, until their slider is moved
const value = name => {
  if (name in given) return given[name];
  const slider = at(name), all = stops(name), x = Number(slider.value);
  if (slider.dataset.kind == "stops") return all[x];
  const low = Math.min(...all), high = Math.max(...all), found = low * Math.pow(high / low, x / 1000);
  if (x == 0) return low;
  if (x == 1000) return high;
  return ["num_clients", "num_rounds"].includes(name) ? Math.round(found) : Number(found.toPrecision(3));
};
// The place on an axis whose certificate holds for x too; -1: none does. Never the nearest one.
const LESS = ["num_clients", "delta"], EXACT = ["check_in_prob", "noise_multiplier"];
const dominating = (name, all, x) => {
  if (EXACT.includes(name)) return all.indexOf(x);
  const held = all.map((each, i) => [each, i]).filter(([each]) => LESS.includes(name) ? each <= x : each >= x);
  if (!held.length) return -1;
  return held.reduce((best, one) => (LESS.includes(name) ? one[0] > best[0] : one[0] < best[0]) ? one : best)[1];
};
const look = table => {
  let index = 0; const point = {};
  for (const [name, all] of table.axes) {
    const i = dominating(name, all, value(name));
    if (i < 0) return {epsilon: null, point: null};
    index = index * all.length + i;
    point[name] = all[i];
  }
  return {epsilon: table.epsilon[index], point};
};
const said = number => Number.isInteger(number) ? number.toLocaleString("en") :
  number < 1e-3 ? number.toExponential() : String(number);
const show = () => {
  const message = kind(), view = VIEWS[message];
  for (const name of ["epsilon0", "noise_multiplier"]) at(name).closest("label").hidden = name != message;
  for (const {id} of document.querySelectorAll("input[type=range]")) at("o-" + id).value = said(value(id));
  const found = look(TABLES[message + "/" + view]), local = look(TABLES[message + "/local"]);
  const text = found => found.point == null ? "not in the table" : found.epsilon == null ? "no finite bound" :
    String(found.epsilon);
  at("answer").textContent = "epsilon at most " + text(found);
  at("answer").dataset.epsilon = found.epsilon;
  const seen = view == "messages" ? "every message without names" : "each round's sum and of how many messages it is";
  at("against").textContent = "at delta " + said(value("delta")) + ", against somebody who sees " + seen +
    ". Somebody who sees one client's messages with its name: " + text(local) + ".";
  const names = Object.entries(found.point || {}).map(([name, x]) => name + " = " + said(x)).join(", ");
  at("point").textContent = names && "Certified for " + names + ", which dominates what is chosen.";
};
for (const pair of new URLSearchParams(location.hash.slice(1))) {
  if (pair[0] == "kind") document.querySelector("[name=kind][value=" + pair[1] + "]").checked = true;
  else given[pair[0]] = Number(pair[1]);
}
addEventListener("input", event => { delete given[event.target.id]; show(); });
show();
</script>"""


def build(found: dict[str, Any], version: str = cj.__version__) -> str:
    """The page over tables of `tables`, which this version of the package made."""
    stops = dict(pair for table in found.values() for pair in table["axes"])
    lines = []
    for name, words, kind in _CONTROLS:
        most = 1_000 if kind == "sliding" else len(stops[name]) - 1
        start = most // 2
        lines.append(
            f'<label class="slider"><span>{words}</span><input type="range" id="{name}" data-kind="{kind}" min="0" '
            f'max="{most}" step="1" value="{start}"><output id="o-{name}"></output></label>'
        )
    kinds = (
        '<fieldset><legend>messages</legend><p><label><input type="radio" name="kind" value="epsilon0" checked> any '
        'epsilon0-LDP message, shuffled</label></p><p><label><input type="radio" name="kind" '
        'value="noise_multiplier"> Gaussian noise in every message, only sums are seen</label></p></fieldset>'
    )
    told = (
        f"Every number is a certified upper end of checkin-jax {version}, for shuffled check-in under "
        "replacement of one client's record: each client throws a fresh coin each round.",
        "Between the points of its table the page does not interpolate. It shows the certified value of a point that "
        "dominates what is chosen: at most as many clients and as large a delta, at least as many rounds and as large "
        "an epsilon0. The truth is below. Rates and noise can only be chosen from the table.",
        "For the smallest proven epsilon of exactly your run, ask checkin epsilon.",
    )
    script = _SCRIPT.replace("__TABLES__", json.dumps(found, separators=(",", ":"), allow_nan=False))
    script = script.replace("__VIEWS__", json.dumps(VIEWS))
    title = "How private would a fleet be?"
    return page.document(
        title,
        [
            f"{_STYLE}<h1>{title}</h1>",
            kinds + "".join(lines),
            '<p id="answer"></p><p id="against"></p><p><small id="point"></small></p>',
            page.paragraphs(told),
            script,
        ],
    )


def main() -> None:
    """Accounts for the table, for a minute, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE)
    out = parser.parse_args().out
    out.write_text(build(tables(AXES, MESSAGES)))
    print(out)


if __name__ == "__main__":
    main()
