"""Names of packages that are imported when they are used: what editors see is what there is."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import checkin_jax as cj

STUBS = ("checkin_jax", "checkin_jax.auditing", "checkin_jax.flower", "checkin_jax.training")


@pytest.mark.parametrize("name", STUBS)
def test_every_name_of_a_stub_is_what_the_stub_imports(name):
    package = importlib.import_module(name)
    tree = ast.parse(Path(inspect.getfile(package)).with_suffix(".pyi").read_text())
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert len(imported) >= 4
    for node in imported:
        for alias in node.names:
            if alias.name == "ClientMod":  # it needs flwr
                continue
            given, place = getattr(package, alias.name), f"{name}.{node.module}".removesuffix(".None")
            if inspect.ismodule(given):
                assert given.__name__ == f"{place}.{alias.name}"
            else:
                assert given is getattr(importlib.import_module(place), alias.name)
            assert alias.name in dir(package)


def test_a_function_with_the_name_of_its_module_is_the_function():
    assert inspect.isfunction(cj.account)
    assert inspect.isfunction(cj.sweep)
    assert inspect.ismodule(cj.training)
    assert inspect.ismodule(cj.published)
    assert cj.account is cj.account
    assert {"account", "training", "Rates"} <= set(dir(cj))


def test_a_near_miss_is_said_what_was_meant():
    with pytest.raises(AttributeError, match=r"no attribute 'acount'; did you mean account\?"):
        cj.acount  # noqa: B018
