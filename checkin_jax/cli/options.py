"""Options that several commands share, and what is made of them: protocols, randomizers, counts and rates."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from checkin_jax import _validate, protocols
from checkin_jax._suggest import did_you_mean
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

Job = Callable[[], None]

# A whole number that may be written 1e7.
Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: _count(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]


def _words(kind: type) -> str:
    """A class by its name in words with hyphens."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in kind.__name__).strip("-")


def parsed(what: Any, args: Sequence[str], *, prog: str, **options: Any) -> Any:
    """What tyro makes of a command line; its boxed errors are cut down to one line.

    Args:
      what: a dataclass, a union of them, or a function, which is called.
      options: of `tyro.cli`.

    Raises:
      UsageError: the line cannot be understood. SystemExit: only help was asked for.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(what, prog=prog, args=args, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(_one_line(errors.getvalue())) from None


def _one_line(boxed: str) -> str:
    """The first section of tyro's boxed error, without title and box, as one line that is cut where it is long."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", boxed)  # a terminal's colours
    lines = [line.strip("│ ") for line in plain.splitlines()[1:]]
    section = itertools.takewhile(lambda line: not line.startswith(("─", "╰")), lines)
    # Where the output is no terminal the box is drawn with hyphens.
    words = " ".join(line for line in section if line).split()
    text = " ".join(word for word in words if word.strip("-"))
    return _validate.cut(text, 500)


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
# Fields beside epsilon0 that one mechanism has.
OWN = {"num_values": "k-ary", "total_variation": "any", "differ": "one-bit"}
if TYPE_CHECKING:
    import jax

    View = Relation = ProtocolName = MechanismName = str
else:
    View, Relation = Literal[*VIEWS], Literal[*RELATIONS]
    ProtocolName, MechanismName = Literal[*PROTOCOLS], Literal[*MECHANISMS]
_FIELDS = tuple(
    dict.fromkeys(field.name for kind in protocols.PROTOCOLS for field in dataclasses.fields(kind))
)


# Beside answers of --bounds fast.
QUICK = (
    "by quick theorems alone (--bounds fast); all of them prove less epsilon, many times less of Gaussian messages "
    "that are shuffled"
)


class UsageError(ValueError):
    """Arguments that are fine one by one but not together."""


