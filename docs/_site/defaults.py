"""Defaults in signatures as values: `bounds='best'` says more than `bounds=BEST`."""

from __future__ import annotations

import importlib
import re
from typing import Any

import griffe

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


class Defaults(griffe.Extension):
    """Puts the value of a module's constant where a signature names it."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            if CONSTANT.fullmatch(str(parameter.default)):
                parameter.default = _value(func, str(parameter.default))

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Of a dataclass, whose signature is made of its attributes."""
        inside = attr.parent is not None and attr.parent.is_class
        if inside and CONSTANT.fullmatch(str(attr.value)):
            attr.value = _value(attr, str(attr.value))


def _value(where: griffe.Object, name: str) -> str:
    return repr(getattr(importlib.import_module(where.module.path), name))
