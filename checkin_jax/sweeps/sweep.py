"""`sweep` and `sweep_to_file`: a table of settings in, a row of results for each out."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from checkin_jax import _validate
from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.choice import BEST, check_bounds
from checkin_jax.kernels.execution.devices import certified, in_use
from checkin_jax.protocols import CheckInProtocol, Shuffle, ShuffledCheckIn
from checkin_jax.randomizers import Randomizer
from checkin_jax.sweeps import evaluate, published, settings
from checkin_jax.sweeps import table as tables
from checkin_jax.sweeps.arguments import Arguments
from checkin_jax.sweeps.processes import shared
from checkin_jax.sweeps.processes.shared import Executor
from checkin_jax.sweeps.processes.workers import Workers
from checkin_jax.sweeps.results import ANSWERS, KINDS, Question
from checkin_jax.sweeps.settings import Settings
from checkin_jax.sweeps.store import Store, folder_of
from checkin_jax.sweeps.table import Frame, Sweep

ROWS = ("product", "zip")
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Written:
    """A sweep in a file: its rows, how many of them have an error instead of a result, and the first error."""

    path: Path
    rows: int
    failed: int
    first_error: str


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A sweep that passed all checks that need no work: the question, its settings and the size of the blocks."""

    question: Question
    settings: Settings
    block_rows: int

    @functools.cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """(first row, row after the last) of every block."""
        return tables.batched(len(self.settings), self.block_rows)

    def identity(self) -> dict[str, Any]:
        """What must be the same for two runs to give the same rows."""
        question = dataclasses.asdict(self.question)
        return {
            "version": __version__,
            "jax": jax.__version__,
            "backend": certified(in_use()).platform,
            **question,
            "protocol": self.question.protocol.__name__,
            "randomizer": None if self.question.randomizer is None else self.question.randomizer.__name__,
            "bounds": self.question.bounds
            if isinstance(self.question.bounds, str)
            else list(self.question.bounds),
            "orders": list(self.question.orders),
            "settings": self.settings.digest(),
            "rows": len(self.settings),
            "block_rows": self.block_rows,
        }


def prepare(
    *,
    what: str = "bracket",
    protocol: type[CheckInProtocol] = ShuffledCheckIn,
    rows: str = "product",
    table: str | Path | Sweep | Frame | Mapping[str, Any] | None = None,
    randomizer: type[Randomizer] | None = None,
    bounds: str | Sequence[str] = BEST,
    free: str | None = None,
    orders: Sequence[int] | None = None,
    block_rows: int | None = None,
    axes: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Prepared:
    """Checks the arguments of `sweep` without evaluating anything; errors as there."""
    _validate.choice(tuple(KINDS), what=what)
    arguments = {**arguments, **(axes or {})}
    _check_class(CheckInProtocol, "ShuffledCheckIn", protocol=protocol)
    if randomizer is not None:
        _check_class(Randomizer, "PureLDP", randomizer=randomizer)
    if what == "published":
        if protocol not in (ShuffledCheckIn, Shuffle):
            raise ValueError(
                f"protocol={protocol.__name__}: expected ShuffledCheckIn or Shuffle with what='published'"
            )
        tried = published.DEFAULT_ORDERS if orders is None else published.check_orders(orders)
    elif orders is not None:
        raise ValueError("orders: an argument of what='published' alone; what='rdp' takes order=[...]")
    else:
        tried = ()
    question = Question(what, protocol, randomizer, check_bounds(bounds), free, tried)
    known = settings.kinds(protocol, *([] if randomizer is None else [randomizer]))
    _validate.choice(ROWS, rows=rows)
    if table is not None:
        columns = _columns(table)
        for name, value in arguments.items():
            if name in columns:
                raise ValueError(
                    f"{name}={_validate.shown(value)}: expected no argument beside a column {name} of table"
                )
        made = settings.zipped({**columns, **arguments}, known)
    elif rows == "zip":
        made = settings.zipped(arguments, known)
    else:
        made = settings.product(arguments, known)
    evaluate.check(question, list(made.axes))
    if what == "published" and table is None:
        for bound in np.unique(made.axes["bound"]).tolist():
            _validate.choice(published.BOUNDS, bound=bound)
    size = (
        question.kind.block_rows if block_rows is None else _validate.integer(1, 2**20, block_rows=block_rows)
    )
    return Prepared(question, made, size)


def _check_class(base: type, example: str, **given: Any) -> None:
    ((name, kind),) = given.items()
    if not (isinstance(kind, type) and issubclass(kind, base)) or inspect.isabstract(kind):
        raise TypeError(
            f"{name}={_validate.shown(kind)}: expected a concrete class below {base.__name__}, such as {example}"
        )


def _columns(given: str | Path | Sweep | Frame | Mapping[str, Any]) -> Mapping[str, Any]:
    """Columns of settings; of a sweep without its results, of files and frames with NaN for what is no number."""
    if isinstance(given, str | Path):
        given = tables.load(given)
    elif isinstance(given, Frame) and not isinstance(given, Sweep):
        given = Sweep(tables.of_frame(given))
    if isinstance(given, Sweep):
        inputs = {name: c for name, c in given.columns.items() if name not in ANSWERS}
        return {name: c if name in settings.WORDS else tables.numbers(c) for name, c in inputs.items()}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"table={_validate.shown(given)}: expected a file's name, a Sweep, a data frame, or columns by name"
        )
    return given


