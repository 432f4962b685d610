"""Record of a training run, the source of its page and of its statement."""

from __future__ import annotations

from checkin_jax.accounting.account import account
from checkin_jax.reports import evidence
from checkin_jax.reports.declarations import Deployment
from checkin_jax.reports.record import PROTECTED, Promise, Record, reliable_view, sentence
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import POST_PROCESSING, AccountFn, figures

_METRICS = "metrics: they were measured on a public test set, which no guarantee here protects"
_RELEASED = "the model after every round, and so its final parameters"
# Files of a run's folder whose hashes are on the page.
_FILES = ("config.json", "metrics.jsonl", "parameters.npz", "report.json", evidence.AUDIT)


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
    data, held = str(about.get("dataset", "unknown data")), about.get("records_per_client")
    held = held if isinstance(held, int) else None
    tested = [line["accuracy"] for line in run.metrics if line.get("accuracy") is not None]
    accuracy = run.report["accuracy"] if run.report else (tested[-1] if tested else None)
    measured = "accuracy not measured" if accuracy is None else f"{accuracy:.1%} accuracy"
    return Record(
        title=f"Private training on {data}",
        lead=f"{measured} after {run.rounds:,} rounds, {protocol.num_clients:,} clients",
        state=tuple(run.report["notes"]) if run.report else ("this run has not ended, or was killed",),
        promises=(Promise(guarantees=leading, relied_on=leading[reliable_view(leading, said)]),),
        ran=found if planned else {},
        by_rate=rates,
        rounds=run.rounds,
        ended=run.report is not None,
        target=None if private.target_epsilon is None else (private.target_epsilon, private.target_view),
        protocol=(protocol.title, private.schedule.so_far(run.rounds).in_words),
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
        files=evidence.digests(run.path / name for name in _FILES),
        source=run.path.resolve().name,
        deployment=said,
    )
