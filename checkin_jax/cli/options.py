"""Options shared by several commands, derived from protocols and randomizers, and their conversion."""

import contextlib
import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Group, Parameter

from checkin_jax import _validate, protocols
from checkin_jax._files import in_folder
from checkin_jax._suggest import did_you_mean
from checkin_jax.cli.programs import UsageError, described, option
from checkin_jax.cli.terminal import say
from checkin_jax.protocols import RELATIONS, VIEWS, CheckInProtocol
from checkin_jax.randomizers import (
    Gaussian,
    HadamardResponse,
    KaryResponse,
    L2Mechanism,
    Laplace,
    OneBit,
    PureLDP,
    Randomizer,
    Rappor,
)
from checkin_jax.rates import RateLimits, Rates

if TYPE_CHECKING:
    import jax

    from checkin_jax.training.reports.recorded import RecordedRun


def _words(kind: type) -> str:
    """Name of a class in words with hyphens."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in kind.__name__).strip("-")


PROTOCOLS: dict[str, type[CheckInProtocol]] = {_words(kind): kind for kind in protocols.PROTOCOLS}
MECHANISMS: dict[str, type[Randomizer]] = {
    "any": PureLDP,
    "l2": L2Mechanism,
    "one-bit": OneBit,
    "k-ary": KaryResponse,
    "hadamard": HadamardResponse,
    "rappor": Rappor,
    "laplace": Laplace,
}
# Fields besides epsilon0, and the one mechanism that has each.
OWN = {
    field.name: name
    for name, kind in MECHANISMS.items()
    for field in dataclasses.fields(cast(Any, kind))
    if field.name != "epsilon0"
}
if TYPE_CHECKING:
    View = str
    Relation = str
    ProtocolName = str
    MechanismName = str
else:
    View, Relation = Literal[*VIEWS], Literal[*RELATIONS]
    ProtocolName, MechanismName = Literal[*PROTOCOLS], Literal[*MECHANISMS]

# Headings of `--help`, in order; a command's own options come first.
PROTOCOL, RANDOMIZER, GUARANTEE, OUTPUT = (
    Parameter(group=Group(title, sort_key=place))
    for place, title in enumerate(("Protocol", "Randomizer", "Guarantee", "Output"), 1)
)

# Note below answers of --bounds fast.
QUICK = (
    "by fast bounds only (--bounds fast); all bounds together may give a smaller epsilon, many times smaller for "
    "shuffled Gaussian messages"
)


def _fields(owners: Mapping[str, type], heading: Parameter, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields of some classes as optional command-line options, each with its help text.

    Args:
      owners: the classes, by their names on the command line.
      heading: section of `--help`.
      but: fields without an option of their own.
    """
    found: dict[str, list[Any]] = {}
    for owner, kind in owners.items():
        for name, (hint, default, text) in described(kind).items():
            usual = "" if default is inspect.Parameter.empty else f" Default: {default}."
            found.setdefault(name, [hint, f"{text}{usual}"]).append(owner)
    options = {}
    for name, (hint, text, *having) in found.items():
        # Unequal rates have options of their own.
        plain = float if float in typing.get_args(hint) else hint
        whose = "" if len(having) == len(owners) else f" Of {', '.join(having)}."
        options[name] = Annotated[plain | None, heading, Parameter(help=f"{text}{whose}")]
    return {name: option for name, option in options.items() if name not in but}


def with_options(name: str, options: Mapping[str, Any]) -> Any:
    """A dataclass with these options, all of them optional."""
    fields = [(each, hint, dataclasses.field(default=None)) for each, hint in options.items()]
    return dataclasses.make_dataclass(name, fields, kw_only=True)


PROTOCOL_OPTIONS = _fields(PROTOCOLS, PROTOCOL)
RANDOMIZER_OPTIONS = _fields(MECHANISMS, RANDOMIZER, but=("epsilon0",))


