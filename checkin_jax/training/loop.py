"""The training loop: draw the participants, sum their privatised updates, divide by a public number, step.

The divisor is always public (see `Schedule.divisor`). The ledger counts a round, and a window as a whole,
before the result is used, so it never counts too few.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from checkin_jax import _validate
from checkin_jax._progress import going_on
from checkin_jax._suggest import named
from checkin_jax._validate import optional
from checkin_jax.accounting.account import account
from checkin_jax.training import draws
from checkin_jax.training.budget import Spent, halted, rounds_within
from checkin_jax.training.draws import DUMMY, EntropySource, Stream
from checkin_jax.training.model import (
    Dataset,
    Holdings,
    Model,
    check_finite,
    check_model,
    given,
    keys_of,
    named_arrays,
    one_of,
    row_of,
)
from checkin_jax.training.private.clients import ClientUpdate, Parameters, Records
from checkin_jax.training.private.mechanism import GROUP
from checkin_jax.training.private.step import Performance, buffer_capacity, round_sum
from checkin_jax.training.reports.recorded import LINE
from checkin_jax.training.reports.report import AccountFn, Report, figures, message_privacy
from checkin_jax.training.run import PrivateRun, check_trainable
from checkin_jax.training.runs.session import INTERRUPTED, Session
from checkin_jax.training.server import (
    BY_RULE,
    NOT_STATED,
    State,
    averaged,
    check_optimizer,
    server,
    suggested_learning_rate,
)

# Rounds dispatched before the result of an earlier one is known: enough to keep a device busy.
AHEAD = 2
OnRound = Callable[[dict[str, Any]], None]
OnModel = Callable[[Parameters], None]
# parameters -> name -> number
Evaluate = Callable[[Parameters], Mapping[str, Any]]
TEST_RECORDS_AT_ONCE = 100


class RoundError(RuntimeError):
    """A round whose sum was not computed: a device or another process failed, or memory ran out."""


class _Round(NamedTuple):
    """A dispatched round: its line of metrics so far, the state after it, and True if it is evaluated."""

    line: dict[str, Any]
    after: State
    evaluated: bool


@named
def train(
    run: PrivateRun,
    model: Model,
    dataset: Dataset,
    run_dir: str | Path,
    *,
    optimizer: optax.GradientTransformation | None = None,
    client_update: ClientUpdate | None = None,
    records_per_client: int | None = None,
    records_per_round: int | None = None,
    averaging: float = 0.0,
    eval_every: int = 50,
    evaluate: Evaluate | None = None,
    target_accuracy: float | None = None,
    on_round: OnRound | None = None,
    on_model: OnModel | None = None,
    performance: Performance | None = None,
    seed: int | None = None,
    entropy: EntropySource | None = None,
    checkpoint_every: int = 0,
    keep_checkpoints: int = 2,
    resume: bool = False,
    about: Mapping[str, Any] | None = None,
    tuning: str | None = None,
    verbose: bool = True,
    account_fn: AccountFn = account,
) -> Report:
    """Trains any model under a check-in protocol and writes a complete run directory.

    With `run.target_epsilon` the run ends before the round that would exceed it. The number of rounds that
    fit is known before the first one; the learning rate decays and parameters are averaged over these rounds.

    Formal guarantees: each round's participants, messages and noise follow `run.protocol` and
    `run.randomizer`, so `account` of these two objects applies to this run. Results depend on clients' records
    only through the round sums. A run that was killed and resumed leaves the same bits in parameters.npz and
    metrics.jsonl as an uninterrupted one. Its repeated rounds are the same releases and are counted once.

    Args:
      run: the settings that determine its privacy.
      model: parameters and the loss of one record. Batch normalisation, and every other dependence of a
        client's update on another client's records, is refused.
      dataset: records of the clients, and public test records; a client holds the same records for the whole
        run.
      run_dir: a folder that does not exist yet or is empty, unless `resume`.
      optimizer: any optax transformation; its gradient is the estimated mean of the clipped updates. It runs
        on the server and costs no privacy, but tuning it on the protected data would. None: SGD with a
        learning rate by a rule of thumb (`suggested_learning_rate`), decaying to zero over the run.
      client_update: a client's computation instead of the gradient of `model.loss`, see `local_steps`.
      records_per_client: records per client; with owners, at most this many of the owned ones. None: one, or
        all owned.
      records_per_round: number of its records that a client uses at a check-in, drawn anew every time; None:
        all. In either case all records of the client are protected.
      averaging: the last fraction of updates over which the parameters are averaged, in [0, 1); 0 returns the
        last ones. Averaging is post-processing.
      eval_every: rounds between evaluations.
      evaluate: parameters -> name -> number, for evaluations beyond `model.metrics`; it may use public data
        only. It is called once on the initial parameters, so that its errors appear before any round.
      target_accuracy: stop at the first evaluation whose "accuracy" reaches it, in (0, 1]; None runs all
        rounds. Refused if no evaluation reports an "accuracy".
      on_round: called after every round with its line of metrics.jsonl: round, check_ins (messages that
        arrived, dummies included), window (if the protocol has windows) and, at evaluations, the model's
        metrics, epsilon, epsilon_lower, view, method and spent (the report's figures over all rounds begun,
        in view "messages" and in every view; see `Spent` for runs with many evaluations). A round is logged
        only once its result is computed.
      on_model: called with the parameters before the first round and after every round.
      performance: settings of the computation. With several processes every one calls this function with the
        same arguments, and only the first one writes.
      seed: None draws the run's entropy from the operating system. A number makes the run reproducible, and
        hence not private against anyone who knows the number.
      entropy: source of the run's 128 secret bits instead of the operating system: a function that returns a
        requested number of bytes, as os.urandom does. Its quality is assumed, and the report says so. A
        resumed run uses the bits in its checkpoint.
      checkpoint_every: rounds between checkpoints; 0: none. During the run they contain its entropy, which
        must stay secret (see `checkpoints`). They are deleted when it has finished.
      keep_checkpoints: number of most recent checkpoints on disk.
      resume: continue the run in `run_dir` from its last complete checkpoint; begin it if there is none.
      about: plain values added to config.json and the report, such as settings of the model and the
        optimizer, under names of your own.
      tuning: description of how optimizer and settings were chosen, for the report. None: the rule of thumb
        if `optimizer` is None, else "not stated".
      verbose: without `on_round`, one line on standard error after five seconds says that the run is under
        way.
      account_fn: the accountant of report and metrics, called as `account` is.

    Returns:
      The report, also written to run_dir. On KeyboardInterrupt the loop ends, and the report covers the
      rounds whose results were logged; if there are none, the interrupt is raised again. Such a run may be
      resumed.

    Raises:
      ValueError, TypeError: an argument outside its range; a model that cannot be trained privately; initial
        parameters that are not finite. EntropyError, a kind of ValueError: `entropy` returned too few bytes
        or no random ones. ResumeError, a kind of ValueError: the run to be resumed is another one or has
        finished, or its checkpoints are gone.
      RoundError: a round could not be computed. All logged rounds were computed.
      FileExistsError, BlockingIOError, OSError: the run directory is in use or cannot be written. Files saved
        before stay.
    """
    _validate.instance(Model, model=model)
    _validate.instance(Dataset, dataset=dataset)
    every = _validate.integer(0, checkpoint_every=checkpoint_every)
    keep = _validate.integer(1, keep_checkpoints=keep_checkpoints)
    performance = performance or Performance()
    last = rounds_within(check_trainable(run), account_fn)
    settings = _settings(
        {
            "averaging": _validate.real(0, 1, "[)", averaging=averaging),
            "eval_every": _validate.integer(1, eval_every=eval_every),
            "target_accuracy": optional(_validate.real, 0, 1, "(]", target_accuracy=target_accuracy),
            "seed": optional(_validate.integer, 0, 2.0**128, seed=seed),
            "microbatch": performance.microbatch,
            "records_per_client": optional(
                _validate.integer, 1, 10**6, records_per_client=records_per_client
            ),
            "records_per_round": optional(_validate.integer, 1, 10**6, records_per_round=records_per_round),
            "tuning": _validate.optional(_validate.words, tuning=tuning)
            or (BY_RULE if optimizer is None else NOT_STATED),
            **({} if run.target_epsilon is None else {"rounds_within_budget": last}),
        },
        {"model": model.name} if about is None else about,
    )
    if entropy is not None:
        draws.source_name(entropy)
        if seed is not None:
            raise ValueError(f"entropy: expected None with seed={seed}, which is all the run draws from")
    schedule, mechanism = run.schedule, run.mechanism
    contribution = model.loss if client_update is None else client_update
    width = dataset.most_held(settings["records_per_client"])
    if settings["records_per_round"] is not None:
        width = min(width, settings["records_per_round"])
    shapes = check_model(model, dataset, client_update, width)
    if optimizer is None:
        optimizer = optax.sgd(optax.linear_schedule(suggested_learning_rate(run, last), 0.0, last))
    else:
        check_optimizer(optimizer, shapes)
    start, update = server(optimizer)
    names = metric_names(model, dataset, shapes)
    if evaluate is None:
        _check_target(target_accuracy, names)
    tested = tests(model, dataset, evaluate, performance)
    # The report repeats figures of the last evaluation.
    account_fn = functools.cache(account_fn)
    capacity = buffer_capacity(*schedule.check_ins, GROUP)
    # No larger than a likely round: absent clients of a microbatch cost as much as present ones.
    performance = dataclasses.replace(performance, microbatch=min(performance.clients_at_once, capacity))
    first_averaged = last - int(settings["averaging"] * last)

    def program() -> str:
        return _program(model, client_update, start, update, shapes, dataset, width)

    with (
        going_on(
            f"training: up to {last:,} rounds; lines come to {Path(run_dir) / 'metrics.jsonl'}",
            verbose and on_round is None and jax.process_index() == 0,
        ),
        Session(
            run,
            settings,
            dataset,
            run_dir,
            program=program,
            every=every,
            keep=keep,
            resume=resume,
            mesh=performance.mesh,
            source=entropy,
        ) as session,
        Spent(run, settings["eval_every"], account_fn, last) as spent,
        _failures_named(session),
    ):
        state = session.begin(start(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)))
        begins = state is None
        if state is None:
            initial = model.init(draws.jax_key(session.entropy, Stream.INITIAL_PARAMETERS))
            state = start(check_finite(initial))
        if evaluate is not None:
            names |= set(own_metrics(evaluate, averaged(state)))
            _check_target(target_accuracy, names)
        if begins:
            session.checkpoint(state)
        state, records = performance.placed((state, dataset.records))
        held = dataset.holdings(session.entropy, run.protocol.num_clients, settings["records_per_client"])
        number = settings["records_per_round"]

        def records_of(index: int, chosen: np.ndarray) -> np.ndarray:
            """Records used by the messages of a round."""
            rows = _records(held, chosen)
            return rows if number is None else dataset.drawn(session.entropy, index, rows, number)

        clients, noise_key = schedule.draw(session.entropy), draws.jax_key(session.entropy, Stream.NOISE)
        spent.prepare(session.rounds)
        if on_model is not None:
            on_model(state.parameters)
        stopped, seen = None, state
        under_way: collections.deque[_Round] = collections.deque()

        def settle(done: _Round) -> None:
            """Waits for a round, then logs it and passes its result on; the round was counted before."""
            nonlocal seen
            jax.block_until_ready(done.after)
            session.rounds = done.line["round"]
            seen, line = done.after, done.line
            if done.evaluated:
                session.tested = session.rounds, tested(averaged(seen))
                line |= session.tested[1] | spent.line(session.rounds)
            session.log(line)
            if on_round is not None:
                on_round(line)
            if on_model is not None:
                on_model(seen.parameters)
            session.checkpoint(seen)

        try:
            for index in range(session.rounds, last):
                if session.reached(settings["target_accuracy"]):
                    stopped = f"reached accuracy {settings['target_accuracy']:g}"
                    break
                chosen, rounds = clients(index), index + 1
                if len(chosen):  # without check-ins: no message, no step
                    total = round_sum(
                        mechanism,
                        contribution,
                        state.parameters,
                        records,
                        records_of(index, chosen),
                        draws.round_key(noise_key, index),
                        capacity=capacity,
                        performance=performance,
                    )
                    divisor = schedule.divisor(len(chosen))
                    state = update(state, total, divisor, max(0, rounds - first_averaged))
                line: dict[str, Any] = {"round": rounds, "check_ins": len(chosen)}
                if schedule.has_windows:
                    line["window"] = schedule.units(rounds)
                evaluated = rounds % settings["eval_every"] == 0 or rounds == last
                under_way.append(_Round(line, state, evaluated))
                while len(under_way) > (0 if evaluated else AHEAD):
                    settle(under_way.popleft())
            else:
                if last < schedule.num_rounds:
                    stopped = halted(run)
        except KeyboardInterrupt:
            # Rounds under way were not shown to anybody and are dropped.
            if not session.rounds:
                raise
            stopped = INTERRUPTED
        seconds = session.seconds
        tested_at, metrics = session.tested
        found, planned, rates = figures(run, session.rounds, last, account_fn)
        report = Report(
            run=run,
            settings=settings,
            dataset=dataset.name,
            num_records=len(dataset),
            metrics=metrics if tested_at == session.rounds else tested(averaged(seen)),
            rounds=session.rounds,
            seconds=seconds,
            stopped=stopped,
            guarantees=found,
            planned=planned,
            message=message_privacy(run, account_fn),
            by_rate=rates,
            entropy=session.source,
            holding=dataset.holding(settings["records_per_client"]),
            sharing=dataset.sharing(run.protocol.num_clients, settings["records_per_client"]),
        )
        session.finish(report, named_arrays(averaged(seen)))
    return report


@contextlib.contextmanager
def _failures_named(session: Session) -> Iterator[None]:
    """Turns failures of devices and of other processes into errors of the round."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise RoundError(
            f"round {session.rounds + 1} could not be computed: {str(error).strip().splitlines()[0]}"
        ) from error


