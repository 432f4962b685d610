"""Programs: parsing of command lines, with errors in one line in the words of options, and how processes end."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import cyclopts
from cyclopts import exceptions
from docstring_parser import google

from checkin_jax import _validate
from checkin_jax._compiled import keep_compiled
from checkin_jax._files import near_file
from checkin_jax._suggest import did_you_mean, how_to_install
from checkin_jax.cli.terminal import say

_MEANT = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}
# An error of the library: argument, value and message.
_ARGUMENT = re.compile(r"""([a-z]\w*)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|.*?): (.*)""", re.DOTALL)


class UsageError(ValueError):
    """A command line that cannot be parsed, or arguments that do not go together."""


class Described(NamedTuple):
    """An argument of a class or function: type, default, and the first sentence of its description."""

    hint: Any
    default: Any
    text: str


def described(what: Callable[..., Any]) -> dict[str, Described]:
    """Arguments of a class or function by name, from its signature and docstrings."""
    hints = typing.get_type_hints(what, include_extras=True)
    texts: dict[str, str] = {}
    for documented in reversed(what.__mro__[:-1]) if isinstance(what, type) else (what,):
        parts = google.parse(documented.__doc__ or "").params
        sentences = (re.split(r"[.;](?:\s|$)", part.description or "", maxsplit=1)[0] for part in parts)
        texts |= {part.arg_name: f"{' '.join(text.split())}." for part, text in zip(parts, sentences)}
    for name, hint in hints.items():
        for mark in getattr(hint, "__metadata__", ()):
            texts[name] = mark.help or texts.get(name, "")
    return {
        name: Described(hints[name], argument.default, texts.get(name, ""))
        for name, argument in inspect.signature(what).parameters.items()
    }


def examples(kind: type) -> str:
    """Command lines in a class's docstring, four spaces before each; an indented line continues the one above."""
    (listed,) = google.parse(kind.__doc__ or "").examples
    return textwrap.indent(re.sub(r"\n +", " ", listed.description or ""), "    ")


def application(name: str, **settings: Any) -> cyclopts.App:
    """An application whose commands are dataclasses or functions."""
    usual = cyclopts.Parameter(negative=(), converter=_value, consume_multiple=True)
    return cyclopts.App(name=name, default_parameter=usual, **settings)


def parsed(app: cyclopts.App, words: Sequence[str]) -> Callable[[], Any]:
    """Parses a command line; returns the call of a dataclass or function, or of a function that prints help or version.

    Raises:
      UsageError: the line cannot be parsed.
    """
    for before, word in zip(["", *words], words):
        if not word or re.fullmatch("--[a-z0-9_-]+=", word):
            name = word.rstrip("=") or before
            shown = f"{name} ''" if name.startswith("--") else "an empty word"
            raise UsageError(f"{shown}: expected a value")
    joined: list[str] = []
    for word in words:
        # A list such as -1,2 is the value of the option before it, as -1 is, and no option.
        if joined and re.fullmatch("--[a-z0-9_-]+", joined[-1]) and re.match(r"-\.?\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    try:
        command, bound, _ = app.parse_args(joined, print_error=False, exit_on_error=False)
    except cyclopts.CycloptsError as error:
        where = " ".join([*app.name, *(error.command_chain or ())])
        raise UsageError(f"{_told(error)} (see {where} --help)") from None
    return functools.partial(command, *bound.args, **bound.kwargs)


def _told(error: cyclopts.CycloptsError) -> str:
    """The error in one line; for a value as "--option value: expected ...", like errors of the library."""
    match error:
        case exceptions.UnknownOptionError(token=token):
            name = token.keyword or token.value
            known = [name for each in error.argument_collection for name in each.names]
            return f"no option {name}{did_you_mean(name, known)}"
        case exceptions.CoercionError(token=cyclopts.Token(keyword=keyword, value=value)):
            return f"{keyword or ''} {_validate.cut(value)}: {error.msg or 'expected no value'}".lstrip()
        case exceptions.MissingArgumentError(argument=cyclopts.Argument() as argument):
            if error.keyword:
                return f"{error.keyword} without a value: expected {_meant(argument.hint)}"
            name = argument.name if argument.index is None else argument.name.strip("-").upper()
            alike = [word for word in error.unused_tokens or () if did_you_mean(word, [argument.name])]
            wrong = "".join(f", not {word}" for word in alike)
            return f"{name} is needed{wrong}{_about(error.target, argument)}"
        case exceptions.UnusedCliTokensError(unused_tokens=[word, *_]):
            lists = (
                "; values of a list stand between commas" if "sweep" in (error.command_chain or ()) else ""
            )
            return f"{_validate.cut(word)}: one word too many{lists}"
        case _:
            return " ".join(str(error).split())


def _about(command: Callable[..., Any] | None, argument: cyclopts.Argument) -> str:
    """First sentence of an argument's description, and its choices, after a colon."""
    text = "" if command is None else described(command)[argument.field_info.name].text.rstrip(".")
    choices = argument.get_choices()
    told = [*([text] if text else []), *([f"One of {', '.join(choices)}"] if choices else [])]
    return f": {'. '.join(told)}" if told else ""


def _value(hint: Any, tokens: Sequence[cyclopts.Token]) -> Any:
    """Converts the words of an option to its value; ValueError with the expected values otherwise."""
    kind, word = _plain(hint), tokens[0].value
    if kind in (int, float):
        return _number(word, kind)
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,):
        return tuple(_value(typing.get_args(kind)[0], [token]) for token in tokens)
    if typing.get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(kind)}
        if word not in choices:
            raise ValueError(f"expected {_meant(kind)}{did_you_mean(word, choices)}")
        return choices[word]
    return cyclopts.convert(hint, tokens)