@dataclasses.dataclass(kw_only=True)
class ProtocolOptions(with_options("ProtocolFields", PROTOCOL_OPTIONS)):
    """A protocol.

    Attributes:
      protocol: how clients check in; fixed-window is A_fix, sliding-window A_sldw, averaged-updates A_avg.
      rates: check-in rates that differ: a CSV file with the column rate, and count where a line stands for several
        clients. --num-clients may be left out.
      largest_rate: check-in rates that differ: no client's is above this. With --expected-check-ins, or with
        --smallest-rate.
      smallest_rate: check-in rates of which only an interval is known: no client's is below this. With --largest-rate
        and --num-clients.
      expected_check_ins: what the rates of all clients but the one meant add up to at least. With --largest-rate.
      availability: A log of shuffled check-in, in place of clients, rounds and rates: a CSV file with a line a round
        and the columns available (how many were, at least) and coin (with which each of them checks in).
      cycles: number of times that the log is run, such as the days of a month. With --availability. Default: 1.
    """

    protocol: Annotated[ProtocolName, PROTOCOL] = "shuffled-check-in"
    rates: Annotated[Path | None, PROTOCOL] = None
    largest_rate: Annotated[float | None, PROTOCOL] = None
    smallest_rate: Annotated[float | None, PROTOCOL] = None
    expected_check_ins: Annotated[float | None, PROTOCOL] = None
    availability: Annotated[Path | None, PROTOCOL] = None
    cycles: Annotated[int | None, PROTOCOL] = None

    def _rates(self) -> Rates | RateLimits | None:
        """Check-in rates that differ, from the options; None if no option gives them."""
        largest, smallest, expected = self.largest_rate, self.smallest_rate, self.expected_check_ins
        if self.rates is not None:
            if (largest, smallest, expected) != (None, None, None):
                raise UsageError(
                    "--rates leaves no room for --largest-rate, --smallest-rate and --expected-check-ins"
                )
            return Rates.read(self.rates)
        if smallest is not None:
            num_clients = getattr(self, "num_clients")  # noqa: B009 - made from the protocols' fields
            if largest is None or expected is not None or num_clients is None:
                raise UsageError(
                    "--smallest-rate goes with --largest-rate and --num-clients, without other rates"
                )
            try:
                return RateLimits.between(smallest, largest, num_clients=num_clients)
            except ValueError as error:
                raise UsageError(re.sub("^(smallest|largest)=", r"--\1-rate ", str(error))) from error
        if (largest is None) != (expected is None):
            raise UsageError(
                "--largest-rate and --expected-check-ins go together; or --smallest-rate in place of the latter"
            )
        return None if largest is None or expected is None else RateLimits(largest, expected)

    def build_protocol(self, **start: float) -> CheckInProtocol:
        """The protocol; `start` has values for fields without an option.

        Raises:
          ValueError, TypeError: an option is missing, not one of the protocol's, or outside its range.
        """
        kind: Any = PROTOCOLS[self.protocol]
        fields = {field.name: field for field in dataclasses.fields(kind)}
        given = {name: getattr(self, name) for name in PROTOCOL_OPTIONS if getattr(self, name) is not None}
        rates = self._rates()
        if self.availability is not None:
            of_log = {"drop_out_prob", "num_colluding", "min_reports"}
            if {*given} - of_log or rates is not None or kind is not protocols.ShuffledCheckIn:
                raise UsageError(
                    "--availability goes with shuffled-check-in, and gives its clients, rounds and rates"
                )
            cycles = 1 if self.cycles is None else self.cycles
            return protocols.from_availability(self.availability, cycles=cycles, **given)
        if self.cycles is not None:
            raise UsageError("--cycles goes with --availability")
        if rates is not None:
            if "check_in_prob" in given:
                raise UsageError("give one of --check-in-prob, --rates and --largest-rate")
            given["check_in_prob"] = rates
            if isinstance(rates, Rates):
                given.setdefault("num_clients", rates.num_clients)
        for name in given:
            if name not in fields:
                other = "--rates" if self.rates is not None else "--largest-rate"
                typed = option(name) if rates is None or name != "check_in_prob" else other
                raise UsageError(f"{typed} is not an option of --protocol {self.protocol}")
        given = {name: value for name, value in start.items() if name in fields} | given
        for name, field in fields.items():
            if field.default is dataclasses.MISSING and name not in given:
                raise UsageError(f"--protocol {self.protocol} needs {option(name)}")
        return kind(**given)


