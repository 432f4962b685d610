"""The command `checkin`: each subcommand is a dataclass, whose fields are its options, with a method `run`.

Bad input ends with exit code 2 and one line on standard error. Commands import modules when they run, so that
accounting does not load the training stack. Programs compiled by XLA are kept between runs, see `keep_compiled`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import sys
from collections.abc import Sequence

from checkin_jax import _startup
from checkin_jax._compiled import keep_compiled
from checkin_jax._progress import going_on
from checkin_jax._version import __version__
from checkin_jax.cli.accounting import Calibrate, Compare, Epsilon, FlowerCheck, Verify
from checkin_jax.cli.ledger_command import LedgerAdd, LedgerList, LedgerRemove, LedgerShow
from checkin_jax.cli.lookup import Bench, Explain, FigureCommand
from checkin_jax.cli.plan import Plan
from checkin_jax.cli.programs import UsageError, application, examples, guarded, in_options, parsed
from checkin_jax.cli.report_command import ReportPage, SpentBudget, Statement
from checkin_jax.cli.sweep_command import SweepCommand
from checkin_jax.cli.training import AuditCommand, TrainDigits, TrainMnist

# Subcommands by name.
COMMANDS: dict[str, type] = {
    "epsilon": Epsilon,
    "verify": Verify,
    "calibrate": Calibrate,
    "plan": Plan,
    "compare": Compare,
    "bench": Bench,
    "sweep": SweepCommand,
    "train digits": TrainDigits,
    "train mnist": TrainMnist,
    "budget": SpentBudget,
    "report": ReportPage,
    "statement": Statement,
    "audit": AuditCommand,
    "ledger add": LedgerAdd,
    "ledger list": LedgerList,
    "ledger remove": LedgerRemove,
    "ledger show": LedgerShow,
    "flower-check": FlowerCheck,
    "figure": FigureCommand,
    "explain": Explain,
}
# Descriptions of groups of subcommands.
FAMILIES = {
    "train": "Trains a network privately and reports how private it is.",
    "ledger": "Keeps a ledger of all runs in which the same clients take part, whoever trains.",
}
SHELLS = ("bash", "zsh", "fish")
_ABOUT = "Privacy of federated learning with check-ins: account for a protocol, or train under it."
_BELOW = (
    "`checkin COMMAND --help` lists the options of a command. `checkin --completion bash` (or zsh, fish) prints "
    "completions for a shell. Programs compiled by XLA are kept in $XDG_CACHE_HOME/checkin-jax (by default ~/.cache), "
    "so that the next run starts fast."
)
_COMPUTING = (
    "computing; the first call compiles, and Gaussian messages that are shuffled may take a minute ..."
)

APP = application("checkin", help=_ABOUT, help_epilogue=_BELOW, version=f"checkin-jax {__version__}")
for _place, (_name, _kind) in enumerate(COMMANDS.items()):
    *_family, _last = _name.split()
    if _family and _family[0] not in APP:
        APP.command(application(_family[0], help=FAMILIES[_family[0]], help_epilogue="", sort_key=_place))
    (APP[_family[0]] if _family else APP).command(
        _kind, name=_last, sort_key=_place, help_epilogue=f"Examples:\n\n{examples(_kind)}"
    )


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of `checkin`: exit code 2 and one line on standard error on bad input.

    Compiled kernels are kept on disk for the next run, see `keep_compiled`. Ctrl-C and SIGTERM end the process at once;
    training writes its report first, see `Interrupts`, and a sweep says how to go on. If the reader of the output
    closes the pipe, the command ends silently with exit code 141.
    """
    words = list(sys.argv[1:] if args is None else args)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    fields = [field for kind in COMMANDS.values() for field in dataclasses.fields(kind)]
    names, unnamed = {field.name for field in fields}, {field.name for field in fields if not field.kw_only}
    with _startup.imported():
        told = functools.partial(in_options, words=words, names=names, unnamed=unnamed)
        guarded("checkin", functools.partial(_run, words), told)


def _run(words: list[str]) -> None:
    if words[:1] == ["--completion"]:
        shell = " ".join(words[1:])
        if shell not in SHELLS:
            raise UsageError(f"--completion {shell}: expected one of {', '.join(SHELLS)}")
        print(APP.generate_completion(shell=shell))
        return
    request = parsed(APP, words)()
    if request is None:  # help or the version was printed
        return
    keep_compiled()
    # Imported before the clock of `going_on` starts, so that slow imports print no line.
    importlib.import_module("checkin_jax.accounting.account")
    # Training prints its own progress and handles interrupts; sweeps and audits have progress bars on terminals.
    training = isinstance(request, TrainDigits | TrainMnist)
    shown = training or (isinstance(request, SweepCommand | AuditCommand) and sys.stderr.isatty())
    with contextlib.nullcontext() if shown else going_on(getattr(request, "computing", _COMPUTING)):
        request.run()