def sweep(
    *, mesh: Mesh | None = None, progress: Progress | None = None, **arguments: Unpack[Arguments]
) -> Sweep:
    """Evaluates every setting of a table, in blocks, on all devices or cores of this process.

    Args:
      mesh: devices to use (those of this process); all when left out.
      progress: called as progress(done, total).
      **arguments: a value or values of any argument of the protocol, the randomizer (epsilon0 or noise_multiplier),
        delta, view and neighboring_relation (replace-one by default); in place of check_in_prob largest_rate and
        expected_check_ins, as in `RateLimits`, with client_rate, if wanted: numbers, words, sequences, or ranges as
        text:
        "1e3:1e9:log25", "0:1:lin11", ".1,.2"; and the following.

    Keyword Args:
      axes: the same for arguments of other names, such as those of a protocol or randomizer of your own.
      protocol: a class of protocols, ShuffledCheckIn by default.
      rows: "product" (default): all combinations, the last argument varying fastest; "zip": row i has the i-th values.
      table: instead of (or beside) them, columns by name: a mapping, a Sweep, a data frame of pandas or polars, or a
        .csv, .npz or .parquet file of rows.
      what: "bracket" (default): `account` of every row: columns epsilon (upper, certified), lower, method.
        "rdp": `rdp` at each `order`, an argument more: column rdp.
        "rdp-bracket": `rdp_lower` beside it, at about three times the cost: columns rdp, lower.
        "rdp-epsilon": `epsilon_by_rdp`: columns epsilon, optimal_order.
        "published": epsilon by a published `bound`, an argument more: theorem-2, theorem-3, theorem-3-sharper,
          theorem-1, theorem-1-smaller, subsampling-only, theorem-2-repaired or strong-composition, of the best of
          `orders` (whole, 2 to 4096; some up to 256 when left out). The column validity says which are bounds.
        "calibration": `calibrate` of the variable `free` to each `target_epsilon`: columns value, epsilon, lower.
      randomizer: a class of randomizers, whose fields are arguments then; when left out PureLDP or Gaussian.
      bounds: as in `account`; "fast" is ten to a hundred times faster, and what accelerators have compiled kernels for.
      block_rows: settings that are evaluated together.

    Returns:
      A Sweep: inputs, results, validity, seconds, version and error in input order. Trust model, units and direction of
      rounding are those of `account`, `rdp` and `calibrate`. A setting that is refused or fails is a row with its
      error and without numbers. Rows do not depend on the other rows, the blocks or the devices. On a CPU they are
      `account`'s, bit for bit; on accelerators one round differs from it by less than 1e-9, where both stop; more
      rounds by rounding, which may tip the choice of a grid: about 1e-6 then (docs/sweeps.md).

    Raises:
      TypeError, ValueError: arguments that make no table; OSError: a table that cannot be read.

    Examples:
      >>> found = sweep(num_clients=[1000, 100_000], epsilon0="1,2", delta=1e-6, protocol=Shuffle)
      >>> [f"{upper:.4f}" for upper in found["epsilon"]]
      ['0.1487', '0.3971', '0.0124', '0.0332']
    """
    made = prepare(**arguments)
    with Workers(mesh) as workers:
        tell = _Told(progress, len(made.settings))
        return tables.joined(_evaluated(made, workers, block, tell) for block in range(len(made.blocks)))


