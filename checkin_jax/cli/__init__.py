"""The command `checkin`: epsilon, calibrate, compare and sweep account, train runs one, budget and report show a run.

Bad input ends with exit code 2 and one line on standard error. The subcommands import what they need when
they run, so that accounting does not load the training stack. What XLA compiles is kept between runs of the
command, see `keep_compiled`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import operator
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import tyro

from checkin_jax import _startup, _validate
from checkin_jax._compiled import keep_compiled
from checkin_jax._optional import how_to_install
from checkin_jax._progress import going_on
from checkin_jax._suggest import did_you_mean
from checkin_jax._version import __version__
from checkin_jax.cli import help
from checkin_jax.cli.accounting import Calibrate, Compare, Epsilon, FlowerCheck
from checkin_jax.cli.audit import Audit
from checkin_jax.cli.help import Explain
from checkin_jax.cli.interrupts import AtOnce
from checkin_jax.cli.ledger_command import ACTIONS, Ledger
from checkin_jax.cli.options import UsageError, parsed
from checkin_jax.cli.pages import say
from checkin_jax.cli.plan import Plan
from checkin_jax.cli.report_command import ReportPage, SpentBudget, Statement
from checkin_jax.cli.sweep_command import Sweep
from checkin_jax.cli.training import DATA_SETS, Train

COMMANDS: dict[str, type] = {
    "epsilon": Epsilon,
    "calibrate": Calibrate,
    "plan": Plan,
    "compare": Compare,
    "sweep": Sweep,
    "train": Train,
    "budget": SpentBudget,
    "report": ReportPage,
    "statement": Statement,
    "audit": Audit,
    "ledger": Ledger,
    "flower-check": FlowerCheck,
    "explain": Explain,
}
# Commands that have others below them.
GROUPS: dict[str, dict[str, type]] = {"train": DATA_SETS, "ledger": ACTIONS}
# All that have options, by the words that are typed.
WHOLE: dict[str, type] = {
    f"{name} {below}".strip(): kind
    for name in COMMANDS
    for below, kind in GROUPS.get(name, {"": COMMANDS[name]}).items()
}
if TYPE_CHECKING:
    Command = (
        Epsilon
        | Calibrate
        | Plan
        | Compare
        | Sweep
        | Train
        | SpentBudget
        | ReportPage
        | Statement
        | Audit
        | Ledger
        | FlowerCheck
        | Explain
    )
else:
    _KINDS = tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items())
    Command = functools.reduce(operator.or_, _KINDS)
CONFIG = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.DisallowNone,
)
_COMPUTING = (
    "computing; the first call compiles, and Gaussian messages that are shuffled may take a minute ..."
)
SHELLS = ("bash", "zsh", "fish")
_SPEC = "COMPLETION_SPEC = "
ABOUT = "How private federated learning with check-ins is: account for a protocol, or train under it."
BELOW = (
    "checkin --version prints the version, checkin --completion bash (or zsh, fish) completions for a shell. "
    "What XLA compiles is kept in $XDG_CACHE_HOME/checkin-jax (by default ~/.cache), so that the next run starts fast."
)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of `checkin`: exit code 2 and one line on standard error on bad input.

    Compiled kernels are kept on disk for the next run, see `keep_compiled`. Ctrl-C and SIGTERM end the command at once,
    with exit code 130 or 143; training sums up first, see `Interrupts`. Where whoever reads the output has enough of
    it, the command ends in silence, with exit code 141.
    """
    args = list(sys.argv[1:] if args is None else args)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # letters that a terminal lacks are no reason to fail
            stream.reconfigure(errors="replace")
    try:
        try:
            with _startup.imported():
                _run(args)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _close_output()
        sys.exit(128 + 13)  # as if by SIGPIPE
    except OSError as error:
        _close_output()
        _refuse(_told(error))
    except SystemExit as ended:
        if "jax" not in sys.modules:
            raise
        from checkin_jax.training.runs.processes import leave

        leave(ended.code)


def _run(args: list[str]) -> None:
    if args == ["--version"]:
        print(f"checkin-jax {__version__}")
        return
    if args[:1] == ["--completion"]:
        print(_completions(args[1:]))
        return
    with AtOnce():
        command, words, kind = _parse(args)
        refuse = functools.partial(_refuse_options, words=words, kind=kind)
        try:
            job = command.prepare()
        except ModuleNotFoundError as error:
            if error.name in ("flax", "optax"):
                _refuse(f"training needs {error.name}: {how_to_install('train')}")
            if error.name not in ("matplotlib", "pyarrow"):
                raise
            _refuse(str(error))
        except (ValueError, TypeError, OSError) as error:
            refuse(error)
        keep_compiled()
    # These have bars of their own, training everywhere and the others on terminals.
    own = isinstance(command, Train) or (isinstance(command, Sweep | Audit) and sys.stderr.isatty())
    with (
        contextlib.nullcontext() if isinstance(command, Train) else AtOnce(getattr(command, "kept", "")),
        contextlib.nullcontext() if own else going_on(_COMPUTING),
    ):
        try:
            job()
        except BrokenPipeError:
            raise
        except (OSError, UsageError) as error:
            refuse(error)
        except KeyboardInterrupt:
            sys.exit(130)


