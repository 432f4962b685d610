"""One self-contained HTML page about a run: the statement in words, and what the metrics and the accountant say.

Nothing is loaded from anywhere: pictures are inline SVG. It reads well on a phone and on paper.
"""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from checkin_jax import plotting
from checkin_jax._files import replacing
from checkin_jax._rounding import down, up
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.protocols import VIEWS
from checkin_jax.rates import Rates
from checkin_jax.training.reports import trace
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import AccountFn, ByRate, by_rate, every_view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Points of a curve of epsilon: with the tight bounds each may take a second.
_POINTS = 10
# Characters of a setting that are shown.
_ROOM = 1_000
_COLORS: dict[str, str] = dict(zip(VIEWS, ("#7f7f7f", "#123a6b", "#d9822b")))
_STYLE = """
body{font:17px/1.5 system-ui,sans-serif;color:#1b1f24;max-width:46rem;margin:2rem auto;padding:0 1rem}
h1{line-height:1.2;margin-bottom:.2rem}h2{margin-top:2.2rem;border-top:1px solid #ddd;padding-top:1rem}
.sub{color:#57606a;margin-top:0}figure{margin:1rem 0}figure svg{width:100%;height:auto}
figcaption{color:#57606a;font-size:.9rem}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}
.number{white-space:nowrap}code{overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;padding:.8rem;font-size:.82rem}
.warn{background:#fff4e5;border-left:4px solid #d9822b;padding:.5rem .8rem}
@media(max-width:30rem){body{font-size:15px;margin-top:1rem}th,td{padding:.3rem .45rem .3rem 0}}
@media print{body{max-width:none;margin:0;font-size:11pt}figure svg{width:12cm}
figure,table,.warn{break-inside:avoid}h2{break-after:avoid}
pre{background:none;border:1px solid #ddd}}
"""


def build(run: RecordedRun, account_fn: AccountFn = account, *, attack: bool = False) -> str:
    """The page.

    Args:
      run: of at least one round.
      account_fn: the accountant.
      attack: with a section of what an attacker can do, which takes about as long again.

    Raises:
      ValueError: no round was logged.
      ModuleNotFoundError: matplotlib is not installed, which the extra `plots` brings.
    """
    if not run.metrics:
        raise ValueError(f"run_dir={str(run.path)!r}: no round was logged; there is nothing to report")
    ran, planned = (run.run.schedule.so_far(n) for n in (run.rounds, run.rounds_within_budget))
    final = every_view(run.run, ran, account_fn=account_fn)
    points = trace.points(run.run, run.metrics, _POINTS, {ran: final}, account_fn)
    early = ran.repeats < planned.repeats and run.report is not None
    # What is quoted holds however the moment of ending was chosen.
    whole, leading = ran, final
    if early:
        whole, leading = planned, every_view(run.run, planned, account_fn=account_fn)
    sections = [_headline(run, leading), _words(run, leading), _ran(run, final) if early else ""]
    sections += [_attack(leading) if attack else ""]
    sections += [_by_rate(run, by_rate(run.run, whole, leading, account_fn=account_fn))]
    sections += [_accuracy_over_rounds(run), _accuracy_over_epsilon(points), _epsilon_over_rounds(points)]
    sections += [_check_ins(run), _update_norms(run), _statement(run, final), _settings(run)]
    title = f"Private training on {_name(run)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body></html>\n"
    )


def _name(run: RecordedRun) -> str:
    return str(run.about.get("dataset", "unknown data"))


def _headline(run: RecordedRun, final: dict[str, Guarantee]) -> str:
    tested = [line["accuracy"] for line in run.metrics if line.get("accuracy") is not None]
    accuracy = run.report["accuracy"] if run.report else (tested[-1] if tested else None)
    shown = "accuracy not measured" if accuracy is None else f"{accuracy:.1%} accuracy"
    protocol = run.run.protocol
    state = (
        ""
        if run.report
        else '<p class="warn">This run has not ended, or was killed: it has no report yet.</p>'
    )
    return (
        f"<h1>Private training on {html.escape(_name(run))}</h1>"
        f'<p class="sub">{shown} after {run.rounds:,} rounds, {protocol.num_clients:,} clients, '
        f"epsilon at most {_number(final['messages'].epsilon, up)} against "
        f"{html.escape(final['messages'].against)}</p>{state}"
    )


def _words(run: RecordedRun, final: dict[str, Guarantee]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(g.against)}<br><small>view {view}</small></td>"
        + "".join(
            f'<td class="number">{shown}</td>'
            for shown in (_number(g.epsilon, up), _number(g.lower, down), _times(g.epsilon))
        )
        + "</tr>"
        for view, g in final.items()
    )
    notes = "".join(
        f'<p class="warn">{html.escape(note)}</p>' for note in (run.report["notes"] if run.report else [])
    )
    return (
        "<h2>What this run promises</h2>"
        f"<p>Compared are {html.escape(final['messages'].compared)}. "
        "Had any one client held another record, whatever can be concluded from what the adversary saw would have "
        "been concluded with nearly the same probability: at most the factor below, but for a chance of "
        f"{up(run.run.delta, 3)}. No analysis could promise less than the lower end for all randomizers of this "
        "kind.</p>"
        '<div class="wide"><table><tr><th>against</th><th>epsilon at most</th><th>no less than</th>'
        f"<th>factor at most</th></tr>{rows}</table></div>{notes}"
    )