def sweep_to_file(
    out: str | Path,
    *,
    resume: bool = False,
    join: bool = False,
    lease: float = 60.0,
    executor: Executor | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
    **arguments: Unpack[Arguments],
) -> Written:
    """Evaluates a sweep into a .csv, .npz or .parquet file, with memory for a few blocks only, however many rows.

    Finished blocks are kept in the folder `out`.blocks until the file is whole. After `jax.distributed.initialize` the
    processes share the blocks among themselves: all must call this with the same arguments and an `out` on one file
    system; the first one joins them.

    Args:
      out: the file; one that is there is replaced at the end.
      resume: go on with the blocks of a run that was stopped.
      join: take part in the sweep with any other process that sees the folder and calls this, none of which leads: each
        claims the next free block, a killed one's blocks are taken over, and one joins the file. An `out` that is
        there, without a folder of blocks, counts as finished.
      lease: with join, seconds after which a process of another machine that gives no sign counts as killed.
      executor: evaluates the blocks, with this process to write them: a `concurrent.futures.Executor`, or what has its
        `submit`, over processes or machines that can import what the settings are made of.
      mesh: as in `sweep`.
      progress: as in `sweep`.
      **arguments: as in `sweep`.

    Returns:
      Where, and how many rows failed. The rows are those of `sweep`, whether or not the run was stopped and resumed,
      but for `seconds`.

    Raises:
      TypeError, ValueError: as `sweep`; or there are blocks of a stopped run and resume is False, or they are of
      another version or sweep, or damaged. BlockingIOError: another sweep into this file goes on. OSError: a disk that
      is full or cannot be written; finished blocks are kept.
    """
    made, path = prepare(**arguments), tables.check(Path(out))
    _validate.flag(join=join)
    lease = _validate.real(1.0, 1e9, lease=lease)
    if join + (executor is not None) + (jax.process_count() > 1) > 1:
        raise ValueError("expected one of join, executor and several processes of jax.distributed")
    if join:
        return _joined(made, path, lease, mesh, progress)
    several = jax.process_count() > 1
    if several and jax.process_index() > 0:
        multihost_utils.sync_global_devices("checkin-jax sweep: folder")
        resume = True
    with Store(path, made.identity(), resume=resume, leads=jax.process_index() == 0) as store:
        if several and jax.process_index() == 0:
            multihost_utils.sync_global_devices("checkin-jax sweep: folder")
        mine = range(jax.process_index(), len(made.blocks), jax.process_count())
        tell = _Told(progress, sum(made.blocks[block][1] - made.blocks[block][0] for block in mine))
        finished = [block for block in mine if store.has(block)]
        tell(sum(made.blocks[block][1] - made.blocks[block][0] for block in finished))
        left = [block for block in mine if block not in set(finished)]
        if executor is not None:
            _sent(made, store, executor, left, tell)
        else:
            with Workers(mesh) as workers:
                for block in left:
                    store.write(block, _evaluated(made, workers, block, tell))
        if several:
            multihost_utils.sync_global_devices("checkin-jax sweep: blocks")
        failed, first_error = _failures(made, store)
        if several:
            multihost_utils.sync_global_devices("checkin-jax sweep: counted")
        if jax.process_index() == 0:
            tables.write(path, lambda: store.blocks(len(made.blocks)))
            store.remove()
        if several:
            multihost_utils.sync_global_devices("checkin-jax sweep: file")
    return Written(path, len(made.settings), failed, first_error)


def _failures(made: Prepared, store: Store) -> tuple[int, str]:
    """How many rows have an error, and the first one."""
    failed, first_error = 0, ""
    for block in range(len(made.blocks)):
        errors = store.errors(block)
        failed, first_error = failed + len(errors), first_error or next(iter(errors), "")
    return failed, first_error


def _sent(
    made: Prepared, store: Store, executor: Executor, left: Sequence[int], tell: Callable[[int], None]
) -> None:
    """Evaluates blocks by an executor."""

    def write(block: int, columns: tables.Columns) -> None:
        store.write(block, columns)
        tell(made.blocks[block][1] - made.blocks[block][0])

    rows = ((block, made.settings.rows(*made.blocks[block])) for block in left)
    shared.by_executor(executor, made.question, rows, certified(in_use()).platform, write)


def _joined(
    made: Prepared, path: Path, lease: float, mesh: Mesh | None, progress: Progress | None
) -> Written:
    """`sweep_to_file(join=True)`."""
    tell = _Told(progress, len(made.settings))
    failures: tuple[int, str] | None = None
    try:
        with Store(path, made.identity(), resume=True, joins=True) as store, Workers(mesh) as workers:

            def join() -> tuple[int, str]:
                found = _failures(made, store)
                tables.write(path, lambda: store.blocks(len(made.blocks)))
                store.remove()
                return found

            failures = shared.together(
                store,
                len(made.blocks),
                lease,
                lambda block: _evaluated(made, workers, block, lambda rows: None),
                lambda block: tell(made.blocks[block][1] - made.blocks[block][0]),
                join,
            )
    except FileNotFoundError:
        if folder_of(path).exists() or not path.exists():
            raise
    rows, failed, first_error = shared.counted(path) if failures is None else (len(made.settings), *failures)
    if rows != len(made.settings):
        raise ValueError(
            f"out={str(path)!r}: there is a file of {rows:,} rows, expected {len(made.settings):,}"
        )
    return Written(path, rows, failed, first_error)


class _Told:
    """Counts rows that are done, from any thread."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        self._lock = threading.Lock()

    def __call__(self, rows: int) -> None:
        with self._lock:
            self._done += rows
            if self._progress is not None:
                self._progress(self._done, self._total)


def _evaluated(made: Prepared, workers: Workers, block: int, tell: Callable[[int], None]) -> tables.Columns:
    workers.runs_left = len(made.blocks) - 1 - block
    return evaluate.evaluate(made.question, made.settings.rows(*made.blocks[block]), workers, tell)
