"""`sweep` and `sweep_to_file`: a table of settings in, one row of results for each setting out."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa

from checkin_jax import _validate
from checkin_jax._progress import going_on
from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.select import BEST, check_bounds
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.kernels.execution.devices import certified
from checkin_jax.protocols import EMPTY_SLOTS, VIEWS, CheckInProtocol, Shuffle, ShuffledCheckIn
from checkin_jax.randomizers import Randomizer
from checkin_jax.sweeps import evaluate, formulas, settings, tables
from checkin_jax.sweeps.evaluate import Workers
from checkin_jax.sweeps.results import ANSWERS, KINDS, Question, check
from checkin_jax.sweeps.settings import Settings
from checkin_jax.sweeps.tables import Store, Sweep, folder_of

# Blocks submitted to an executor at a time, and the polling interval in seconds.
_AHEAD, _PAUSE = 1024, 0.05
# Most rows of a block, and those of a block that an accelerator evaluates.
_MOST_ROWS, _ON_ACCELERATORS = 2**20, 2**17
# Checks of the arguments that are words. A table's cells are checked row by row.
_WORDS: dict[str, Callable[..., str]] = {
    "view": functools.partial(_validate.choice, VIEWS),
    "neighboring_relation": relation_of,
    "empty_slots": functools.partial(_validate.choice, EMPTY_SLOTS),
    "bound": functools.partial(_validate.choice, formulas.BOUNDS),
}
_SWEEPING = "sweeping {:,} settings{} ..."
_COMPILING = "; programs for the device compile first, once a machine"
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Written:
    """A sweep in a file: number of rows, number of rows with an error, and the first error."""

    path: Path
    rows: int
    failed: int
    first_error: str


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A sweep after all cheap checks: the question, its settings and the size of the blocks."""

    question: Question
    settings: Settings
    block_rows: int

    @functools.cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """(first row, row after the last) of every block."""
        count, size = len(self.settings), self.block_rows
        return [(start, min(start + size, count)) for start in range(0, count, size)]

    def size(self, block: int) -> int:
        """Number of rows of a block."""
        start, stop = self.blocks[block]
        return stop - start

    def identity(self) -> dict[str, Any]:
        """Everything that must agree for two runs to give the same rows."""
        return {
            "version": __version__,
            "jax": jax.__version__,
            "backend": _devices()[0].platform,
            **dataclasses.asdict(self.question),
            "settings": self.settings.digest(),
            "rows": len(self.settings),
            "block_rows": self.block_rows,
        }