def _ran(run: RecordedRun, final: dict[str, Guarantee]) -> str:
    """The figures of a run that ended early, which do not hold if a result had a part in that."""
    shown = ", ".join(f"epsilon at most {_number(g.epsilon, up)} in view {view}" for view, g in final.items())
    return (
        f"<p>These are the figures of all {run.rounds_within_budget:,} rounds that were to run. Over the "
        f"{run.rounds:,} that ran: {shown}; that is right only if no result had a part in ending there.</p>"
    )


def _attack(final: dict[str, Guarantee]) -> str:
    """Rates and beliefs, both ends certified, and the curve they are on."""
    delta = up(final["messages"].delta, 3)
    heads = ("advantage", "true positives at 1% false", "at 10% false", "belief from 10%", "mu")
    rows = []
    for view, g in final.items():
        cells = (g.advantage, g.tpr(0.01), g.tpr(0.1), g.posterior(0.1), g.mu)
        shown = "".join(f'<td class="number">{_number(ends.upper, up)}</td>' for ends in cells)
        low = "".join(f'<td class="number">{down(ends.lower, 4)}</td>' for ends in cells)
        rows.append(f"<tr><td>{view}<br><small>at most</small></td>{shown}</tr>")
        rows.append(f"<tr><td><small>no less than</small></td>{low}</tr>")
    drawn, _ = plotting.trade_off({view: g.attack for view, g in final.items()})
    caption = (
        "True against false positive rates of the best attack that tells two neighboring data sets apart; lines are "
        "certified, bands reach down to what some attack attains."
    )
    return (
        "<h2>What an attacker can do</h2><p>The best attack on one client's record, whatever it knows besides. "
        "Advantage is its true positive rate minus its false positive rate; belief is how sure it can become of one of "
        f"two candidates, starting at 10%, but for a part {delta} of all runs; mu is that of Gaussian differential "
        f"privacy but for {delta}.</p>"
        f'<div class="wide"><table><tr><th>view</th>{"".join(f"<th>{head}</th>" for head in heads)}</tr>'
        f"{''.join(rows)}</table></div>{_picture(drawn, 'Trade-off curve', caption)}"
    )


def _accuracy_over_rounds(run: RecordedRun) -> str:
    lines = [line for line in run.metrics if "accuracy" in line]
    if not lines:
        return ""

    def draw(axis: Axes) -> None:
        axis.plot(
            [line["round"] for line in lines],
            [100 * line["accuracy"] for line in lines],
            ".-",
            color="#123a6b",
        )
        axis.set(xlabel="round", ylabel="test accuracy (%)")

    return _figure("Accuracy over the rounds", "On the public test set.", draw)


def _accuracy_over_epsilon(points: Sequence[trace.Point]) -> str:
    def draw(axis: Axes) -> None:
        for view in VIEWS:
            kept = [point for point in points if 0 < point.guarantees[view].epsilon < np.inf]
            accuracy = [100 * point.accuracy for point in kept]
            upper = [point.guarantees[view].epsilon for point in kept]
            lower = [point.guarantees[view].lower for point in kept]
            axis.fill_betweenx(accuracy, lower, upper, color=_COLORS[view], alpha=0.25, linewidth=0)
            axis.plot(upper, accuracy, ".-", color=_COLORS[view], label=view)
        axis.set(xscale="log", xlabel="epsilon (nats)", ylabel="test accuracy (%)")
        axis.legend(frameon=False)

    if not points:
        return ""
    return _figure(
        "What accuracy cost",
        "Accuracy against the epsilon spent when it was reached; bands are brackets.",
        draw,
    )


def _epsilon_over_rounds(points: Sequence[trace.Point]) -> str:
    if len(points) < 2:
        return ""

    def draw(axis: Axes) -> None:
        for view in VIEWS:
            kept = [point for point in points if 0 < point.guarantees[view].epsilon < np.inf]
            found = [point.guarantees[view] for point in kept]
            rounds = [point.round for point in kept]
            plotting.bracket(
                axis, rounds, [g.lower for g in found], [g.epsilon for g in found], view, _COLORS[view]
            )
        axis.set(yscale="log", xlabel="round", ylabel="epsilon (nats)")
        axis.legend(frameon=False)

    return _figure("What the rounds cost", "Lines are guarantees, bands reach down to the lower ends.", draw)


