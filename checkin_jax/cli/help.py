"""`--help`: options in groups, in the words of the fields behind them; `checkin explain`: a word in two sentences."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Union

import tyro

from checkin_jax import _validate
from checkin_jax._suggest import did_you_mean
from checkin_jax.cli.options import (
    Count,
    GuaranteeOptions,
    Job,
    OutputOptions,
    ProtocolOptions,
    RandomizerOptions,
    UsageError,
)
from checkin_jax.cli.pages import say

# An option belongs to the group that has one of its name, else to those of its own command.
_SHARED = {
    "protocol": ProtocolOptions,
    "randomizer": RandomizerOptions,
    "guarantee": GuaranteeOptions,
    "output": OutputOptions,
}
_ORDER = ("arguments", "protocol", "randomizer", "guarantee")
_WORDS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
_WIDEST = 100
# A list of choices longer than this stands in the text.
_INLINE = 60
_UNITS = {"": Fraction(1), "%": Fraction(1, 100), "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_NUMBERS = {"INT": "a whole number", "FLOAT": "a number"}
_MEANT = {**_NUMBERS, "TEXT": "a text", "PATH": "a path"}
# An argument of the library, its value, and what is said of it; further ones.
_ARGUMENT = re.compile(
    r"""(?P<name>[a-z]\w*)=(?P<value>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|.*?): (?P<rest>.*)""", re.DOTALL
)
_SAYS = re.compile(r"\b[a-z]\w*=")
_POSITIONAL = typing.get_args(tyro.conf.Positional[int])[1]


class Option(NamedTuple):
    """One option as it is typed and explained; `choices` where its value is one of some words."""

    name: str
    value: str
    text: str
    group: str
    choices: tuple[str, ...] = ()
    needed: bool = False


def options_of(kind: type) -> dict[str, Option]:
    """The options of a command by their names, `--num-clients`; an argument by its name in capitals."""
    hints = typing.get_type_hints(kind, include_extras=True)
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts |= _texts(base)
    found = {}
    for field in dataclasses.fields(kind):
        positional, choices, value = _typed(hints[field.name])
        group = next((group for group, base in _SHARED.items() if hasattr(base, field.name)), None)
        group = "arguments" if positional else group or getattr(kind, "heading", "options")
        name = field.name.upper() if positional else f"--{field.name.replace('_', '-')}"
        text = texts[field.name] + _default(field, value)
        if len(value) > _INLINE:
            text, value = f"{text} One of {', '.join(choices)}.", "NAME"
        needed = field.default is dataclasses.MISSING
        found[name] = Option(name, "" if positional else value, text, group, choices, needed)
    return found


def _typed(hint: Any) -> tuple[bool, tuple[str, ...], str]:
    """Whether an argument goes without its name, the words that it may be, and how its value is shown."""
    positional = False
    while typing.get_origin(hint) is typing.Annotated:
        if hint == Count:
            return False, (), "INT"
        base, *marks = typing.get_args(hint)
        positional |= any(mark is _POSITIONAL for mark in marks)
        hint = base
    if typing.get_origin(hint) in (Union, types.UnionType):
        (inner,) = (each for each in typing.get_args(hint) if each is not type(None))
        also, choices, value = _typed(inner)
        return positional or also, choices, value
    if typing.get_origin(hint) is Literal:
        choices = tuple(map(str, typing.get_args(hint)))
        return positional, choices, "|".join(choices)
    return positional, (), "" if hint is bool else _WORDS[hint]


def _default(field: dataclasses.Field, value: str) -> str:
    """What holds where the option is left out, if the text about it does not say so."""
    if field.default is dataclasses.MISSING:
        return " (needed)"
    if field.default is None or not value:
        return ""
    return f" (default: {field.default})".replace("e-0", "e-")


def _texts(kind: type) -> dict[str, str]:
    """The text below each field of a class, itself only."""
    if not dataclasses.is_dataclass(kind):
        return {}
    body = typing.cast(Any, ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]).body
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr)
        if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def page(name: str, kind: type) -> str:
    """The help of one command."""
    width = _width()
    groups: dict[str, list[Option]] = {group: [] for group in _ORDER}
    for option in options_of(kind).values():
        groups.setdefault(option.group, []).append(option)
    arguments = " ".join(option.name for option in groups["arguments"])
    about = " ".join((kind.__doc__ or "").split())
    out = [f"usage: checkin {name} {arguments}".rstrip() + " [options]", "", *textwrap.wrap(about, width)]
    last = [*groups.pop("output", []), Option("--help", "", "Print this page.", "output")]
    for group, members in [*groups.items(), ("output", last)]:
        if members:
            out += ["", f"{group}:"]
            for option in members:
                out += textwrap.wrap(
                    f"  {option.name} {option.value}".rstrip(), width, subsequent_indent="      "
                )
                indent = " " * 6
                out += textwrap.wrap(
                    option.text,
                    width,
                    initial_indent=indent,
                    subsequent_indent=indent,
                    break_on_hyphens=False,
                )
    examples = getattr(kind, "examples", ())
    if examples:
        out += ["", "examples:"]
        for example in examples:
            out += _command(f"checkin {name} {example}", width)
    return "\n".join(out)


def summary(kind: type) -> str:
    """What a command does, in one line."""
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def overview(name: str, about: str, kinds: Mapping[str, type], below: str = "") -> str:
    """The help of a command that has others below it."""
    width = _width()
    longest = max(map(len, kinds)) + 4
    out = [
        f"usage: checkin {name} COMMAND [options]".replace("  ", " "),
        "",
        *textwrap.wrap(about, width),
        "",
    ]
    for each, kind in kinds.items():
        lead = f"  {each:<{longest - 2}}"
        out += textwrap.wrap(summary(kind), width, initial_indent=lead, subsequent_indent=" " * longest)
    shown = f"checkin {name} COMMAND --help".replace("  ", " ")
    return "\n".join([*out, "", *textwrap.wrap(f"{shown} has the options of each. {below}".rstrip(), width)])


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size().columns)


def _command(text: str, width: int) -> list[str]:
    """A command over several lines, as a shell takes it."""
    lines = textwrap.wrap(
        text,
        width - 4,
        initial_indent="  ",
        subsequent_indent="      ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def nearest(words: list[str], kind: type, beside: Mapping[str, type]) -> str:
    """What was meant by the first option, or word in place of a choice, that the command does not have; else ''.

    beside: commands that may be meant in its place.
    """
    known = options_of(kind)
    for word, value in zip(words, [*words[1:], ""]):
        if not (word.startswith("--") or _short(word)):
            continue
        name, _, joined = word.partition("=")
        name = name.replace("_", "-")
        if name not in known:
            have = [other for other, one in beside.items() if name in options_of(one)]
            owners = " and ".join([", ".join(have[:-1]), have[-1]] if have[1:] else have)
            hint = f"; {owners} {'have' if have[1:] else 'has'} it" if have else ""
            return f"no option {name}{hint or did_you_mean(name, known)}"
        option, value = known[name], joined or value
        absent = bool(option.value) and (not value or (not joined and value.startswith("--")))
        shown = "without a value" if absent else value
        if option.choices and (absent or value not in option.choices):
            hint = "" if absent else did_you_mean(value, option.choices)
            return f"{name} {shown}: expected one of {', '.join(option.choices)}{hint}"
        if absent or (option.value in _NUMBERS and not _reads(value, option.value)):
            plain = "" if absent else _number(value, option.value)
            hint = f"; did you mean {plain}?" if plain else ""
            return f"{name} {shown}: expected {_MEANT[option.value]}{hint}"
    return ""


def typed(words: list[str], kind: type) -> dict[str, list[str]]:
    """The values of each option as they were typed, by its name; of arguments without a name in their order."""
    known = options_of(kind)
    arguments = iter([name for name in known if not name.startswith("--")])
    found: dict[str, list[str]] = {}
    left = iter(words)
    for word in left:
        name, joined, value = word.partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--"):
            found.setdefault(next(arguments, ""), []).append(word)
        elif name in known:
            found.setdefault(name, []).append(
                value if joined else next(left, "") if known[name].value else ""
            )
    return found


def repeated(words: list[str], kind: type) -> str:
    """The first option that was given more than once; '' if none."""
    twice = [name for name, values in typed(words, kind).items() if name and len(values) > 1]
    return f"{twice[0]} is given {len(typed(words, kind)[twice[0]])} times: expected once" if twice else ""


def in_options(message: str, words: list[str], kind: type) -> str:
    """The message about an argument of the library as one about the option, with its value as typed."""
    known = options_of(kind)
    spelled = {name.strip("-").replace("-", "_").lower(): name for name in known}
    begun = _ARGUMENT.match(message)
    if begun is None or begun["name"] not in spelled:
        return message
    option = spelled[begun["name"]]
    # Nobody typed None: the option was left out.
    left_out = "" if begun["value"] == "None" else begun["value"]
    (*_, value) = typed(words, kind).get(option, [left_out])
    told = _SAYS.sub(
        lambda found: f"{spelled[found[0][:-1]]} " if found[0][:-1] in spelled else found[0], begun["rest"]
    )
    told = re.sub(r"\b\w+_\w+\b", lambda found: found[0].replace("_", "-"), told) if "/" not in told else told
    named = f"{option} {_validate.cut(value)}".rstrip() if option.startswith("--") else _validate.cut(value)
    return f"{named}: {told}"


def missing(words: list[str], kind: type) -> str:
    """The first option or argument that a command needs and was not given, with what it is; else ''.

    It is told by the first sentence of its help, and its choices.
    """
    known = options_of(kind)
    given, loose = set(), 0
    left = iter(words)
    for word in left:
        if not word.startswith("--"):
            loose += 1
            continue
        name, _, joined = word.partition("=")
        name = name.replace("_", "-")
        given.add(name)
        if not joined and name in known and known[name].value:
            next(left, None)
    for option in known.values():
        named = option.name.startswith("--")
        if option.needed and (option.name not in given if named else (loose := loose - 1) < 0):
            text = option.text.removesuffix(" (needed)").partition(". ")[0].rstrip(".")
            choices = f". One of {', '.join(option.choices)}" if option.choices else ""
            return f"{option.name} is needed: {text[:1].lower()}{text[1:]}{choices}"
    return ""


def _short(word: str) -> bool:
    """Whether a word is an option of one hyphen, which no command has; a negative number is none."""
    return word[:1] == "-" and word[1:2].isalpha()


def _number(word: str, kind: str) -> str:
    """A number as people write it, 0.3%, 2,000,000, 2M or 1/2000, as options take it; '' where it is none."""
    found = re.fullmatch(
        r"([1-9]\d{0,2}(?:,\d{3})+|\d{1,40}(?:\.\d{1,40})?|\.\d{1,40})([%kKmMgGbB]?)(?:/([1-9]\d{0,40}))?",
        word,
    )
    if found is None:
        return ""
    top, unit, bottom = found.groups()
    value = Fraction(top.replace(",", "")) * _UNITS[unit.lower()] / int(bottom or 1)
    plain = f"{value}" if value.denominator == 1 else f"{float(value):g}"
    return plain if plain != word and _reads(plain, kind) and not (unit == "%" and value > 1) else ""


def _reads(word: str, kind: str) -> bool:
    try:
        return float(word).is_integer() or kind == "FLOAT"
    except ValueError:
        return False


# docs/glossary.md has the same sentences.
WORDS = {
    "epsilon": "The most by which one client's data can change the odds of any conclusion: the factor e^epsilon. That "
    "is 11% at epsilon 0.1, a factor of 2.7 at 1, and a factor of 22,000 at 10, where hardly any protection is left.",
    "delta": "The allowance beside epsilon: a conclusion becomes at most e^epsilon times as likely, plus delta. It "
    "should be far below one over the number of clients, since a larger delta permits publishing somebody's data.",
    "epsilon0": "The epsilon of a single message, seen with its sender's name. Other clients' messages make the "
    "epsilon of the whole run smaller, and more rounds make it larger.",
    "client": "One device or person that takes part, with all the data that it holds. The guarantee protects the "
    "client as a whole.",
    "record": "All data that one client holds, however many photographs or sentences that is. In many other libraries "
    "a record is a single training example, and a person who has several of them is protected less.",
    "adjacency": "The pair of data sets that must look nearly alike: they differ in one client. Under replace-one the "
    "client holds other data, under add-or-remove-one it is there or not; epsilons of the two kinds must not be "
    "compared.",
    "message": "The data that a client sends in one round: its update, after the randomizer. Nothing else that "
    "depends on the client's data may leave the device.",
    "randomizer": "The random step on the device that makes a message of an update, so that the message could nearly "
    "as well come from other data. Gaussian noise is one, an answer that a coin sometimes flips is another.",
    "clip norm": "The largest length of an update: a longer one is shortened to it before noise is added. It limits "
    "how far one client can move the result, and so how much noise is needed.",
    "noise multiplier": "The standard deviation of a message's Gaussian noise, divided by the clip norm. Here each "
    "client adds this noise to its own message; in Opacus the server adds it once, to the sum.",
    "check-in": "A client's decision to take part in a round, by a coin of its own that does not depend on its data. "
    "Nobody else may learn who has checked in, because this secrecy hides each client among all others.",
    "drop-out": "A client that has checked in but sends nothing, because its battery is empty or its network is gone. "
    "Dropping out must not depend on the client's data, and only messages that arrive hide one another.",
    "availability": "The state of a client that could take part in a round, for instance because it is charging. It "
    "may be known to everybody, and does not count as chance: each available client still has to throw its coin.",
    "slot": "One of several moments at which the server makes a step; a client picks one of them at random for its "
    "message. The slots from which it picks are its window.",
    "dummy": "A message that the server makes up for a slot that no client picked. The same randomizer draws it, so "
    "that nobody sees that the slot was empty.",
    "shuffler": "A service that passes messages on without names and in random order. It must not work together with "
    "anybody who reads the messages.",
    "secure aggregation": "A protocol by which a server learns the sum of the clients' messages and no single one of "
    "them. It makes the view aggregate true without trust in the server.",
    "view": "The part of a run that the adversary sees: local is one client's messages with its name, messages is all "
    "messages without names, aggregate is their sums. Choose the view of whoever is not trusted.",
    "colluding client": "A client that tells the adversary its message, or that the adversary has made up. Its "
    "message hides nobody, so that only the honest clients count.",
    "composition": "The joint leak of several rounds, as one epsilon and one delta. Ten rounds of epsilon 0.1 and "
    "delta 1e-8 stay within epsilon 1 and delta 1e-7, and the accountant finds how much less it is.",
    "bracket": "Two proven ends between which the true epsilon lies. The upper end is the guarantee; the lower end "
    "says how much a better proof could still gain.",
    "certified": "Proven to lie on the safe side of the truth, rounding errors included. Beside it stand published (a "
    "paper's formula as printed), estimate (not proven on either side) and invalid (shown to be no bound).",
    "mu": "The difficulty of an attack on the scale of Gaussian differential privacy: it is as hard as telling a "
    "standard normal number from one whose mean is mu. At mu 0 an attacker can only guess.",
    "advantage": "The true positive rate minus the false positive rate of the best attack that guesses which of two "
    "records a client holds. 0 is blind guessing, 1 is certainty.",
    "RDP": "Renyi differential privacy, a way to add up rounds by a mean power of the likelihood ratio. It is quick "
    "and simple, and its epsilon is somewhat larger than that of a PLD.",
    "PLD": "Privacy loss distribution: the law of the logarithm of the odds that an adversary sees. Adding up these "
    "random numbers over all rounds gives epsilon without the slack of RDP.",
}


@dataclasses.dataclass(kw_only=True)
class Explain:
    """Explains a word (epsilon, view, RDP) or a bound in a statement (hexagon)."""

    heading: ClassVar[str] = "arguments"
    examples: ClassVar[tuple[str, ...]] = ("epsilon", "shuffler", "hexagon")

    term: tyro.conf.Positional[str]
    """The word; without one that is known, all of them are listed."""

    def prepare(self) -> Job:
        """Finds the word; the job prints it."""
        from checkin_jax.accounting.bounds.table import BOUNDS

        bounds = {bound.word: f"{bound.statement}. Proof: {bound.reference}." for bound in BOUNDS}
        known = {**WORDS, **bounds}
        plain = self.term.strip().replace("_", " ").lower()
        found = {name: text for name, text in known.items() if name.lower() == plain}
        if not found:
            words = ", ".join(WORDS)
            hint = did_you_mean(self.term, known)
            raise UsageError(f"no word {self.term}: expected the name of a bound or one of {words}{hint}")
        return lambda: say(*(f"{name}: {text}" for name, text in found.items()))
