"""What README.md, the pages and the docstrings show runs as shown."""

import csv
import dataclasses
import doctest
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import checkin_jax as cj
from benchmarks import pictures
from checkin_jax import cli
from checkin_jax._rounding import up
from checkin_jax.accounting.bounds.select import applying
from checkin_jax.accounting.bounds.table import BOUNDS
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.cli.programs import option, parsed
from checkin_jax.protocols import RELATIONS
from checkin_jax.reports.render import glossary
from checkin_jax.sweeps import figures
from checkin_jax.sweeps.figures import write

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
API = "".join(page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md")))
# Drawn from real runs; what they show lies beside them.
REAL_RUNS = {"mnist_paper_network.svg", "mnist_public_features.svg"}
ROUNDS = {"mnist_paper_network_rounds.svg"}
# The census of a seed, which takes minutes: `benchmarks/census.py`.
RECORDED = REAL_RUNS | ROUNDS | {"census.svg"}
# A block of Python, and the block below it of what it prints, if there is one.
SHOWN = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    return SHOWN.findall(page.read_text())


def consoles(page: Path) -> list[tuple[str, str]]:
    """Arguments of each `checkin` command of the console blocks, and what it prints there."""
    shown = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r"^\$ checkin (.*)\n((?:(?!\$ ).*\n)*)", "".join(shown), re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Arguments of each `checkin` command of a page, in consoles or indented."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"^(?:\$ |    )checkin (.*)$", text, re.MULTILINE)
    return [command for command in found if "..." not in command]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_python_blocks_run_and_print_what_they_say(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block, output in blocks(page):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users have them
            exec(compile(block, page.name, "exec"), names)
        printed = capsys.readouterr().out
        for line in output.splitlines():
            assert line in printed


def test_every_output_is_below_the_code_that_prints_it():
    """Not beside it in a comment: a reader copies the code and compares the output."""
    for page in PAGES:
        text = page.read_text()
        assert text.count("\n```text\n") == sum(bool(output) for _, output in blocks(page)), page.name
        for block, _ in blocks(page):
            assert not re.search(r"^ *print\(.*\)\n#", block, re.MULTILINE), page.name


def test_pages_are_short():
    """README.md, the pages that are no proofs, and the book of proofs: words of their Markdown, code included."""
    names = re.findall(r"(\w+\.md)", (ROOT / "mkdocs.yml").read_text().partition("- Proofs:")[2])
    proofs = {ROOT / "docs" / name for name in names}
    readme, *pages = [len(page.read_text().split()) for page in PAGES if page not in proofs]
    assert readme <= 700
    assert sum(pages) <= 18_000
    book = [ROOT / "docs" / "proofs.md", *(ROOT / "docs").glob("theory*.md")]
    # A formula between two lines of text counts no words, so that nobody squeezes it.
    texts = [re.sub(r"\$\$.*?\$\$", "", page.read_text(), flags=re.DOTALL) for page in book]
    assert sum(len(text.split()) for text in texts) <= 19_500


def test_the_sidebar_is_short():
    """Entries of its trees beside the proofs; a group inside one counts once."""
    _, _, nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    trees, _, _ = nav.partition("  - Proofs:\n")
    assert 0 < len(re.findall(r"^ {6}- ", trees, re.MULTILINE)) <= 15


def test_recipes_are_short():
    """After the first block, which makes the data that they share."""
    for recipe, _ in blocks(ROOT / "docs" / "training.md")[1:]:
        assert (
            len([line for line in recipe.splitlines() if line and not line.startswith(("import", "from"))])
            <= 15
        )


# What a machine decides, and no seed: accuracy of a run with fresh noise, seconds.
MEASURED = re.compile(r"[\d.]+(?=% on the test set| s\))")


# Commands of a console that take more than a second or two, or that read what these wrote.
LONG = ("train", "report", "audit", "figure")


@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "page", [page for page in PAGES if consoles(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_of_a_console_print_what_they_say(page, all_of_them, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    for command, output in consoles(page):
        if command.startswith(LONG) and not all_of_them:
            continue
        cli.main(shlex.split(command))
        printed = MEASURED.sub("#", capsys.readouterr().out).splitlines()
        for line in MEASURED.sub("#", output).splitlines():
            assert line in printed


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_is_one_the_parser_takes(page):
    for command in commands(page):
        assert parsed(cli.APP, shlex.split(command, comments=True)) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_opens_with_what_it_answers(page):
    title, opening, *_ = page.read_text().split("\n\n")
    assert re.fullmatch(r"# .+", title)
    assert "?" in title + opening


def test_the_commands_page_names_every_command():
    page = (ROOT / "docs" / "command.md").read_text()
    for name in cli.COMMANDS:
        first, *_ = name.split()
        assert f"| `checkin {first}" in page, name


OPTIONS = {option(field.name) for kind in cli.COMMANDS.values() for field in dataclasses.fields(kind)}


def test_the_training_results_show_todays_epsilon():
    """Of the rounds that each row of docs/results.md tells of; the Gaussian noise is that of epsilon0 = 8."""
    l2 = [cj.L2Mechanism(epsilon0=value) for value in (2.0, 4.0, 4.0)]
    runs = {
        "mnist_ldp_sgd": (
            cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=1_200),
            l2[0],
        ),
        "mnist_averaged": (
            cj.AveragedUpdates(num_clients=60_000, num_slots=60, num_epochs=100),
            l2[1],
        ),
        "mnist_sliding_window": (
            cj.SlidingWindow(num_clients=60_000, window=30_000, num_epochs=100, minibatch=2_000),
            l2[2],
        ),
        "mnist_federated_dp_sgd": (
            cj.ShuffledCheckIn(num_clients=10**7, check_in_prob=1e-4, num_rounds=2_000),
            cj.Gaussian(noise_multiplier=1.7083367820019264),
        ),
    }
    page = (ROOT / "docs" / "results.md").read_text()
    for name, run in runs.items():
        (row,) = re.findall(rf"^\| `{name}\.py`.*\| (\S+) \| (\S+) \|$", page, re.MULTILINE)
        for shown, view in zip(row, ("messages", "aggregate")):
            assert up(cj.account(*run, delta=1e-6, view=view).epsilon, 4) == shown, (name, view)


@pytest.mark.parametrize("picture", sorted(REAL_RUNS))
def test_curves_of_real_runs_end_as_the_tables_say(picture):
    with (ROOT / "docs" / "pictures" / picture).with_suffix(".csv").open() as file:
        ends = {row["run"]: row for row in csv.DictReader(file)}
    page, found = (ROOT / "docs" / "results.md").read_text(), set()
    for line in re.findall(r"^\| \w[\w.]* \|.*%.*$", page, re.MULTILINE):
        name = line.split()[1]
        last = {run: end for run, end in ends.items() if re.fullmatch(rf"{re.escape(name)}(_[123])?", run)}
        if last:
            found |= {*last}
            one, *_ = last.values()
            mean = sum(float(end["accuracy"]) for end in last.values()) / len(last)
            assert f"| {int(one['round']):,} | {len(last)} | {mean:.1%} " in line
            assert f"| {up(float(one['epsilon']))} |" in line
    assert found == {*ends}


@pytest.mark.slow
def test_the_linear_models_results_hold_of_its_settings(monkeypatch):
    spec = importlib.util.spec_from_file_location("features", ROOT / "train" / "mnist_public_features.py")
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "features", program)
    spec.loader.exec_module(program)
    section = (ROOT / "docs" / "results.md").read_text().split("\n## ")[1]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.count(" | ") == 7][2:]
    settings = program.settings()
    assert {name.removesuffix("_1") for name, *_ in rows} == {*settings}
    for name, clients, _, rounds, *_, messages, aggregate in rows:
        setting = settings[name.removesuffix("_1")]
        run = cj.training.PrivateRun(protocol=setting.protocol, randomizer=setting.randomizer)
        assert int(clients.replace(",", "")) == run.protocol.num_clients
        ran = run.schedule.so_far(int(rounds.replace(",", "")))
        for view, shown in (("messages", messages), ("aggregate", aggregate)):
            found = cj.account(ran, run.randomizer, delta=1e-6, view=view)
            assert found.lower <= float(shown), (name, view)
            # As the runs wrote it; the one composition has moved upper ends by parts in ten thousand since.
            assert found.epsilon <= float(shown) * (1 + 3e-4), (name, view)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_that_is_named_exists(page):
    """Of the command, or of a program in train/ or benchmarks/, or of the tools that the pages name."""
    programs = [*ROOT.glob("train/*.py"), *ROOT.glob("benchmarks/*.py"), *ROOT.glob("checkin_jax/cli/*.py")]
    written = "".join(path.read_text() for path in programs)
    for each in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", page.read_text())):
        own = each[2:].replace("-", "_")
        assert each in OPTIONS or each in written or f" {own}: " in written or each in OTHERS, each


# Of XLA.
OTHERS = {"--xla"}


def words(picture: Path) -> set[str]:
    return set(re.findall(r">([^<>\s][^<>]*)</(?:text|tspan)>", picture.read_text()))


def draw(folder: Path, **given: Any) -> None:
    """As `make pictures` does."""
    for name, picture in pictures.PICTURES.items():
        points = given if picture.points else {}
        write(picture, folder / f"{name}.svg", width=6.0, text=10.0, **points)


def test_every_picture_is_kept_shown_and_drawn(tmp_path, monkeypatch):
    """The drawing, of ends that cost nothing; `test_the_pictures_show_what_is_computed` has the real ones."""

    def ends(**asked):
        size = max(np.size(value) for value in asked.values())
        return {"lower": np.ones(size), "epsilon": np.full(size, 2.0), "num_rounds": asked.get("num_rounds")}

    for module in (pictures, figures):
        monkeypatch.setattr(module, "sweep", ends)
    draw(tmp_path, points=2)
    drawn = {picture.name for picture in tmp_path.iterdir()}
    shown = {name for page in PAGES for name in re.findall(r"pictures/(\w+\.svg)\)", page.read_text())}
    assert drawn == shown - RECORDED
    for name in drawn:
        kept = ROOT / "docs" / "pictures" / name
        assert kept.stat().st_size < 100_000
        # The same picture but for numbers and what is beside axes.
        numbers = re.compile(r"[\d.−×]+")
        same = [{numbers.sub("#", word) for word in words(one)} for one in (kept, tmp_path / name)]
        assert same[0] == same[1]
    assert "1 ≤ ε ≤ 2" in words(tmp_path / "bracket.svg")


@pytest.mark.slow
def test_the_pictures_show_what_is_computed(tmp_path):
    draw(tmp_path, points=2)
    for picture in tmp_path.iterdir():
        assert words(picture) == words(ROOT / "docs" / "pictures" / picture.name)


@pytest.mark.parametrize(
    "module", ["", ".accounting.account", ".accounting.calibration", ".accounting.composition.renyi"]
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


def test_the_oldest_jax_of_the_package_is_the_one_that_is_tested_and_promised():
    (oldest, beyond), *others = re.findall(
        r'"jax(?:lib)?>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert others == [(oldest, beyond)]
    assert f"\nJAX ?= {oldest}.0\n" in (ROOT / "Makefile").read_text()
    newest = f"0.{int(beyond.partition('.')[2]) - 1}"
    assert f"at present {oldest} and {newest}," in (ROOT / "docs" / "stability.md").read_text()


def test_the_glossary_has_every_bound_of_the_table():
    """With the sentence that statements print, and a link to every page of its proof; names have one entry each."""
    page = (ROOT / "docs" / "glossary.md").read_text().replace("\\", "")
    entries = re.findall(r'^\* <a id="([\w-]+)"></a>\*\*(.+?)\*\*: (.*) \((\[.*)\)\.$', page, re.MULTILINE)
    assert len({anchor for anchor, *_ in entries}) == len({name for _, name, *_ in entries}) == len(entries)
    found = {name: (sentence, links) for _, name, sentence, links in entries}
    for bound in BOUNDS:
        sentence, links = found[bound.word]
        assert sentence == bound.statement
        for proof in re.findall(r"docs/(\w+\.md)", bound.reference):
            assert f"({proof})" in links, (bound.word, proof)


RATES = cj.Rates(values=[0.1, 0.5], counts=[5_000, 5_000])
# Protocols that declare a fact; no bound comes from another fact of theirs, but for the slots of sliding windows.
DECLARING = {
    "cover": cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=0.3, num_rounds=10),
    "unequal_cover": cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=RATES, num_rounds=10),
    "averaged_slot_choices": cj.AveragedUpdates(num_clients=10_000, num_slots=500, num_epochs=10),
    "unequal_averaged_slot_choices": cj.AveragedUpdates(
        num_clients=10_000, num_slots=500, check_in_prob=RATES, num_epochs=10
    ),
    "slots": cj.FixedWindow(num_clients=10_000, num_slots=500, num_epochs=10),
    "sliding_window": cj.SlidingWindow(num_clients=10_000, window=500, num_epochs=10),
}


@pytest.mark.parametrize("fact", DECLARING)
def test_the_page_names_the_bounds_that_a_fact_selects(fact):
    protocol, page = DECLARING[fact], (ROOT / "docs" / "extending.md").read_text()
    assert getattr(protocol, fact) is not None
    facts = [fact, "slots"] if fact == "sliding_window" else [fact]
    rows = [row for row in page.splitlines() if row.startswith("| `") and row[3:].partition("`")[0] in facts]
    assert len(rows) == len(facts)
    named = {word.strip() for row in rows for word in row.split("|")[2].split(",")}
    randomizers = [
        *(made(epsilon0=1.0) for made in (cj.PureLDP, cj.OneBit, cj.Rappor, cj.Laplace)),
        cj.PureLDP(epsilon0=1.0, total_variation=0.2),
        cj.KaryResponse(epsilon0=1.0, num_values=5),
        cj.ApproximateLDP(epsilon0=1.0, delta0=1e-12),
        cj.Gaussian(noise_multiplier=2.0),
    ]
    found = {
        bound.word
        for view in ("messages", "aggregate")
        for relation in RELATIONS
        if protocol.refuses(relation, view) is None
        for each in randomizers
        for bound in applying([Unit(protocol, each, view, relation, 30.0)])
    }
    assert found <= named
    # Where all send, other bounds apply than at a smaller rate.
    assert found >= named - {"everybody", "gaussian-cover", "hexagon", "profile"}


def test_the_glossary_has_the_words_that_the_command_explains():
    """The site's build puts them there, each with a text of two sentences."""
    page = (ROOT / "docs" / "glossary.md").read_text()
    (place,) = re.findall(
        r'^WORDS = "(.+)"$', (ROOT / "docs" / "_site" / "hooks.py").read_text(), re.MULTILINE
    )
    assert page.count(place) == 1
    assert all(text.endswith(".") and text.count(". ") == 1 for text in glossary().values())


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ("noise-multiplier", "noise multiplier"),
        ("clip norm", "clip norm"),
        ("--epsilon0", "epsilon0"),
        ("aggregate", "view"),
        ("replace-one", "adjacency"),
        ("Own-Laws", "own-laws"),
    ],
)
def test_words_are_explained_as_options_and_statements_write_them(asked, word, capsys, monkeypatch):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    cli.main(["explain", *asked.removeprefix("--").split()])
    assert capsys.readouterr().out.startswith(f"{word}: ")


