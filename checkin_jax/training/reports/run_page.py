"""The record of a training run, the source of its statement and page; its HTML page, with figures of its metrics."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from checkin_jax import plotting
from checkin_jax._rounding import down, up
from checkin_jax._validate import cut
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import RateRow
from checkin_jax.protocols import VIEWS
from checkin_jax.reports import declarations, render
from checkin_jax.reports.declarations import Deployment
from checkin_jax.reports.record import (
    PROTECTED,
    Figure,
    Promise,
    Record,
    Section,
    number,
    sentence,
)
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import POST_PROCESSING, AccountFn, figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_METRICS = "metrics: they were measured on a public test set, which no guarantee here protects"
_RELEASED = "the model after every round, and so its final parameters"
# Files of a run's folder whose hashes are on the page.
_FILES = ("config.json", "metrics.jsonl", "parameters.npz", "report.json", declarations.AUDIT)


def of_run(
    run: RecordedRun, account_fn: AccountFn = account, *, deployment: Deployment | None = None
) -> Record:
    """Record of a run, with the guarantees of all planned rounds if fewer ran.

    Args:
      run: of at least one round.
      account_fn: the accountant.
      deployment: declarations of the deployer; None: those of deployment.toml in the run's folder, if it
        exists.

    Raises:
      ValueError: no round was logged, or a file in the folder is damaged.
    """
    if not run.rounds:
        raise ValueError(f"run_dir={str(run.path)!r}: no round was logged; there is nothing to state")
    private, about, protocol, audit = run.run, run.about, run.run.protocol, run.audit
    found, planned, rates = figures(private, run.rounds, run.rounds_within_budget, account_fn)
    leading = planned or found
    said = run.deployment if deployment is None else deployment
    accounted = next(iter(leading.values())).protocol.in_words
    if planned:
        accounted += f"; it ended after {run.rounds:,} of {run.rounds_within_budget:,} rounds"
    data, held = str(about.get("dataset", "unknown data")), about.get("records_per_client")
    held = held if isinstance(held, int) else None
    tested = [line["accuracy"] for line in run.metrics if line.get("accuracy") is not None]
    accuracy = run.report["accuracy"] if run.report else (tested[-1] if tested else None)
    measured = "accuracy not measured" if accuracy is None else f"{accuracy:.1%} accuracy"
    return Record(
        title=f"Private training on {data}",
        lead=f"{measured} after {run.rounds:,} rounds, {protocol.num_clients:,} clients",
        state=tuple(run.report["notes"]) if run.report else ("this run has not ended, or was killed",),
        promises=(Promise(guarantees=leading),),
        ran=found if planned else {},
        by_rate=rates,
        rounds=run.rounds,
        ended=run.report is not None,
        target=None if private.target_epsilon is None else (private.target_epsilon, private.target_view),
        protocol=(protocol.title, accounted),
        data=data,
        clients=protocol.num_clients,
        records_per_client=held,
        clip_norm=private.clip_norm,
        unit=sentence(f"{PROTECTED}{'' if held is None else f' ({held:,} each)'}, over the whole run"),
        mechanism=tuple(
            f"Before it, on the same clients: {one.description}, {its.description}."
            for one, its in private.before
        ),
        covered=(
            f"All {run.rounds:,} rounds of training on the clients' records"
            f"{', and the earlier runs named above' if private.before else ''}.",
        ),
        tuning=about.get("tuning"),
        evaluation=_METRICS,
        released=(sentence(_RELEASED), sentence(POST_PROCESSING)),
        randomness=f"Secret bits came from {about.get('entropy', 'a source that was not recorded')}.",
        audit=audit,
        run_by=f"checkin-jax {about.get('version', 'unknown')}",
        files=declarations.digests(run.path / name for name in _FILES),
        source=run.path.resolve().name,
        deployment=said,
    )


# Most characters of a setting on the page.
_ROOM = 1_000
_COLORS: dict[str, str] = dict(zip(VIEWS, ("#7f7f7f", "#123a6b", "#d9822b")))


_NO_FIGURES = (
    "No figures: matplotlib was not installed. Their numbers are in metrics.jsonl in the run's folder."
)


def build(
    run: RecordedRun,
    account_fn: AccountFn = account,
    *,
    deployment: Deployment | None = None,
    made: datetime.date | None = None,
) -> str:
    """HTML of the page.

    Args:
      run: of at least one round.
      account_fn: the accountant.
      deployment: declarations of the deployer; None: those of deployment.toml in the run's folder, if it
        exists.
      made: date on the page; None: today, UTC.

    Raises:
      ValueError: no round was logged, a declaration matches nothing, or a file in the folder is damaged.
    """
    if not run.metrics:
        raise ValueError(f"run_dir={str(run.path)!r}: no round was logged; there is nothing to report")
    subject = of_run(run, account_fn, deployment=deployment)
    sections = (
        *_by_rate(subject.by_rate),
        _course(run),
        Section(
            title="Settings and versions",
            pairs=tuple((name, cut(json.dumps(value), _ROOM)) for name, value in run.about.items()),
        ),
    )
    return render.page(dataclasses.replace(subject, sections=sections, made=made or subject.made))


def _course(run: RecordedRun) -> Section:
    """Figures of the run's metrics."""
    evaluated = [line for line in run.metrics if line.get("accuracy") is not None]
    accounted = [line for line in evaluated if "spent" in line and "spent_lower" in line]
    figures: list[Figure] = []
    if evaluated:
        draw = functools.partial(_draw_accuracy, lines=evaluated)
        figures += _figure("Accuracy over the rounds", "On the public test set.", draw)
    if accounted:
        draw = functools.partial(_draw_epsilon, lines=accounted, by_accuracy=True)
        caption = "Accuracy against the epsilon spent when it was reached; bands are brackets."
        figures += _figure("Accuracy against epsilon", caption, draw)
    if len(accounted) > 1:
        draw = functools.partial(_draw_epsilon, lines=accounted, by_accuracy=False)
        caption = "Lines are guarantees; bands extend down to the lower ends."
        figures += _figure("Epsilon over the rounds", caption, draw)
    missing = () if plotting.available() else (_NO_FIGURES,)
    return Section(title="Course of the run", paragraphs=missing, figures=(*figures, *_check_ins(run)))