def _plain(hint: Any) -> Any:
    """The type without None."""
    inner = [each for each in typing.get_args(hint) if each is not types.NoneType]
    return inner[0] if typing.get_origin(hint) in (types.UnionType, typing.Union) else hint


def _meant(hint: Any) -> str:
    kind = _plain(hint)
    return _MEANT.get(kind) or f"one of {', '.join(map(str, typing.get_args(kind)))}"


def _number(word: str, kind: type) -> Any:
    """Converts a word to a number; whole numbers may be written as floats, such as 1e9."""
    with contextlib.suppress(ValueError):
        return kind(word)
    with contextlib.suppress(ValueError, OverflowError):
        if float(word).is_integer():
            return int(float(word))
    raise ValueError(f"expected {_MEANT[kind]}")


def option(name: str) -> str:
    """Name of the option for a field of a dataclass."""
    return f"--{name.replace('_', '-')}"


def in_options(
    message: str, words: Sequence[str], names: Collection[str], unnamed: Collection[str] = ()
) -> str:
    """Rewrites an error of the library as one about the typed option.

    Args:
      message: of an error, about an argument, name=value: ..., or about a file, path: ...
      words: the command line.
      names: the arguments that are options.
      unnamed: those that are typed without a name, in some command.
    """
    typed = [
        (name, inside if joined else following)
        for word, following in zip(words, [*words[1:], ""])
        for name, joined, inside in [word.partition("=")]
        if name.startswith("--")
    ]
    begun = _ARGUMENT.match(message)
    if begun is None or begun[1] not in names:
        of_file = (name for name, value in typed if value and message.startswith(f"{Path(value)}: "))
        return f"{next(of_file, '')} {message}".lstrip()
    named, value = option(begun[1]), begun[2].strip("'")
    shown = named if value == "None" else f"{named} {value}"
    if begun[1] in unnamed and value in words:
        shown = value
    for name, given in typed:
        if option(name.strip("-")) == named:
            shown = f"{named} {_validate.cut(given)}"
    told = re.sub(r"\b([a-z]\w*)=", lambda it: f"{option(it[1])} " if it[1] in names else it[0], begun[3])
    if "/" not in told:  # no path
        told = re.sub(r"\b\w+_\w+\b", lambda found: found[0].replace("_", "-"), told)
    return f"{shown}: {told}"


# Errors about the other packages name them themselves.
_TRAINING, _OTHERS = ("flax", "optax"), ("orbax", "matplotlib", "pyarrow")
# Exit code of a process ended by SIGPIPE.
_BROKEN_PIPE = 128 + 13


def program(what: type[Any] | Callable[..., object], main: Callable[..., object] | None = None) -> None:
    """Runs a program from its command line; bad input ends it with one line and exit code 2.

    The first paragraph of the program's docstring heads its help. Compiled programs are kept for the next run, as by
    the command.

    Args:
      what: the class of the program's options, or a function of them.
      main: called with the options; None if `what` is the function.
    """
    name = Path(sys.argv[0]).name
    about = (sys.modules["__main__"].__doc__ or "").partition("\n\n")[0]
    app = application(name, version_flags=(), help=about or None)
    app.default(what)

    def job() -> None:
        asked = parsed(app, sys.argv[1:])
        keep_compiled()
        found = asked()
        if main is not None and found is not None:
            main(found)

    guarded(name, job)


def guarded(name: str, job: Callable[[], None], told: Callable[[str], str] = str) -> None:
    """Runs a job; an error of the user ends the process with one line on standard error and exit code 2.

    If the reader of the output closes the pipe, the process ends silently with exit code 141. Processes that share a
    run end together.

    Args:
      name: of the program, printed before the line.
      job: the job.
      told: rewrites the line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that a terminal cannot print are replaced
            stream.reconfigure(errors="replace")
    try:
        try:
            job()
        except BrokenPipeError:
            raise
        except (ValueError, OSError, MemoryError, ModuleNotFoundError) as error:
            _refuse(name, told(_words(error)))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        _close_output()
        if isinstance(error, BrokenPipeError):
            sys.exit(_BROKEN_PIPE)
        _refuse(name, _words(error))
    except KeyboardInterrupt:
        _leave(130)
    except SystemExit as ended:
        broken = isinstance(ended.__context__, BrokenPipeError)  # which rich ends with exit code 1
        _leave(_BROKEN_PIPE if broken else ended.code)


def _words(error: Exception) -> str:
    """The error in words, without a file error's number; raised again if it is not an error of the user."""
    if isinstance(error, ModuleNotFoundError):
        if error.name in _TRAINING:
            return f"training needs {error.name}: {how_to_install('train')}"
        if error.name not in _OTHERS:
            raise error
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        near = near_file(Path(error.filename)) if isinstance(error, FileNotFoundError) else ""
        return f"{error.filename}: {error.strerror}{near}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error or 'fewer clients or slots a round need less'}"
    return str(error)


def _refuse(name: str, line: str) -> NoReturn:
    """Ends the process with one line; long words are truncated, and a terminal gets it wrapped."""
    say(f"{name}: {' '.join(map(_validate.cut, line.split()))}", to=sys.stderr)
    sys.exit(2)


def _close_output() -> None:
    """Discards buffered output, so that the interpreter does not fail to flush it at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _leave(code: Any) -> NoReturn:
    if "jax" in sys.modules:
        from checkin_jax.training.runs.processes import leave

        leave(code)
    sys.exit(code)