@dataclasses.dataclass(kw_only=True)
class ProtocolOptions:
    """A protocol."""

    num_clients: Count | None = None
    """How many clients there are (n); as many as there are --rates when left out."""
    protocol: ProtocolName = "shuffled-check-in"
    """How clients check in; fixed-window is A_fix, sliding-window A_sldw, averaged-updates A_avg."""
    check_in_prob: float | None = None
    """Probability that a client checks in: each round, or (p_0) each window."""
    rates: str | None = None
    """Check-in rates that differ: a CSV file with the column rate, and count where a line stands for several clients;
    or numbers between commas, a client each."""
    largest_rate: float | None = None
    """Check-in rates that differ: no client's is above this. With --expected-check-ins."""
    expected_check_ins: float | None = None
    """What the rates of all clients but the one meant add up to at least. With --largest-rate."""
    availability: Path | None = None
    """A log of shuffled check-in, in place of clients, rounds and rates: a CSV file with a line a round and the columns
    available (how many were, at least) and coin (with which each of them checks in)."""
    num_rounds: Count | None = None
    """Number of rounds (T) of shuffled-check-in and shuffle; 1 when left out."""
    drop_out_prob: float | None = None
    """Probability that a client that checked in drops out before sending (shuffled-check-in)."""
    num_slots: Count | None = None
    """Number of slots (m) of fixed-window and averaged-updates."""
    window: Count | None = None
    """Length of each client's window (m) of sliding-window."""
    num_epochs: Count | None = None
    """How many times the whole window is run; 1 when left out."""
    empty_slots: Literal["dummy", "visible"] | None = None
    """Whether empty slots of fixed-window send a dummy that cannot be recognised (default), or are seen."""
    minibatch: Count | None = None
    """Successive slots of fixed-window and sliding-window whose messages the server sums; 1 when left out."""
    num_colluding: Count | None = None
    """How many of the clients may be in league with the adversary; 0 when left out."""

    def _rates(self) -> Rates | RateLimits | None:
        """What is given of check-in rates that differ."""
        limits = (self.largest_rate, self.expected_check_ins)
        if self.rates is not None:
            if limits != (None, None):
                raise UsageError("--rates leaves no room for --largest-rate and --expected-check-ins")
            return rates_of(self.rates)
        largest, expected = limits
        if (largest is None) != (expected is None):
            raise UsageError("--largest-rate and --expected-check-ins go together")
        return None if largest is None or expected is None else RateLimits(largest, expected)

    def build_protocol(self, **start: float) -> CheckInProtocol:
        """The protocol; `start` has values for fields that were left out.

        Raises:
          ValueError, TypeError: an option is missing, not one of the protocol's, or outside its range.
        """
        kind: Any = PROTOCOLS[self.protocol]
        fields = {field.name: field for field in dataclasses.fields(kind)}
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        if self.availability is not None:
            taken = {*given} - {"drop_out_prob"}
            if taken or self._rates() is not None or kind is not protocols.ShuffledCheckIn:
                raise UsageError(
                    "--availability goes with shuffled-check-in, and says its clients, rounds and rates"
                )
            return protocols.from_availability(self.availability, drop_out_prob=self.drop_out_prob or 0.0)
        if (rates := self._rates()) is not None:
            if "check_in_prob" in given:
                raise UsageError("give one of --check-in-prob, --rates and --largest-rate")
            given["check_in_prob"] = rates
            if isinstance(rates, Rates):
                given.setdefault("num_clients", rates.num_clients)
        for name in given:
            if name not in fields:
                raise UsageError(f"--{name.replace('_', '-')} is not an option of --protocol {self.protocol}")
        given = {name: value for name, value in start.items() if name in fields} | given
        for name, field in fields.items():
            if field.default is dataclasses.MISSING and name not in given:
                raise UsageError(f"--protocol {self.protocol} needs --{name.replace('_', '-')}")
        return kind(**given)


@dataclasses.dataclass(kw_only=True)
class RandomizerOptions:
    """What a client applies to its messages."""

    epsilon0: float | None = None
    """Messages are epsilon0-LDP. Give this or --noise-multiplier."""
    noise_multiplier: float | None = None
    """Messages carry Gaussian noise of this many clip norms per coordinate."""
    mechanism: MechanismName | None = None
    """What makes messages epsilon0-LDP: any mechanism (the worst case; default when accounting) or a known one, which
    may leak much less; l2 is what training runs (LDP-SGD)."""
    num_values: Count | None = None
    """Number of values (k) of --mechanism k-ary."""
    total_variation: float | None = None
    """With --mechanism any: at most how far apart the messages of two records are, in (0, 1]."""
    differ: float | None = None
    """With --mechanism one-bit: the largest share of the public coins with which two records' bits differ."""

    def build_randomizer(self, usual: type[PureLDP] | type[L2Mechanism] = PureLDP) -> Randomizer:
        """What the clients do; `usual` is the mechanism of --epsilon0 where none is named.

        Raises:
          ValueError, TypeError: not one of --epsilon0 and --noise-multiplier, or options that do not go together.
        """
        if (self.epsilon0 is None) == (self.noise_multiplier is None):
            raise UsageError("give exactly one of --epsilon0 and --noise-multiplier")
        kind: Any = usual if self.mechanism is None else MECHANISMS[self.mechanism]
        values = {name: getattr(self, name) for name in OWN if getattr(self, name) is not None}
        for name, owner in OWN.items():
            if name in values and MECHANISMS[owner] is not kind:
                raise UsageError(f"--{name.replace('_', '-')} goes with --mechanism {owner}")
        if self.mechanism == OWN["num_values"] and self.num_values is None:
            raise UsageError("--mechanism k-ary needs --num-values")
        if self.noise_multiplier is not None:
            if self.mechanism is not None or values:
                raise UsageError("--mechanism goes with --epsilon0")
            return Gaussian(noise_multiplier=self.noise_multiplier)
        return kind(epsilon0=self.epsilon0, **values)