def _draw_accuracy(axis: Axes, lines: Sequence[dict[str, Any]]) -> None:
    rounds, accuracies = [line["round"] for line in lines], [100 * line["accuracy"] for line in lines]
    axis.plot(rounds, accuracies, ".-", color="#123a6b")
    axis.set(xlabel="round", ylabel="test accuracy (%)")


def _draw_epsilon(axis: Axes, lines: Sequence[dict[str, Any]], *, by_accuracy: bool) -> None:
    """Brackets of epsilon in every view: sideways against the accuracy, or over the rounds."""
    ends: list[float] = []
    for view in VIEWS:
        rounds, accuracy, lower, upper = _spent(lines, view)
        at, style = (accuracy, ".-") if by_accuracy else (rounds, "-")
        plotting.band(axis, at, lower, upper, style, sideways=by_accuracy, color=_COLORS[view], label=view)
        ends += upper.tolist()
    plotting.scale(axis, "x" if by_accuracy else "y", ends)
    words = ("epsilon (nats)", "test accuracy (%)") if by_accuracy else ("round", "epsilon (nats)")
    axis.set(xlabel=words[0], ylabel=words[1])
    axis.legend(frameon=False)


def _spent(lines: Sequence[dict[str, Any]], view: str) -> np.ndarray:
    """Rounds, accuracies in percent, and both ends of epsilon where these are positive and finite; (4, lines)."""
    rows = [
        (line["round"], 100 * line["accuracy"], line["spent_lower"][view], line["spent"][view])
        for line in lines
        if line["spent"][view]  # null means infinite
    ]
    return np.array(rows, np.float64).reshape(-1, 4).T


def _check_ins(run: RecordedRun) -> tuple[Figure, ...]:
    """Realised numbers of messages per round."""
    counts = np.array([line["check_ins"] for line in run.metrics])
    schedule = run.run.schedule
    caption = f"{counts.sum():,} messages in {len(counts):,} rounds, {counts.mean():,.1f} a round"
    if schedule.check_ins[1] == 1.0:
        return (Figure(title="Check-ins", caption=f"{caption}. Their number is fixed by the protocol."),)

    def draw(axis: Axes) -> None:
        width = max(1, int(np.ptp(counts)) // 40)  # whole numbers, so that bins hold equally many counts
        edges = np.arange(counts.min(), counts.max() + width + 1, width) - 0.5
        axis.hist(counts, edges.tolist(), color="#5a9bd5")
        axis.set(xlabel="messages in a round", ylabel="rounds")

    return _figure("Check-ins", f"{caption}; {schedule.expected_messages:,.1f} expected.", draw)


def _by_rate(tables: Mapping[str, Sequence[RateRow]]) -> tuple[Section, ...]:
    """Epsilon against the check-in rate, the worst client first; none if all rates are equal."""
    if not tables:
        return ()
    rows = tuple(
        (
            (f"{row.client_rate:.6g}", ""),
            *(
                (number(each[i].epsilon, up), f"at least {down(each[i].lower, 4)}")
                for each in tables.values()
            ),
        )
        for i, row in enumerate(tables[VIEWS[0]])
    )
    told = (
        "Check-in rates differ between clients. All other figures on this page are for the client with the highest "
        "rate, whose epsilon is the largest."
    )
    heads = "check-in rate up to", *(f"epsilon, {view}" for view in tables)
    return (Section(title="Epsilon of each client", paragraphs=(told,), heads=heads, rows=rows),)


def _figure(title: str, caption: str, draw: Callable[[Axes], None]) -> tuple[Figure, ...]:
    """A figure of one panel, in which `draw` draws; none if matplotlib is not installed."""
    if not plotting.available():
        return ()
    from matplotlib.ticker import MaxNLocator

    drawn, (axis,) = plotting.figure()
    drawn.set_layout_engine(None)  # it would draw everything twice
    drawn.subplots_adjust(left=0.17, right=0.97, bottom=0.15, top=0.97)
    draw(axis)
    for ticks in (axis.xaxis, axis.yaxis):
        if ticks.get_label_text() in ("round", "rounds"):  # a count from zero, without fractions
            ticks.set_major_locator(MaxNLocator("auto", integer=True))
            ticks.axes.set(**{f"{ticks.axis_name}lim": (0, None)})
    return (render.figure(drawn, title, caption),)