def _close_output() -> None:
    """What is still in the buffer goes nowhere, so that the interpreter has nothing to complain about at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _parse(args: list[str]) -> tuple[Command, list[str], type]:
    """tyro's parser behind our help, its boxed errors cut down to one line that says what was meant.

    Returns:
      The command, the words behind its name, and the class of its options.
    """
    if "" in args:
        _refuse("an empty word: expected a value")
    if args[:1] in ([], ["help"]):
        args = [*args[1:], "--help"]
    name, kinds, kind = _asked(args)
    words = args[len(name.split()) :]
    if kind is None and not (words and words[0].startswith("-")):
        typed = words[0] if words else "was given"
        hint = did_you_mean(words[0], kinds) if words else ""
        where = f"checkin {name} --help".replace("  ", " ")
        sort = "data set" if name == "train" else "command"
        _refuse(f"no {sort} {typed}: expected one of {', '.join(kinds)}{hint} (see {where})")
    if "-h" in args or "--help" in args:
        about, below = (COMMANDS[name].__doc__ or "", "") if name in GROUPS else (ABOUT, BELOW)
        print(help.overview(name, about, kinds, below) if kind is None else help.page(name, kind))
        sys.exit(0)
    where = f" (see checkin {name} --help)".replace("  ", " ")
    try:
        command = parsed(Command, args, prog="checkin", config=CONFIG)
        assert kind is not None
        if told := help.repeated(words, kind):
            _refuse(told + where)
        if getattr(command, "json", False) and getattr(command, "markdown", False):
            _refuse(f"expected one of --json and --markdown{where}")
        return command, words, kind
    except UsageError as error:
        group = name.partition(" ")[0]
        beside = {f"checkin {group} {other}": one for other, one in GROUPS.get(group, {}).items()}
        meant = "" if kind is None else help.nearest(words, kind, beside) or help.missing(words, kind)
        _refuse((meant or str(error)) + where)


def _completions(words: list[str]) -> str:
    """The completions of a shell, as a script that the shell reads."""
    if len(words) != 1 or words[0] not in SHELLS:
        _refuse(f"--completion {' '.join(words)}: expected one of {', '.join(SHELLS)}")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "completions"
        with contextlib.suppress(SystemExit):
            tyro.cli(
                Command,  # type: ignore[arg-type]
                prog="checkin",
                args=["--tyro-write-completion", words[0], str(script)],
                config=CONFIG,
            )
        written = script.read_text()
    # Where the command knows nothing that fits, a path is meant, which the shell completes: it needs the word begun,
    # which tyro's script for fish leaves out, and that for bash runs together with the words before.
    for known, whole in (
        ("    # Output one completion", "    completions = completions or ['__TYRO_COMPLETE_FILES__']\n{}"),
        ('compgen -f -- "$cur"', 'compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"'),
        ("    set -l current (count $words)\n", "{}    set words $words (commandline -ct)\n"),
    ):
        written = written.replace(known, whole.format(known))
    return "".join(
        _described(line, quoted=words[0] == "fish") if line.startswith(_SPEC) else line
        for line in written.splitlines(keepends=True)
    )


def _described(line: str, quoted: bool) -> str:
    """tyro's table of commands, with what each of them does in place of its name.

    A shell reads line by line, so that a description is one line; and nobody types the None of what is left out.
    quoted: what means something between a shell's quotes has a backslash before it.
    """
    text = line.removeprefix(_SPEC)
    table = ast.literal_eval(re.sub(r'\\([\\"$])', r"\1", text) if quoted else text)

    def describe(commands: dict[str, Any], kinds: Mapping[str, type]) -> None:
        for name, command in commands.items():
            command["description"] = help.summary(kinds[name])
            for option in command["options"]:
                text = option["description"].replace("(default: None)", "")
                option["description"] = " ".join(text.split()).replace(", None", "").replace("None, ", "")
                if "choices" in option:
                    option["choices"] = [each for each in option["choices"] if each != "None"]
            describe(command.get("subcommands", {}), GROUPS.get(name, {}))

    describe(table["subcommands"], COMMANDS)
    written = repr(table)
    if quoted:
        written = re.sub(r'([\\"$])', r"\\\1", written)
    return f"{_SPEC}{written}\n"


def _asked(args: list[str]) -> tuple[str, dict[str, type], type | None]:
    """The command that the first words name, those that could come next, and its options; None: it is not whole."""
    if not args or args[0] not in COMMANDS:
        return "", COMMANDS, None
    name = " ".join(args[:2]) if args[0] in GROUPS else args[0]
    return (name, {}, WHOLE[name]) if name in WHOLE else (args[0], GROUPS[args[0]], None)


def _told(error: Exception) -> str:
    """The error in words, a file's without its number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _refuse_options(error: Exception, words: list[str], kind: type) -> NoReturn:
    """Ends with the error in the words of the options that were typed."""
    _refuse(help.in_options(_told(error), words, kind))


def _refuse(message: str) -> NoReturn:
    """Ends with one line, whatever was typed: long words are cut; a terminal has it broken between words."""
    line = f"checkin: {' '.join(map(_validate.cut, message.split()))}"
    say(line, to=sys.stderr)
    sys.exit(2)