def prepare(
    *,
    what: str = "bracket",
    protocol: type[CheckInProtocol] = ShuffledCheckIn,
    table: Any = None,
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
            expected = "ShuffledCheckIn or Shuffle with what='published'"
            raise ValueError(f"protocol={protocol.__name__}: expected {expected}")
        tried = formulas.DEFAULT_ORDERS if orders is None else formulas.check_orders(orders)
    elif orders is not None:
        raise ValueError("orders: an argument of what='published' alone; what='rdp' takes order=[...]")
    else:
        tried = ()
    free = _validate.optional(_validate.words, free=free)
    question = Question(what, protocol, randomizer, check_bounds(bounds), free, tried)
    known = settings.kinds(protocol, *([] if randomizer is None else [randomizer]))
    stated: dict[str, set[str]] = {}
    if table is not None:
        columns, faults, stated = _columns(table, known)
        for name, value in arguments.items():
            if name in columns:
                raise _validate.error(f"no argument beside a column {name} of table", **{name: value})
        listed = [name for name, column in columns.items() if np.ndim(column)]
        made = settings.zipped({**columns, **arguments}, known, faults, listed)
    else:
        made = settings.product(arguments, known)
    check(question, list(made.axes))
    for name, words in stated.items():
        asked = question.constants(made.axes)[name]
        if words - {asked}:
            raise ValueError(
                f"table: rows of {name} {', '.join(sorted(words))}, expected {asked} as is asked"
            )
    for name, legal in _WORDS.items():
        for word in settings.axis(name, arguments[name]).tolist() if name in arguments else ():
            legal(**{name: word})
    if block_rows is not None:
        size = _validate.integer(1, _MOST_ROWS, block_rows=block_rows)
    elif evaluate.device_kernels(question, made.axes, _devices()) is not None:
        size = _ON_ACCELERATORS
    else:
        size = question.kind.block_rows
    return Prepared(question, made, size)


def _check_class(base: type, example: str, **given: Any) -> None:
    (kind,) = given.values()
    if not (isinstance(kind, type) and issubclass(kind, base)) or inspect.isabstract(kind):
        raise _validate.type_error(f"a concrete class below {base.__name__}, such as {example}", **given)


def _columns(
    given: Any, known: Mapping[str, type]
) -> tuple[Mapping[str, Any], dict[int, str], dict[str, set[str]]]:
    """Columns of settings, without a sweep's results; errors of cells that are not numbers, by row; and classes that a
    sweep's rows state, by the argument's name.
    """
    if isinstance(given, str | Path):
        given = tables.load(given)
    elif hasattr(given, "__arrow_c_stream__") and not isinstance(given, Sweep):
        given = tables.of_arrow(pa.table(given))
    if isinstance(given, Sweep):
        inputs = {name: column for name, column in given.columns.items() if name not in ANSWERS}
        faults: dict[int, str] = {}
        for name, column in inputs.items():
            if column.dtype.kind not in "iuf" and known.get(name) is not str:
                inputs[name], found = settings.cells(name, column)
                faults = {**found, **faults}
        classes = {
            name: {*map(str, given[name].tolist())}
            for name in ("protocol", "randomizer")
            if name in given.columns
        }
        return inputs, faults, classes
    if not isinstance(given, Mapping):
        raise _validate.type_error("a file's name, a Sweep, a data frame, or columns by name", table=given)
    return given, {}, {}


def _devices() -> list[Any]:
    """Devices of this process for compiled kernels; its CPU instead of those without IEEE float64."""
    return list(dict.fromkeys(map(certified, jax.local_devices())))


def sweep(*, progress: Progress | None = None, verbose: bool = True, **arguments: Any) -> Sweep:
    """Evaluates every setting of a table, in blocks, on all cores of this machine.

    Args:
      progress: called as progress(done, total).
      verbose: without `progress`, one line on standard error after five seconds says that the sweep is under
        way.
      **arguments: a value or values of any argument of the protocol, the randomizer (epsilon0 or
        noise_multiplier), delta, view and neighboring_relation (replace-one by default). Instead of
        check_in_prob also largest_rate and expected_check_ins, as in `RateLimits`, optionally with
        client_rate. Values are numbers, words, sequences, or ranges as text such as "1e3:1e9:log25",
        "0:1:lin11", ".1,.2"; whole numbers of a range are rounded, and equal neighbours are one value. Further
        arguments:

    Keyword Args:
      axes: values of arguments with other names, such as those of your own protocol or randomizer.
      protocol: a class of protocols, ShuffledCheckIn by default.
      table: rows instead of all combinations of the values, of which the last argument varies fastest:
        columns by name in a mapping, a Sweep, a data frame of pandas or polars, or a .csv or .parquet file.
        Row i has the i-th values.
      what: "bracket" (default): `account` of every row: columns epsilon (upper, certified), lower, method.
        "rdp": `rdp` at each `order`, a further argument: column rdp. "rdp-bracket": `rdp_lower` as well, at
        about three times the cost: columns rdp, lower. "rdp-epsilon": `epsilon_by_rdp`: columns epsilon,
        optimal_order. "published": epsilon by a published `bound`, a further argument: theorem-2, theorem-3,
        theorem-3-sharper, theorem-1, theorem-1-smaller, subsampling-only, theorem-2-repaired or
        strong-composition, at the best of `orders` (whole, 2 to 4096; by default some up to 256). The column
        validity says which are bounds. "calibration": `calibrate` of the variable `free`, which has no
        values of its own, to each `target_epsilon`: columns free, value, epsilon, lower.
      randomizer: a class of randomizers, whose fields are then arguments; by default PureLDP or Gaussian.
      bounds: as in `account`; "fast" is ten to a hundred times faster.
      block_rows: settings that are evaluated together.

    Returns:
      A Sweep: inputs, results, validity, seconds, version and error in input order. Trust model, units and
      direction of rounding are those of `account`, `rdp` and `calibrate`. A setting that is refused or fails
      is a row with its error and without numbers. A row does not depend on other rows, blocks or processes.
      On a CPU it equals the result of `account`, `rdp` or `calibrate` bit for bit. Divergences computed by an
      accelerator are certified as well, and may be below those of `rdp` (docs/sweeps.md).

    Raises:
      TypeError, ValueError: arguments that do not form a table; OSError: a table that cannot be read.

    Examples:
      >>> found = sweep(num_clients=[1000, 100_000], epsilon0="1,2", delta=1e-6, protocol=Shuffle)
      >>> [f"{upper:.4f}" for upper in found["epsilon"]]
      ['0.1487', '0.3971', '0.0124', '0.0332']
    """
    made, devices = prepare(**arguments), _devices()
    tell = _counting(progress, len(made.settings))
    with _under_way(made, devices, verbose and progress is None), Workers() as workers:
        blocks = [_evaluated(made, workers, devices, block, tell) for block in range(len(made.blocks))]
    return tables.of_arrow(pa.concat_tables(blocks))


def sweep_to_file(
    out: str | Path,
    *,
    resume: bool = False,
    join: bool = False,
    executor: concurrent.futures.Executor | None = None,
    progress: Progress | None = None,
    verbose: bool = True,
    **arguments: Any,
) -> Written:
    """Evaluates a sweep into a .csv or .parquet file, with memory for a few blocks at any number of rows.

    Finished blocks are stored in the folder `out`.blocks until the file is complete.

    Args:
      out: the file; an existing one is replaced at the end.
      resume: continue with the blocks of a stopped run.
      join: share the sweep, without a leader, among all processes that see the folder and call this. Each
        claims the next free block, blocks of a killed process are taken over, and one process joins the file.
        An `out` that exists without a folder of blocks counts as finished, if it is of the same sweep. The claims
        are file locks.
      executor: evaluates the blocks, which this process writes, over processes or machines that can import the
        classes of the settings.
      progress: as in `sweep`.
      verbose: as in `sweep`.
      **arguments: as in `sweep`.

    Returns:
      Path of the file, and number of failed rows. The rows are those of `sweep`, except for `seconds`, also
      for a run that was stopped and resumed.

    Raises:
      TypeError, ValueError: as `sweep`; or there are blocks of a stopped run and resume is False, or they are
        damaged or of another version or sweep. BlockingIOError: another sweep into this file is running.
        OSError: the disk is full or cannot be written; finished blocks stay.
    """
    made, path = prepare(**arguments), tables.check(out=out)
    _validate.flag(join=join)
    if join and executor is not None:
        raise ValueError("expected one of join and executor")
    devices, tell = _devices(), _counting(progress, len(made.settings))
    with _under_way(made, devices, verbose and progress is None):
        if join:
            return _joined(made, path, devices, tell)
        with Store(path, made.identity(), resume=resume) as store:
            left = [block for block in range(len(made.blocks)) if not store.has(block)]
            tell(len(made.settings) - sum(map(made.size, left)))
            if executor is not None:
                _sent(made, store, executor, left, tell)
            else:
                with Workers() as workers:
                    for block in left:
                        store.write(block, functools.partial(_evaluated, made, workers, devices, block, tell))
            return _finished(made, store, path)


def _under_way(
    made: Prepared, devices: Sequence[Any], verbose: bool
) -> contextlib.AbstractContextManager[None]:
    """`going_on` for a sweep."""
    kernels = evaluate.device_kernels(made.question, made.settings.axes, devices)
    compiling = "" if kernels is None else _COMPILING
    return going_on(_SWEEPING.format(len(made.settings), compiling), verbose)


def _counting(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Function that is called with the number of newly finished rows."""
    done = 0

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    return tell


def _evaluated(
    made: Prepared, workers: Workers, devices: Sequence[Any], block: int, tell: Callable[[int], None]
) -> pa.Table:
    workers.blocks_left = len(made.blocks) - 1 - block
    rows = made.settings.rows(*made.blocks[block])
    return evaluate.evaluate(made.question, rows, workers, devices, tell)


def _finished(made: Prepared, store: Store, path: Path) -> Written:
    """Joins the finished blocks into the file."""
    failed, first_error = 0, ""
    for block in range(len(made.blocks)):
        errors = store.errors(block)
        failed, first_error = failed + len(errors), first_error or next(iter(errors), "")
    tables.write(path, store.blocks(len(made.blocks)))
    store.remove()
    return Written(path, len(made.settings), failed, first_error)


def _elsewhere(question: Question, rows: Settings) -> tuple[str, pa.Table]:
    """One block in a worker of an executor: its platform, and the block's table."""
    devices = _devices()
    with Workers(alone=True) as workers:
        found = evaluate.evaluate(question, rows, workers, devices, lambda done: None)
    return devices[0].platform, found


def _sent(
    made: Prepared,
    store: Store,
    executor: concurrent.futures.Executor,
    left: Sequence[int],
    tell: Callable[[int], None],
) -> None:
    """Evaluates blocks by an executor, a limited number at a time; finished blocks are stored in any order.

    Raises:
      ValueError: a worker computes on another platform than this process.
    """
    here = _devices()[0].platform
    for start in range(0, len(left), _AHEAD):
        pending = {
            executor.submit(_elsewhere, made.question, made.settings.rows(*made.blocks[block])): block
            for block in left[start : start + _AHEAD]
        }
        try:
            while pending:
                first = concurrent.futures.FIRST_COMPLETED
                done, _ = concurrent.futures.wait(pending, return_when=first)
                for future in sorted(done, key=pending.__getitem__):
                    block, (there, table) = pending.pop(future), future.result()
                    if there != here:
                        raise ValueError(
                            f"executor: a worker computes on {there}, expected {here} as in this process"
                        )
                    store.write(block, lambda table=table: table)
                    tell(made.size(block))
        finally:
            for future in pending:
                future.cancel()


def _is_of(made: Prepared, found: Sweep) -> bool:
    """True if a file's table is that of this sweep."""
    question, settings = made.question, made.settings
    constants = {**question.constants(settings.axes), "version": __version__}
    if question.free is not None:
        constants["free"] = question.free
    if len(found) != len(settings) or not found.columns.keys() >= {*constants, *question.kind.numbers}:
        return False
    given = settings.rows(0, len(settings)).axes
    # A cell that is no number is empty in the file.
    return all((found[name] == value).all() for name, value in constants.items()) and all(
        name in found.columns
        and np.array_equal(found[name], values, equal_nan=values.dtype.kind == found[name].dtype.kind == "f")
        for name, values in given.items()
    )


def _joined(made: Prepared, path: Path, devices: Sequence[Any], tell: Callable[[int], None]) -> Written:
    """Evaluates blocks at which no other process is until all are finished; one process joins the file."""
    try:
        with Store(path, made.identity(), resume=True, joins=True) as store, Workers() as workers:
            left = list(range(len(made.blocks)))
            while left:
                waiting = []
                for block in left:
                    one = functools.partial(_evaluated, made, workers, devices, block, lambda rows: None)
                    if store.write(block, one):
                        tell(made.size(block))
                    else:
                        waiting.append(block)
                if len(waiting) == len(left):
                    time.sleep(_PAUSE)
                left = waiting
            while store.folder.exists():
                try:
                    return _finished(made, store, path)
                except BlockingIOError:  # another process is joining the file
                    time.sleep(_PAUSE)
    except FileNotFoundError:
        # Another process has made the file and removed the folder.
        if folder_of(path).exists() or not path.exists():
            raise
    found = tables.load(path)
    errors = [str(text) for text in found.columns.get("error", ()) if text]
    if not _is_of(made, found):
        raise ValueError(f"out={str(path)!r}: there is a file of another sweep")
    return Written(path, len(found), len(errors), errors[0] if errors else "")
