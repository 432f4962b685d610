"""Hints in errors: "did you mean ...?" for unknown names, and how to install what is missing."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

from checkin_jax._rounding import counted

P = ParamSpec("P")
T = TypeVar("T")

# Names of our arguments in papers and other libraries, in lower case and without underscores. "delta" and "epsilon"
# are meant where they are no arguments themselves.
_ELSEWHERE = {
    word: name
    for name, words in {
        "num_clients": "n numdevices numusers",
        "check_in_prob": "p q gamma rate samplerate samplingprob samplingprobability",
        "num_rounds": "t steps numsteps iterations",
        "available": "numclients",
        "cycles": "numrounds",
        "num_slots": "m",
        "epsilon0": "eps0 epsilonlocal localepsilon",
        "noise_multiplier": "sigma noise noisescale",
        "num_values": "k",
        "delta": "targetdelta",
        "neighboring_relation": "adjacency relation",
        "view": "adversary",
        "clip_norm": "maxgradnorm l2clipnorm l2normclip clippingnorm",
        "target_epsilon": "eps epsilon",
        "target_delta": "delta",
        "orders": "alpha order",
        "randomizer": "mechanism",
    }.items()
    for word in words.split()
}


def meant(word: str, legal: Iterable[str]) -> str | None:
    """Nearest legal name: an alias, the only name with this beginning, or a similar one; else None."""
    names = {_plain(name): name for name in legal}
    plain = _plain(word)
    known = _ELSEWHERE.get(plain.replace("_", ""))
    if known in names:
        return names[known]
    begun = [name for name in names if plain and name.startswith(plain)]
    if len(begun) == 1:
        return names[begun[0]]
    near = difflib.get_close_matches(plain, names, 1, 0.6)
    return names[near[0]] if near else None


def _plain(word: str) -> str:
    return word.strip("-").replace("-", "_").lower()


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """`; did you mean NAME?`, or nothing if no legal name is near."""
    name = meant(word, legal)
    return "" if name is None else f"; did you mean {name}?"


def named(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function or method: a call with wrong arguments raises a TypeError that suggests names."""
    signature = inspect.signature(function)
    name = function.__name__
    if name == "__init__":
        name = function.__qualname__.split(".")[-2]
    own = "self" in signature.parameters
    shown = signature.replace(parameters=list(signature.parameters.values())[own:])

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(_told(name, shown, args[own:], kwargs) or f"{name}: {error}") from None
        return function(*args, **kwargs)

    return call


def legal(**checks: tuple[Any, ...]) -> Mapping[str, tuple[Any, ...]]:
    """Checks of fields for `ByName`: a function that returns the value to keep, and its positional arguments."""
    return checks


class ByName:
    """Base of frozen dataclasses with keyword fields: errors for wrong names suggest others, values are checked."""

    # Checks of a class's own fields, and of others it checks anew.
    _legal: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        told = _told(cls.__name__, _made_with(cls), args, kwargs) if args or kwargs else None
        if told is not None:
            raise TypeError(told)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, (check, *ranges) in _checks_of(type(self)).items():
            object.__setattr__(self, name, check(*ranges, **{name: getattr(self, name)}))


@functools.cache
def _checks_of(kind: type) -> dict[str, tuple[Any, ...]]:
    """Checks of a dataclass's fields, in their order: its own, and those of its bases."""
    known: dict[str, tuple[Any, ...]] = {}
    for each in reversed(kind.__mro__):
        known |= vars(each).get("_legal", {})
    return {each.name: known[each.name] for each in dataclasses.fields(kind) if each.name in known}


@functools.cache
def _made_with(cls: type) -> inspect.Signature:
    """Signature of a class's `__init__`, without `self`."""
    signature = inspect.signature(cls.__init__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _told(name: str, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> str | None:
    """Fault of the arguments: too many positional ones, or an unknown name; None if neither."""
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    placed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(placed) and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        first = f"{counted(len(placed), 'argument')} by position" if placed else "no argument by position"
        shown = ", ".join(f"{each}=..." for each in by_name[:4]) + ", ..." * (len(by_name) > 4)
        return f"{name} takes {first}; give the others by name: {name}({', '.join([*(p.name for p in placed), shown])})"
    for given in kwargs:
        if given not in signature.parameters:
            names = [each.name for each in parameters]
            hint = did_you_mean(given, names) or f"; expected {', '.join(names)}"
            return f"{name} has no argument {given!r}{hint}"
    return None


def how_to_install(extra: str) -> str:
    """Instruction for installing an extra from the repository, since the package is on no index."""
    return f"run pip install '.[{extra}]' in a copy of the repository"