def _check_ins(run: RecordedRun) -> str:
    """The realised numbers of messages a round beside their law."""
    schedule = run.run.schedule
    counts = np.array([line["check_ins"] for line in run.metrics])
    caption = f"{counts.sum():,} messages in {len(counts):,} rounds, {counts.mean():,.1f} a round."
    number, rate = schedule.check_ins
    if rate == 1.0:
        return f"<h2>Check-ins</h2><p>{caption} Their number is fixed by the protocol.</p>"
    likely = np.array([-4.0, 4.0]) * np.sqrt(number * rate) + number * rate
    low, high = max(0, min(counts.min(), int(likely[0]))), min(number, max(counts.max(), int(likely[1])))
    width = max(1, (high - low) // 40)
    edges = np.arange(low, high + width + 1, width) - 0.5
    expected, law = schedule.messages_law(edges, len(counts))

    def draw(axis: Axes) -> None:
        axis.hist(counts, edges.tolist(), color="#5a9bd5", alpha=0.7, label="rounds")
        axis.step(edges, [*expected, expected[-1]], where="post", color="#123a6b", label="expected")
        axis.set(xlabel="messages in a round", ylabel="rounds")
        axis.legend(frameon=False)

    return _figure("Check-ins", f"{caption} Expected by their law, {law}.", draw)


def _by_rate(run: RecordedRun, tables: ByRate) -> str:
    """Epsilon against the check-in rate, the worst client first, and how many clients have which rate."""
    coins = run.run.protocol.coins
    if not tables or not isinstance(coins, Rates):
        return ""
    rows = "".join(
        f'<tr><td class="number">{row.client_rate:.6g}</td>'
        + "".join(
            f'<td class="number">{_number(each[i].epsilon, up)}<br>'
            f"<small>at least {down(each[i].lower, 4)}</small></td>"
            for each in tables.values()
        )
        + "</tr>"
        for i, row in enumerate(tables[VIEWS[0]])
    )
    heads = "".join(f"<th>epsilon, {view}</th>" for view in tables)
    caption = "Lines are guarantees for clients of each rate, bands reach down to the lower ends."
    drawn = plotting.by_rate(tables, _COLORS, coins.values, coins.counts)
    return (
        "<h2>What it costs whom</h2><p>Clients check in at rates of their own; who comes most often is worst off, and "
        "every figure elsewhere on this page is for that client.</p>"
        f'<div class="wide"><table><tr><th>check-in rate up to</th>{heads}</tr>{rows}</table></div>'
        f"{_picture(drawn, 'Epsilon by check-in rate', caption)}"
    )


def _update_norms(run: RecordedRun) -> str:
    """Norms of the updates that were released: those of single clients are not covered by any guarantee."""
    lines = [line for line in run.metrics if line.get("update_norm") and line.get("noise_norm")]
    if not lines:
        return ""
    rounds = [line["round"] for line in lines]

    def draw(axis: Axes) -> None:
        axis.plot(rounds, [line["update_norm"] for line in lines], ".-", color="#123a6b", label="update")
        axis.plot(
            rounds,
            [line["noise_norm"] for line in lines],
            "--",
            color="#7f7f7f",
            label="noise in it, expected",
        )
        axis.axhline(run.run.clip_norm, color="#c0392b", linewidth=1, label="clip norm")
        axis.set(yscale="log", xlabel="round", ylabel="l2 norm")
        axis.legend(frameon=False)

    return _figure(
        "Updates against clip norm and noise",
        "Norm of the released update. What single clients sent is not shown: no guarantee covers it.",
        draw,
    )


def _statement(run: RecordedRun, final: dict[str, Guarantee]) -> str:
    text = run.statement or "\n\n".join(str(final[view]) for view in VIEWS)
    return f"<h2>The statement</h2><pre>{html.escape(text)}</pre>"


def _settings(run: RecordedRun) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td><code>{html.escape(_short(json.dumps(value)))}</code></td></tr>"
        for name, value in run.about.items()
    )
    return f'<h2>Settings and versions</h2><div class="wide"><table>{rows}</table></div>'


def _short(text: str) -> str:
    """Text that a page has room for: config.json holds the rates of all clients."""
    return text if len(text) <= _ROOM else f"{text[:_ROOM]} ... ({len(text):,} characters, see config.json)"


def _figure(title: str, caption: str, draw: Callable[[Axes], None]) -> str:
    """A section with one picture, as inline SVG."""
    drawn, (axis,) = plotting.figure()
    draw(axis)
    return f"<h2>{html.escape(title)}</h2>{_picture(drawn, title, caption)}"


def _picture(drawn: Figure, title: str, caption: str) -> str:
    stream = io.StringIO()
    drawn.savefig(stream, format="svg", metadata={"Date": None})
    picture = stream.getvalue()
    picture = picture[picture.index("<svg") :]
    return (
        f"<figure role='img' aria-label='{html.escape(title, quote=True)}'>{picture}"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _number(value: float, cut: Callable[[float, int], str]) -> str:
    return cut(value, 4) if np.isfinite(value) else "no finite bound"


def _times(epsilon: float) -> str:
    return up(np.exp(epsilon), 3) if epsilon < 700 else "no finite bound"


def write(run: RecordedRun, out: Path, account_fn: AccountFn = account, *, attack: bool = False) -> Path:
    """Writes the page to `out`, whole or not at all; returns the path; arguments as of `build`.

    Raises:
      ValueError, ModuleNotFoundError: see `build`.
      OSError: it cannot be written, or another process is writing it; found out before the page is built.
    """
    with replacing(out) as stream:
        stream.write(build(run, account_fn, attack=attack).encode())
    return out
