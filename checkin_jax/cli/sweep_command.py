"""`checkin sweep`: a table of settings, a row of results each, in a file."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from checkin_jax.cli.options import (
    MECHANISMS,
    OWN,
    PROTOCOLS,
    Job,
    MechanismName,
    ProcessOptions,
    ProtocolName,
    UsageError,
    bounds_of,
)
from checkin_jax.cli.progress import RowBar

if TYPE_CHECKING:
    from checkin_jax.sweeps.sweep import Written

_KEPT = "; finished blocks are kept: run again with --resume"
# A value, list or range of an axis; the library parses it.
Axis = str | None


@dataclasses.dataclass(kw_only=True)
class Sweep(ProcessOptions):
    """Evaluates many settings at once: each axis is a value, a list (.1,.2) or a range (1e3:1e9:log25, 0:1:lin11)."""

    kept: ClassVar[str] = _KEPT
    heading: ClassVar[str] = "sweep"
    examples: ClassVar[tuple[str, ...]] = (
        "--num-clients 1e4:1e8:log5 --check-in-prob .01,.1 --epsilon0 1,2 --num-rounds 1000 --out sweep.csv",
        "--what calibration --free epsilon0 --target-epsilon 1,2 --num-clients 1e6 --check-in-prob .001,.01 "
        "--num-rounds 1000 --out needed.parquet",
    )

    out: Path
    """File to write: .csv or .parquet; a row a setting. What is there stays."""
    overwrite: bool = False
    """Replace --out if it is there; --resume does, too."""
    what: Literal["bracket", "rdp", "rdp-bracket", "rdp-epsilon", "published", "calibration"] = "bracket"
    """What to evaluate: certified brackets; Renyi divergences at --order; published bounds at --bound, from Renyi
    divergences to epsilon; or calibrations of --free to --target-epsilon."""
    protocol: ProtocolName = "shuffled-check-in"
    """How clients check in."""
    num_clients: Axis = None
    """Axis: how many clients there are (n)."""
    check_in_prob: Axis = None
    """Axis: probability that a client checks in."""
    largest_rate: Axis = None
    """Axis: where rates differ, in place of --check-in-prob: no client's is above this."""
    expected_check_ins: Axis = None
    """Axis: what the rates of all other clients add up to at least; with --largest-rate."""
    client_rate: Axis = None
    """Axis: the rate of the client meant; the largest when left out; with --largest-rate."""
    drop_out_prob: Axis = None
    """Axis: probability that a client that checked in drops out."""
    num_rounds: Axis = None
    """Axis: number of rounds (T)."""
    num_slots: Axis = None
    """Axis: number of slots (m) of fixed-window and averaged-updates."""
    window: Axis = None
    """Axis: length of each client's window of sliding-window."""
    num_epochs: Axis = None
    """Axis: how many times the whole window is run."""
    empty_slots: Axis = None
    """Axis: dummy, visible, or both: of fixed-window."""
    minibatch: Axis = None
    """Axis: successive slots of fixed-window and sliding-window whose messages the server sums."""
    num_colluding: Axis = None
    """Axis: how many of the clients may be in league with the adversary."""
    epsilon0: Axis = None
    """Axis: messages are epsilon0-LDP. Give this or --noise-multiplier."""
    noise_multiplier: Axis = None
    """Axis: messages carry Gaussian noise of this many clip norms per coordinate."""
    mechanism: MechanismName | None = None
    """What makes messages epsilon0-LDP: any mechanism (the worst case) when left out."""
    num_values: Axis = None
    """Axis: number of values (k) of --mechanism k-ary."""
    total_variation: Axis = None
    """Axis: with --mechanism any, at most how far apart the messages of two records are."""
    differ: Axis = None
    """Axis: with --mechanism one-bit, the largest share of the public coins with which two records' bits differ."""
    delta: Axis = None
    """Axis: delta of the run; 1e-6 when left out."""
    view: Axis = None
    """Axis: what the adversary sees: messages (default), aggregate, local, or several."""
    neighboring_relation: Axis = None
    """Axis: replace-one (default), add-or-remove-one, or both."""
    order: Axis = None
    """Axis: orders of --what rdp and rdp-bracket."""
    bound: Axis = None
    """Axis: bounds of --what published: theorem-2,theorem-3,theorem-1,..."""
    target_epsilon: Axis = None
    """Axis: epsilons that --what calibration is to meet."""
    free: str | None = None
    """Variable of --what calibration: epsilon0, noise-multiplier, check-in-prob, num-rounds, ..."""
    rows: Literal["product", "zip"] = "product"
    """All combinations of the axes, or the i-th values of all axes in row i."""
    table: Path | None = None
    """Rows from a .csv or .parquet file instead of combinations; single values of axes serve all of them."""
    bounds: str = "best"
    """Bounds to use: best (all that apply), fast (much faster), or words: clones,hexagon."""
    resume: bool = False
    """Go on after a kill: finished blocks are kept beside --out until the file is whole."""
    join: bool = False
    """Take part in this sweep with every other process that sees the folder of --out and is started alike: each claims
    the next free block, what a killed one had is taken over, the last one makes the file."""
    lease: float = 60.0
    """With --join: seconds after which a process of another machine that gives no sign counts as killed."""
    block_rows: int | None = None
    """Settings of a block; larger blocks are faster, smaller ones lose less to a kill."""
    plot: Path | None = None
    """Also draw the results to this PNG, SVG or PDF; wants the extra plots."""
    plot_axis: str | None = None
    """Axis along the plot; the one with the most values when left out."""
    json: bool = False
    """Print one JSON object instead of text."""
    markdown: bool = False
    """Also print all rows as a table in Markdown."""

    def prepare(self) -> Job:
        """Checks the arguments; the job evaluates the settings and writes the file."""
        from checkin_jax import plotting
        from checkin_jax.sweeps import pictures, tables
        from checkin_jax.sweeps.results import KINDS
        from checkin_jax.sweeps.settings import NAMES
        from checkin_jax.sweeps.sweep import prepare

        out = tables.check(self.out)
        if not out.parent.is_dir() or out.is_dir():
            raise UsageError(f"--out {str(out)!r}: expected a file in a folder that is there")
        if out.exists() and not (self.overwrite or self.resume or self.join):
            raise UsageError(f"{out} is there: expected another --out, or --overwrite")
        if self.plot is not None:
            plotting.check(self.plot)
        elif self.plot_axis is not None:
            raise UsageError("--plot-axis goes with --plot")
        numbers = self.numbers()
        given: dict[str, Any] = {name: getattr(self, name) for name in NAMES}
        given = {name: value for name, value in given.items() if value is not None}
        own = {name: getattr(self, name) for name in OWN if getattr(self, name) is not None}
        for name in own:
            if self.mechanism != OWN[name]:
                raise UsageError(f"--{name.replace('_', '-')} goes with --mechanism {OWN[name]}")
        rows = None if self.table is None else tables.load(self.table)
        if not KINDS[self.what].at_orders and (rows is None or "delta" not in rows.columns):
            given.setdefault("delta", "1e-6")
        arguments = {
            "what": self.what,
            "protocol": PROTOCOLS[self.protocol],
            "randomizer": None if self.mechanism is None else MECHANISMS[self.mechanism],
            "axes": own,
            "rows": self.rows,
            "table": rows,
            "bounds": bounds_of(self.bounds),
            "free": None if self.free is None else self.free.replace("-", "_"),
            "block_rows": self.block_rows,
            **given,
        }
        if self.coordinator is not None:
            import jax

            where = None if self.coordinator == "auto" else self.coordinator
            jax.distributed.initialize(where, *numbers)
        made = prepare(**arguments)
        if self.plot is not None:
            pictures.axis_along(made.settings.axes, self.plot_axis)
        return lambda: self._run(arguments)

    def _run(self, arguments: dict[str, Any]) -> None:
        from checkin_jax.sweeps.sweep import sweep_to_file

        started = time.perf_counter()
        try:
            with RowBar() as bar:
                written = sweep_to_file(
                    self.out,
                    resume=self.resume,
                    join=self.join,
                    lease=self.lease,
                    progress=bar,
                    **arguments,
                )
        except BlockingIOError as error:  # another sweep into this file goes on
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"{error.strerror or error}: {error.filename or self.out}{_KEPT}") from error
        except ValueError as error:  # blocks of another run
            raise UsageError(str(error)) from error
        except RuntimeError as error:
            if self.coordinator is None:
                raise
            raise UsageError(f"another process of the sweep stopped{_KEPT}") from error
        import jax

        if jax.process_index() == 0:
            self._tell(written, time.perf_counter() - started)

    def _tell(self, written: Written, seconds: float) -> None:
        """The summary, and the plot."""
        from checkin_jax import plotting
        from checkin_jax.sweeps import pictures, tables

        if self.plot is not None:
            try:
                drawn = pictures.picture(tables.load(self.out).columns, self.what, self.plot_axis)
            except ValueError as error:
                raise UsageError(f"{error}; the rows are in {self.out}") from error
            plotting.write(drawn, self.plot)
        if self.json:
            summary = {"out": str(written.path), "rows": written.rows, "errors": written.failed}
            print(json.dumps({**summary, "seconds": seconds}, allow_nan=False))
            return
        if self.markdown:
            print(tables.load(self.out).to_markdown(), "", sep="\n")
        print(f"{written.rows:,} settings in {seconds:.1f} s: {written.path}")
        if written.failed:
            print(
                f"{written.failed:,} of them have an error instead of a result; the first: {written.first_error}"
            )