@dataclasses.dataclass(kw_only=True)
class RandomizerOptions(with_options("RandomizerFields", RANDOMIZER_OPTIONS)):
    """The randomizer that each client applies to its update.

    Attributes:
      epsilon0: messages are epsilon0-LDP. Give this or --noise-multiplier.
      noise_multiplier: messages carry Gaussian noise of this many clip norms per coordinate.
      mechanism: mechanism of the epsilon0-LDP messages: any (the worst case; default when accounting), or a known one,
        which may leak much less; training uses l2 (LDP-SGD).
    """

    epsilon0: Annotated[float | None, RANDOMIZER] = None
    noise_multiplier: Annotated[float | None, RANDOMIZER] = None
    mechanism: Annotated[MechanismName | None, RANDOMIZER] = None

    def build_randomizer(self, usual: type[Randomizer] = PureLDP) -> Randomizer:
        """The randomizer; `usual` is the mechanism of --epsilon0 without --mechanism.

        Raises:
          ValueError, TypeError: not one of --epsilon0 and --noise-multiplier, or options that do not go together.
        """
        if (self.epsilon0 is None) == (self.noise_multiplier is None):
            raise UsageError("give exactly one of --epsilon0 and --noise-multiplier")
        kind: Any = usual if self.mechanism is None else MECHANISMS[self.mechanism]
        values = own_values(self, kind)
        if self.noise_multiplier is not None:
            if self.mechanism is not None or values:
                raise UsageError("--mechanism goes with --epsilon0")
            return Gaussian(noise_multiplier=self.noise_multiplier)
        for field in dataclasses.fields(kind):
            if field.default is dataclasses.MISSING and field.name not in ("epsilon0", *values):
                raise UsageError(f"--mechanism {self.mechanism} needs {option(field.name)}")
        return kind(epsilon0=self.epsilon0, **values)


def own_values(options: Any, kind: type[Randomizer] | None) -> dict[str, Any]:
    """Given options that belong to this mechanism; UsageError for an option of another mechanism."""
    values = {name: getattr(options, name) for name in OWN if getattr(options, name) is not None}
    for name in values:
        if MECHANISMS[OWN[name]] is not kind:
            raise UsageError(f"{option(name)} goes with --mechanism {OWN[name]}")
    return values


@dataclasses.dataclass(kw_only=True)
class RunOptions(ProtocolOptions, RandomizerOptions):
    """A protocol and its messages."""

    def given(self) -> dict[str, Any]:
        """Options of the run that differ from their defaults."""
        fields = {field.name: field.default for field in dataclasses.fields(RunOptions)}
        return {name: getattr(self, name) for name, usual in fields.items() if getattr(self, name) != usual}


