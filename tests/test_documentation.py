"""What README.md, the pages and the docstrings show runs as shown."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import checkin_jax

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A comment right below a print is what it prints; a longer output follows in further comments.
PROMISE = re.compile(r"^ *print\(.*\)\n((?:^# .*\n?)+)", re.MULTILINE)


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_python_blocks_run_and_print_what_they_say(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)
        printed = capsys.readouterr().out
        for promise in PROMISE.findall(block):
            for line in re.findall(r"^# (.*)$", promise, re.MULTILINE):
                assert line in printed
    # The statement printed by the page that explains it.
    for statement in re.findall(r"^```text\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        assert statement in printed


@pytest.mark.parametrize(
    "module", ["", ".accounting.account", ".accounting.calibration", ".accounting.renyi"]
)
def test_the_examples_of_docstrings(module):
    result = doctest.testmod(importlib.import_module("checkin_jax" + module))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_two_commands_and_every_named_file_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"\bmake ([a-z][a-z-]+)`", page.read_text()) + re.findall(
            r"^    make ([a-z-]+)", page.read_text(), re.MULTILINE
        ):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page.name, target)
        for path in re.findall(r"\]\(([\w/.]+)\)", page.read_text()):
            assert (page.parent / path).exists(), (page.name, path)


def test_every_public_name_is_on_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text()
    for name in vars(checkin_jax):
        value = getattr(checkin_jax, name)
        if not name.startswith("_") and hasattr(value, "__module__"):
            assert f"::: {value.__module__}.{name}\n" in page, name