def _settings(own: dict[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in config.json beside those of the run; the caller's names must differ from them."""
    run = {field.name for field in dataclasses.fields(PrivateRun)}
    taken = {*own, *run, "rounds_within_budget", "version", "dataset", "jax", "entropy"}
    for name, value in about.items():
        if name in taken:
            raise _validate.error(f"other names than {', '.join(sorted(taken))}", about=name)
        try:
            if not isinstance(name, str):
                raise TypeError
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise _validate.error("plain values, as JSON has them", about={name: value}) from None
    return {**own, **about}


def _check_target(target_accuracy: float | None, names: set[str]) -> None:
    if target_accuracy is not None and "accuracy" not in names:
        raise ValueError(
            f"target_accuracy={target_accuracy!r}: expected an 'accuracy' among metrics on a test set, or of `evaluate`"
        )


def _program(
    model: Model,
    client_update: ClientUpdate | None,
    start: Callable[..., State],
    update: Callable[..., State],
    shapes: Any,
    dataset: Dataset,
    width: int,
) -> str:
    """Digest of the clients' computation, each on up to `width` records, and of the server's."""
    from checkin_jax.training.runs.checkpoints import fingerprint

    own = fingerprint(jax.value_and_grad(model.loss), shapes, one_of(dataset.records), *keys_of(model.loss))
    if client_update is not None:
        arguments = *row_of(dataset.records, width), *keys_of(client_update)
        own += fingerprint(client_update.function, shapes, *arguments)
    total = jax.ShapeDtypeStruct((sum(x.size for x in jax.tree.leaves(shapes)),), jnp.float32)
    return own + fingerprint(
        lambda state, total: update(state, total, 1.0, 1), jax.eval_shape(start, shapes), total
    )


def _records(held: Holdings, chosen: np.ndarray) -> np.ndarray:
    """Records of the chosen clients; a row of DUMMY for a DUMMY client."""
    present = chosen != DUMMY
    if present.all():
        return held[chosen]
    records = np.full((len(chosen), *held.shape[1:]), DUMMY, np.int32)
    records[present] = held[chosen[present]]
    return records


def metric_names(model: Model, dataset: Dataset, parameters: Any) -> set[str]:
    """Names of the metrics on the test set, checked before any round runs.

    Args:
      parameters: their shapes.

    Raises:
      ValueError, TypeError: `model.metrics` does not return names and scalars, or uses a name reserved for
        the run's lines.
    """
    if dataset.test is None or model.metrics is None:
        return set()
    record = one_of(dataset.test)
    with given("the metrics of one record of the test set", record):
        found = jax.eval_shape(model.metrics, parameters, record)
    if not isinstance(found, Mapping) or any(getattr(x, "shape", None) != () for x in found.values()):
        raise TypeError(f"the metrics of one record are {found}: expected names and a scalar for each")
    _check_names(found)
    return set(found)


def _check_names(found: Mapping[str, Any]) -> None:
    for name in found:
        if name in LINE:
            raise ValueError(f"metric {name!r}: expected another name than {', '.join(LINE)}")


def own_metrics(evaluate: Evaluate, parameters: Parameters) -> dict[str, float]:
    """Results of a user's own evaluation, by name.

    Raises:
      TypeError: the result has another form. ValueError: a name reserved for the run's lines.
    """
    found = evaluate(parameters)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"evaluate returned {_validate.shown(found)}: expected names and a number for each")
    _check_names(found)
    values = {}
    for name, value in found.items():
        try:
            if np.ndim(value) or isinstance(value, str):
                raise TypeError
            values[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"evaluate returned {name}={_validate.shown(value)}: expected a number") from None
    return values


def tests(
    model: Model, dataset: Dataset, evaluate: Evaluate | None, performance: Performance
) -> Callable[[Parameters], dict[str, float | None]]:
    """Function from parameters to means of the metrics over the public test set and results of `evaluate`."""
    measure, test = model.metrics, None
    if dataset.test is not None and measure is not None:
        test = performance.placed(dataset.test)

        @jax.jit
        def means(parameters: Parameters, test: Records) -> Mapping[str, jax.Array]:
            each = jax.lax.map(
                lambda record: measure(parameters, record), test, batch_size=TEST_RECORDS_AT_ONCE
            )
            return jax.tree.map(lambda values: jnp.mean(values.astype(jnp.float32)), each)

    def tested(parameters: Parameters) -> dict[str, float | None]:
        found: dict[str, Any] = {}
        if test is not None:
            found |= means(parameters, test)
        if evaluate is not None:
            found |= own_metrics(evaluate, parameters)
        values = {name: float(value) for name, value in found.items()}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    return tested