@dataclasses.dataclass(kw_only=True)
class HostOptions:
    """Devices of a run: all devices of this process, or of several processes on one or more hosts.

    Attributes:
      coordinator: HOST:PORT of process 0, if several processes share the work, with --num-processes and --process-id;
        or auto, if JAX finds them by itself (Slurm, Open MPI, Kubernetes, cloud TPU).
      num_processes: number of processes, all with the same arguments.
      process_id: number of this process, from 0.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def devices(self) -> "jax.sharding.Mesh | None":
        """Mesh of all devices of all processes, once these are connected; None for a single device.

        Raises:
          UsageError: some of the options that go together are missing. ValueError: JAX cannot find the processes.
        """
        numbers = (self.num_processes, self.process_id)
        given = sum(part is not None for part in numbers)
        if given not in {None: (0,), "auto": (0, 2)}.get(self.coordinator, (2,)):
            raise UsageError("--coordinator, --num-processes and --process-id go together")
        import jax

        from checkin_jax.training.private.step import AXIS
        from checkin_jax.training.runs.processes import join

        if self.coordinator is not None:
            join(self.coordinator, *numbers)
        if jax.device_count() == 1:
            return None
        return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))

    def progress(self, rounds: int) -> contextlib.AbstractContextManager[Callable[[dict[str, Any]], None]]:
        """Display of progress over this number of rounds; silent in all processes except the first."""
        from checkin_jax.cli.terminal import RoundBar

        return RoundBar(rounds) if self.is_first() else contextlib.nullcontext(lambda line: None)

    @staticmethod
    def is_first() -> bool:
        """True in the process that writes and prints."""
        import jax

        return jax.process_index() == 0


@dataclasses.dataclass(kw_only=True)
class BoundsOption:
    """Bounds to use.

    Attributes:
      bounds: bounds to use: best (all that apply), fast (those that take a few hundredths of a second, or seconds where
        rates differ), or words such as clones,hexagon.
    """

    bounds: Annotated[str, GUARANTEE] = "best"


@dataclasses.dataclass(kw_only=True)
class GuaranteeOptions(BoundsOption):
    """Guarantee of a run.

    Attributes:
      delta: delta of the guarantee, in [1e-300, 1].
      view: what the adversary sees: messages without names (messages, the default), sums only (aggregate), or a
        client's own messages with its name (local). The other views are printed below it.
      neighboring_relation: which data sets are compared; add-or-remove-one is for windows with hidden dummies.
      client_rate: with unequal rates: check-in rate of the client to bound. Default: the largest rate, which covers
        every client.
    """

    delta: Annotated[float, GUARANTEE] = 1e-6
    view: Annotated[View | None, GUARANTEE] = None
    neighboring_relation: Annotated[Relation, GUARANTEE] = "replace-one"
    client_rate: Annotated[float | None, GUARANTEE] = None


@dataclasses.dataclass(kw_only=True)
class JsonOption:
    """JSON output.

    Attributes:
      json: print one JSON object instead of text.
    """

    json: Annotated[bool, OUTPUT] = False

    def show(self, found: Any, *below: str) -> None:
        """Prints an object with `as_dict` and a text, and lines below the text."""
        if self.json:
            print(json.dumps(found.as_dict(), allow_nan=False))
        else:
            say(str(found), *below)


def run_of(name: str, folder: Path) -> "RecordedRun":
    """The run in the folder that an option names.

    Raises:
      UsageError: no such folder. ValueError, OSError: it contains no complete run.
    """
    from checkin_jax.training.reports import recorded

    if not folder.is_dir():
        raise UsageError(
            f"{name} {folder}: {'a file, not the folder of a run' if folder.is_file() else 'no such folder'}"
        )
    return recorded.read(folder)


def bounds_of(text: str) -> str | tuple[str, ...]:
    """ "best", "fast", or the words between commas; UsageError otherwise."""
    from checkin_jax.accounting.bounds import table
    from checkin_jax.accounting.bounds.select import check_bounds, once_called

    words = text.split(",")
    try:
        return check_bounds(text if text in ("best", "fast") else tuple(words))
    except ValueError:
        wrong = next(word for word in words if word not in table.words())
        meant = once_called((wrong,)) or did_you_mean(wrong, ("best", "fast", *table.words()))
        raise UsageError(
            f"--bounds {_validate.cut(text)}: expected best, fast, or words between commas, out of "
            f"{', '.join(table.words())}{meant}"
        ) from None


def check_inputs(out: Path, *inputs: Path | None) -> None:
    """Raises ValueError unless `out` is a file in an existing folder, and none of the inputs."""
    in_folder(out=out)
    for read in inputs:
        if read is not None and out.exists() and read.exists() and out.samefile(read):
            raise UsageError(f"--out {out}: that file is an input of the page")


def check_free(out: Path, subject: Path, *inputs: Path | None) -> None:
    """Raises UsageError if `out` is an input of the page, or a page about another run, ledger or plan."""
    from checkin_jax.reports import render

    check_inputs(out, subject, *inputs)
    about = render.source_of(out)
    own = subject / "report.html"  # a run's own page is always replaced
    if out.is_file() and not about and out != own:
        raise UsageError(
            f"{out} exists and was not written by checkin report; choose another --out or delete it"
        )
    if about not in ("", subject.resolve().name):
        raise UsageError(
            f"{out}: is a page about {_validate.shown(about)}; choose another --out or delete it"
        )
