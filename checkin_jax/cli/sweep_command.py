"""`checkin sweep`: results for a table of settings, one row each, in a file."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from checkin_jax import _startup
from checkin_jax._files import in_folder
from checkin_jax._rounding import counted
from checkin_jax.cli.options import (
    MECHANISMS,
    OUTPUT,
    OWN,
    PROTOCOLS,
    BoundsOption,
    GuaranteeOptions,
    MechanismName,
    ProtocolName,
    RunOptions,
    bounds_of,
    own_values,
    with_options,
)
from checkin_jax.cli.programs import UsageError, described
from checkin_jax.cli.terminal import RowBar, say
from checkin_jax.sweeps.settings import NAMES

if TYPE_CHECKING:
    from checkin_jax.sweeps.sweep import Written

_KEPT = "; finished blocks are kept: run again with --resume"
_AXIS = Parameter(
    group=Group(
        "Axes: a value, a list (.1,.2) or a range (1e3:1e9:log25, 0:1:lin11; of whole numbers each once)",
        sort_key=1,
    )
)
_SHARED = described(RunOptions) | described(GuaranteeOptions)
AXES: dict[str, Any] = {
    name: Annotated[str | None, _AXIS, Parameter(help=_SHARED[name].text)]
    for name in (*NAMES, *OWN)
    if name in _SHARED
}


@dataclasses.dataclass(kw_only=True)
class SweepCommand(with_options("SweepAxes", AXES), BoundsOption):
    """Evaluates many settings at once: each axis is a value, a list (.1,.2) or a range (1e3:1e9:log25, 0:1:lin11).

    The exit code is 1 if no setting has a result.

    Attributes:
      out: output file, .csv or .parquet, one row per setting. An existing file is not replaced.
      overwrite: replace an existing --out; --resume does so, too.
      what: quantity to evaluate: certified brackets; Renyi divergences at --order; published bounds of --bound,
        converted to epsilon; or calibrations of --free to --target-epsilon.
      protocol: how clients check in.
      mechanism: mechanism of the epsilon0-LDP messages. Default: any mechanism (the worst case).
      order: orders of --what rdp and rdp-bracket.
      bound: bounds of --what published: theorem-2,theorem-3,theorem-1,...
      target_epsilon: targets of --what calibration.
      free: variable of --what calibration: epsilon0, noise-multiplier, check-in-prob, num-rounds, ...
      table: rows from a .csv or .parquet file instead of combinations; single values of axes apply to all rows.
      resume: continue after a kill: finished blocks are kept beside --out until the file is complete.
      join: share this sweep with all processes that access the folder of --out and were started with the same options:
        each claims the next free block, blocks of killed processes are taken over, the last process writes the file.
      block_rows: settings per block; larger blocks are faster, smaller ones lose less work after a kill.
      plot: also draw the results to this PNG, SVG or PDF; needs the extra plots.
      plot_axis: horizontal axis of the plot. Default: the axis with the most values.
      json: print one JSON object instead of text.

    Examples:
      checkin sweep --num-clients 1e4:1e8:log5 --check-in-prob .01,.1 --epsilon0 1,2 --num-rounds 1000 --out sweep.csv
      checkin sweep --what calibration --free epsilon0 --target-epsilon 1,2 --num-clients 1e6 --check-in-prob .001,.01
        --num-rounds 1000 --out needed.parquet
    """

    out: Path
    overwrite: bool = False
    what: Literal["bracket", "rdp", "rdp-bracket", "rdp-epsilon", "published", "calibration"] = "bracket"
    protocol: ProtocolName = "shuffled-check-in"
    mechanism: MechanismName | None = None
    order: Annotated[str | None, _AXIS] = None
    bound: Annotated[str | None, _AXIS] = None
    target_epsilon: Annotated[str | None, _AXIS] = None
    free: str | None = None
    table: Path | None = None
    resume: bool = False
    join: bool = False
    block_rows: int | None = None
    plot: Annotated[Path | None, OUTPUT] = None
    plot_axis: Annotated[str | None, OUTPUT] = None
    json: Annotated[bool, OUTPUT] = False

    def run(self) -> None:
        """Evaluates the settings, writes the file and prints the number of rows."""
        from checkin_jax.sweeps.sweep import sweep_to_file

        self._check_files()
        arguments = self._arguments()
        started = time.perf_counter()
        _startup.interruptible()
        try:
            with RowBar() as bar:
                how = {"resume": self.resume, "join": self.join, "progress": bar}
                written = sweep_to_file(self.out, **how, **arguments)
        except KeyboardInterrupt:
            say(f"checkin: interrupted{_KEPT}", to=sys.stderr)
            raise
        except BlockingIOError as error:  # another sweep into this file is running
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"{error.strerror or error}: {error.filename or self.out}{_KEPT}") from error
        self._tell(written, time.perf_counter() - started)

    def _check_files(self) -> None:
        """Raises UsageError for files that cannot be written, before any work."""
        from checkin_jax import plotting
        from checkin_jax.sweeps import tables

        out = in_folder(out=tables.check(out=self.out))
        if out.exists() and not (self.overwrite or self.resume or self.join):
            raise UsageError(f"{out} exists: expected another --out, or --overwrite")
        if self.plot is not None:
            plotting.check(plot=self.plot)
        elif self.plot_axis is not None:
            raise UsageError("--plot-axis goes with --plot")

    def _arguments(self) -> dict[str, Any]:
        """Arguments of `sweep_to_file` for the settings, checked."""
        from checkin_jax.sweeps import figures, tables
        from checkin_jax.sweeps.results import KINDS
        from checkin_jax.sweeps.sweep import prepare

        given: dict[str, Any] = {name: getattr(self, name) for name in NAMES}
        given = {name: value for name, value in given.items() if value is not None}
        mechanism = None if self.mechanism is None else MECHANISMS[self.mechanism]
        rows = None if self.table is None else tables.load(self.table)
        if not KINDS[self.what].at_orders and (rows is None or "delta" not in rows.columns):
            given.setdefault("delta", "1e-6")
        arguments = {
            "what": self.what,
            "protocol": PROTOCOLS[self.protocol],
            "randomizer": mechanism,
            "axes": own_values(self, mechanism),
            "table": rows,
            "bounds": bounds_of(self.bounds),
            "free": None if self.free is None else self.free.replace("-", "_"),
            "block_rows": self.block_rows,
            **given,
        }
        made = prepare(**arguments)
        if self.plot is not None:
            figures.axis_and_lines(made.settings.axes, self.plot_axis)
        return arguments

    def _tell(self, written: "Written", seconds: float) -> None:
        """Prints the summary, and draws the plot."""
        from checkin_jax import plotting
        from checkin_jax.sweeps import figures, tables

        if self.plot is not None:
            try:
                drawn = figures.picture(tables.load(self.out).columns, self.what, self.plot_axis)
            except ValueError as error:
                raise UsageError(f"{error}; the rows are in {self.out}") from error
            plotting.write(drawn, self.plot)
        if self.json:
            summary = {"out": str(written.path), "rows": written.rows, "errors": written.failed}
            print(json.dumps({**summary, "seconds": seconds}, allow_nan=False))
        else:
            print(f"{counted(written.rows, 'setting')} in {seconds:.1f} s: {written.path}")
            if written.failed:
                print(
                    f"{written.failed:,} with an error instead of a result; the first: {written.first_error}"
                )
        if written.failed == written.rows:
            sys.exit(1)