def test_formulae_are_formulae():
    """In pages of proofs and numerics none is written as code, and every one is closed; the build reads them."""
    names = ("accounting.md", "evaluation.md", "auditing.md", "guarantees.md")
    numerics = [ROOT / "docs" / name for name in names]
    for page in (*(ROOT / "docs").glob("theory*.md"), *numerics):
        text = page.read_text()
        assert text.count("$") > 0
        assert text.count("$") % 2 == 0, page.name
        for code in re.findall(r"`([^`\n]+)`", re.sub(r"\$[^$]*\$", "", text)):
            assert not re.search(r"<=|>=|[_^][{(]|\bE\b|\|\|", code), (page.name, code)


def test_sections_that_are_cited_exist():
    """Of pages of proofs, in pages and in comments: "[clones](theory.md), section 6", "docs/theory.md, 6"."""
    numbered = {
        page.name: set(re.findall(r"^## (\d[a-z]?)\. ", page.read_text(), re.MULTILINE))
        for page in (ROOT / "docs").glob("theory*.md")
    }
    cited = re.compile(r"(?:\]\(|docs/)(theory\w*\.md)\)?,?\s+(?:sections? )?(\d[a-z]?)\b")
    found = []
    for file in (*PAGES, *sorted((ROOT / "checkin_jax").rglob("*.py"))):
        found += [(file.name, *each) for each in cited.findall(file.read_text())]
    assert len(found) > 30
    assert [each for each in found if each[2] not in numbered[each[1]]] == []