@dataclasses.dataclass(kw_only=True)
class RunOptions(ProtocolOptions, RandomizerOptions):
    """A protocol and its messages."""


@dataclasses.dataclass(kw_only=True)
class ProcessOptions:
    """How several processes that share the work find each other."""

    coordinator: str | None = None
    """HOST:PORT of process 0, where several processes share the work, with --num-processes and --process-id; or auto,
    where JAX finds them by itself (Slurm, Open MPI, Kubernetes, cloud TPU)."""
    num_processes: Count | None = None
    """Number of processes, all with the same arguments."""
    process_id: Count | None = None
    """Number of this process, from 0."""

    def numbers(self) -> tuple[int | None, int | None]:
        """How many processes there are and which one this is; None where JAX finds it, or there is but one.

        Raises:
          UsageError: not all of the options that go together.
        """
        together = (self.num_processes, self.process_id)
        given = sum(part is not None for part in together)
        if given not in (
            (0,) if self.coordinator is None else (0, 2) if self.coordinator == "auto" else (2,)
        ):
            raise UsageError("--coordinator, --num-processes and --process-id go together")
        return together


@dataclasses.dataclass(kw_only=True)
class HostOptions(ProcessOptions):
    """Where a run is computed: on all devices of this process, or of several on one or more hosts."""

    def devices(self) -> jax.sharding.Mesh | None:
        """All devices of all processes in a row, once these have come; None where there is but one.

        Raises:
          UsageError: not all of the options that go together, or processes that JAX cannot find.
        """
        numbers = self.numbers()
        import jax

        from checkin_jax.training.private.performance import AXIS
        from checkin_jax.training.runs.processes import join

        if self.coordinator is not None:
            try:
                join(self.coordinator, *numbers)
            except ValueError as error:
                raise UsageError(str(error)) from error
        if jax.device_count() == 1:
            return None
        return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))

    def progress(self, rounds: int) -> contextlib.AbstractContextManager[Callable[[dict[str, Any]], None]]:
        """What shows the lines of so many rounds; nothing in all processes but the first."""
        from checkin_jax.cli.progress import RoundBar

        return RoundBar(rounds) if self.is_first() else contextlib.nullcontext(lambda line: None)

    @staticmethod
    def is_first() -> bool:
        """Whether this is the process that writes and prints."""
        import jax

        return jax.process_index() == 0


@dataclasses.dataclass(kw_only=True)
class GuaranteeOptions:
    """What is asked of a run."""

    delta: float = 1e-6
    """Delta of the guarantee, in [1e-300, 1]."""
    view: View | None = None
    """What the adversary sees: messages without names (messages, the default), sums only (aggregate), or a client's own
    messages with its name (local). The others are shown beside it."""
    neighboring_relation: Relation = "replace-one"
    """Which data sets are compared; add-or-remove-one is for windows with hidden dummies."""
    client_rate: float | None = None
    """Where rates differ: the rate of the client meant; the fastest's when left out, which covers everybody."""
    bounds: str = "best"
    """Bounds to use: best (all that apply), fast (those of a few hundredths of a second), or words: clones,hexagon."""


@dataclasses.dataclass(kw_only=True)
class OutputOptions:
    """How the answer is printed."""

    verbose: bool = False
    """Also print whole statements: who is protected from whom, theorems and assumptions."""
    json: bool = False
    """Print one JSON object instead of text."""
    markdown: bool = False
    """Print the table in Markdown."""


def rates_of(text: str) -> Rates:
    """Rates between commas, or in a file; UsageError otherwise."""
    words = text.split(",")
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers and len(words) > 1 and not Path(text).exists():
        raise UsageError(f"--rates {_validate.cut(text)}: expected numbers between commas, or a CSV file")
    try:
        return Rates(numbers) if numbers else Rates.read(text)
    except OSError as error:
        raise UsageError(f"--rates {_validate.cut(text)}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--rates {_validate.cut(text)}: {error}") from error


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


def _count(word: str) -> int:
    """A whole number, also in the notation of floats: 1e7."""
    try:
        return int(word)
    except ValueError:
        number = float(word)
        if not number.is_integer():
            raise ValueError(f"{word} is not a whole number") from None
        return int(number)
