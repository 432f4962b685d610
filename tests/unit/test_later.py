"""Names of packages that are imported when they are used: what editors see is what there is."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import checkin_jax as cj
from checkin_jax import _lazy

TABLES = ("checkin_jax.training", "checkin_jax.auditing")
STUBS = ("checkin_jax", "checkin_jax.flower")


def seen_by_editors(package):
    """Of every name in the block for type checkers the module that it comes from."""
    tree = ast.parse(inspect.getsource(package))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.asname: node.module
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("name", TABLES)
def test_editors_see_the_names_that_there_are(name, monkeypatch):
    package = importlib.import_module(name)
    tables = []
    monkeypatch.setattr(_lazy, "attach", lambda package, modules: tables.append(modules) or (None, None))
    exec(compile(inspect.getsource(package), name, "exec"), {"__name__": name})
    expected = {key: f"{name}.{module}" for key, module in tables[0].items()}
    for key, module in seen_by_editors(package).items():
        assert expected.pop(key) in (module, f"{module}.{key}")
    assert not expected


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


def test_a_table_with_a_wrong_module_says_so():
    load, _ = _lazy.attach("checkin_jax", {"Gaussian": "rates"})
    with pytest.raises(AttributeError, match="Gaussian"):
        load("Gaussian")
    with pytest.raises(AttributeError, match="has no attribute 'zebra'"):
        load("zebra")