ROOMS = ("checkin_jax", "checkin_jax.accounting", "checkin_jax.accounting.bounds")


def found(name: str) -> bool:
    """Whether one of ROOMS has this module, or a module of it this class, function or method."""
    for room in ROOMS:
        parts = name.split(".")
        for size in range(len(parts), 0, -1):
            module = ".".join([room, *parts[:size]])
            try:
                value: object = importlib.import_module(module)
            except ModuleNotFoundError:
                continue
            if all(hasattr(value := getattr(value, part, None), "__module__") for part in parts[size:]):
                return True
    return False


def test_proofs_name_code_that_uses_them():
    """What each page of proofs, and of their evaluation, has after "Used by"."""
    for page in sorted([*(ROOT / "docs").glob("theory*.md"), ROOT / "docs" / "evaluation.md"]):
        users = re.findall(r"\*Used by\*(.*?)(?=\n\n|\Z|\*Numerics)", page.read_text(), re.DOTALL)
        assert users, page.name
        for name in re.findall(r"`([a-z_0-9]+\.[\w.]+)`", "".join(users)):
            assert found(name), (page.name, name)


def test_every_public_name_is_on_the_api_page():
    paths = [path.rpartition(".") for path in re.findall(r"^::: (\S+)$", API, re.MULTILINE)]
    shown = [getattr(importlib.import_module(module), name) for module, _, name in paths]
    for name in vars(cj):
        value = getattr(cj, name)
        if not name.startswith("_") and hasattr(value, "__module__"):
            assert any(value is each for each in shown), name


def of_the_api() -> dict[str, object]:
    """Every class and function of the API page, and the public members of each class, by name."""
    found: dict[str, object] = {}
    for path in re.findall(r"^::: (\S+)$", API, re.MULTILINE):
        module, _, name = path.rpartition(".")
        shown = getattr(importlib.import_module(module), name)
        found[path] = shown
        for part, value in vars(shown).items() if isinstance(shown, type) else ():
            if not part.startswith("_") and (callable(value) or isinstance(value, property | classmethod)):
                found[f"{path}.{part}"] = value
    return found


def test_docstrings_begin_with_a_verb_or_a_noun_and_name_errors():
    weak = ("What", "How", "Whether", "Which", "About", "As", "Of", "All", "In", "Where", "When", "Why")
    for name, value in of_the_api().items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        text = inspect.cleandoc(getattr(function, "__doc__", None) or "Inherited.")
        assert text.split()[0] not in weak, name
        assert not text.startswith("The same "), name
        if inspect.isfunction(function) and function.__doc__:
            source = inspect.getsource(inspect.unwrap(function))
            _, _, body = source.rpartition('"""')
            assert "Raises:" in text or not re.search(r"^ +raise |_validate\.", body, re.MULTILINE), name


def test_docstrings_of_functions_name_their_arguments():
    for name, function in of_the_api().items():
        if inspect.isfunction(function) and f"::: {name}\n" in API:
            for argument in inspect.signature(function).parameters:
                assert re.search(rf"\b{argument}(, \w+)*:", function.__doc__ or ""), (name, argument)


def test_the_api_page_shows_defaults():
    """An entry that is no parameter of the signature would be shown as a required one."""
    for name in re.findall(r"^::: (\S+)$", API, re.MULTILINE):
        module, _, last = name.rpartition(".")
        shown = getattr(importlib.import_module(module), last)
        each = (
            [shown]
            if not isinstance(shown, type)
            else [part for part in vars(shown).values() if callable(part)]
        )
        for function in each:
            section = re.search(r"\n *Args:\n(.*?)(\n\n|$)", function.__doc__ or "", re.DOTALL)
            if section is None or function is type:
                continue
            first = len(section[1]) - len(section[1].lstrip())
            entries = re.findall(rf"^ {{{first}}}(\S.*?):", section[1], re.MULTILINE)
            assert entries
            assert {entry.lstrip("*") for entry in entries} <= set(inspect.signature(function).parameters), (
                name
            )
