"""Figures by name and the tables' programs write what they say; run directories become curves."""

import csv
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkin_jax import cli, plotting
from checkin_jax.cli import lookup
from checkin_jax.sweeps.figures import FIGURES, write
from checkin_jax.training.reports import recorded

ROOT = Path(__file__).parents[2]


def program(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def assert_picture(path):
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_pictures_and_their_numbers_are_written(tmp_path):
    drawn, (axis,) = plotting.figure()
    axis.plot([1, 2], [0.2, 0.3])
    plotting.write(drawn, tmp_path / "a.png")
    assert_picture(tmp_path / "a.png")
    plotting.write(drawn, tmp_path / "b.svg")
    assert "<svg" in (tmp_path / "b.svg").read_text()
    with pytest.raises(ValueError, match=r"expected a name ending in \.png, \.svg, \.pdf"):
        plotting.check(out=tmp_path / "a.txt")


def test_training_curves_read_run_directories(tmp_path):
    # A run directory's files, as the trainer writes them.
    for name, randomizer in (
        ("a", {"kind": "PureLDP", "epsilon0": 1.0}),
        ("b_1", {"kind": "Gaussian", "noise_multiplier": 2.0}),
        ("b_2", {"kind": "Gaussian", "noise_multiplier": 2.0}),
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        protocol = {"kind": "ShuffledCheckIn", "num_clients": 1_000, "check_in_prob": 0.1, "num_rounds": 20}
        config = {"protocol": protocol, "randomizer": randomizer, "delta": 1e-6, "dataset": "digits"}
        (folder / "config.json").write_text(json.dumps(config))
        named = {"view": "messages", "method": "clones, PLD"}
        lines: list[dict[str, object]] = [{"round": t, "check_ins": 9} for t in range(1, 21)]
        for t in (10, 20):
            lines[t - 1] |= {
                "accuracy": t / (20 if name == "b_2" else 40),
                "epsilon": t / 10,
                "epsilon_lower": t / 20,
                **named,
            }
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    words = {"a": "1-LDP messages", "b": "Gaussian noise of 2 clip norms per message"}
    figure = ("figure", "shuffled-check-in-figure-3", "--source")
    cli.main([*figure, f"{tmp_path}/runs", "--out", f"{tmp_path}/c.svg", "--data", f"{tmp_path}/c.csv"])
    # Two curves: those of equal settings are one.
    drawn = (tmp_path / "c.svg").read_text()
    assert [word for word in words.values() if f">{word}<" not in drawn] == []
    rows = read(tmp_path / "c.csv")
    assert [(row["setting"], row["run"], row["round"], row["epsilon"]) for row in rows] == [
        (words["a"], "a", "10", "1.0"),
        (words["a"], "a", "20", "2.0"),
        (words["b"], "b_1", "10", "1.0"),
        (words["b"], "b_1", "20", "2.0"),
        (words["b"], "b_2", "10", "1.0"),
        (words["b"], "b_2", "20", "2.0"),
    ]
    # The same figure from its own table.
    cli.main([*figure, f"{tmp_path}/c.csv", "--out", f"{tmp_path}/d.svg", "--data", f"{tmp_path}/d.csv"])
    for name in ("csv", "svg"):
        assert (tmp_path / f"c.{name}").read_bytes() == (tmp_path / f"d.{name}").read_bytes()


def test_settings_that_send_alike_are_told_apart_by_their_clients(tmp_path):
    for name, clients in (("few", 100), ("many", 1_000)):
        folder = tmp_path / name
        folder.mkdir()
        protocol = {"kind": "Shuffle", "num_clients": clients, "num_rounds": 1}
        config = {"protocol": protocol, "randomizer": {"kind": "PureLDP", "epsilon0": 1.0}, "delta": 1e-6}
        (folder / "config.json").write_text(json.dumps(config | {"dataset": "digits"}))
        line = {"round": 1, "check_ins": 9, "accuracy": 0.5, "epsilon": None, "epsilon_lower": 0.25}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    found = recorded.evaluations(tmp_path)
    told = ["1-LDP messages, 100 clients", "1-LDP messages, 1,000 clients"]
    assert [row["setting"] for row in found] == told
    assert [row["epsilon"] for row in found] == [math.inf, math.inf]
    with pytest.raises(ValueError, match="expected run directories"):
        recorded.evaluations(tmp_path / "few")


REAL_CURVES = {
    "mnist_paper_network": ("shuffled-check-in-figure-3", "mnist_paper_network"),
    "mnist_paper_network_rounds": ("shuffled-check-in-figure-4", "mnist_paper_network"),
    "mnist_public_features": ("shuffled-check-in-figure-3", "mnist_public_features"),
}


@pytest.mark.parametrize("name", REAL_CURVES)
def test_pictures_of_real_runs_are_drawn_from_their_tables(name, tmp_path):
    figure, table = REAL_CURVES[name]
    kept = ROOT / "docs" / "pictures"
    out = tmp_path / "a.svg"
    source = lookup._evaluations(kept / f"{table}.csv")
    write(FIGURES[figure], out, width=6.0, text=10.0, source=source)
    texts = [
        re.findall(r">([^<>\s][^<>]*)</(?:text|tspan)>", path.read_text())
        for path in (out, kept / f"{name}.svg")
    ]
    assert texts[0] == texts[1]
    labels = {row["setting"] for row in read(kept / f"{table}.csv")}
    assert labels <= {*texts[0]}


def test_runs_of_equal_settings_are_one_line_with_their_spread(tmp_path, capsys):
    table = program("accountants/training_table.py")
    with pytest.raises(ValueError, match="expected a folder with runs that have ended"):
        table.main(tmp_path)
    protocol = {"kind": "ShuffledCheckIn", "num_clients": 10_000, "check_in_prob": 0.1, "num_rounds": 2}
    runs = {
        "one_1": (2.0, 0.5, 0.25),
        "one_2": (2.0, 0.75, 0.5),
        "one_3": (2.0, 0.625, None),
        "two": (3.0, 0.9, 0.125),
        "two_goes_on": (3.0, None, None),
    }
    for number, (name, (noise, accuracy, epsilon)) in enumerate(runs.items()):
        folder = tmp_path / name
        folder.mkdir()
        config = {"protocol": protocol, "randomizer": {"kind": "Gaussian", "noise_multiplier": noise}}
        (folder / "config.json").write_text(json.dumps(config | {"delta": 1e-6, "seed": number}))
        (folder / "metrics.jsonl").write_text(
            "".join(f'{{"round": {t}, "check_ins": 990}}\n' for t in (1, 2))
        )
        if accuracy is not None:
            epsilons = {"messages": epsilon, "aggregate": 0.0625}
            report = {"accuracy": accuracy, "rounds": 2, "epsilon": epsilons, "notes": []}
            (folder / "report.json").write_text(json.dumps(report))
    table.main(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "| one | 10,000 | 990 | 2 | 3 | 62.5% (50.0% to 75.0%) | inf | 0.0625 |",
        "| two | 10,000 | 990 | 2 | 1 | 90.0% | 0.125 | 0.0625 |",
        "",
        "two_goes_on has not ended, after 2 rounds.",
    ]


def test_programs_check_what_they_are_asked_before_they_compute(tmp_path):
    out, words = tmp_path / "a.csv", ["--num-clients", "1e3", "--num-clients", "2000", "--num-rounds", "1e1"]
    for path, given, error in (
        (
            "rounds_and_clients",
            [*words, "--check-ins", "1500"],
            "check_ins=1500: expected at most the fewest",
        ),
        ("large_sweep", ["--delta", "5"], "delta=5.0: expected a number in"),
    ):
        command = [sys.executable, str(ROOT / "accountants" / f"{path}.py"), "--out", str(out), *given]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert (done.returncode, error in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr
    assert not out.exists()


@pytest.mark.slow
def test_training_curves_of_the_digits_in_miniature(tmp_path):
    recipe = program("train/mnist_curves.py")
    settings = {
        "dataset": "digits",
        "epsilon0": (4.0,),
        "gaussian_epsilon0": (8.0,),
        "num_rounds": 60,
        "seed": 1,
    }
    recipe.main(tmp_path / "runs", **settings)
    recipe.main(tmp_path / "runs", **settings)  # kept
    rows = recorded.evaluations(tmp_path / "runs")
    assert {row["run"] for row in rows} == {"ldp_sgd_epsilon0_4", "gaussian_epsilon0_8"}
    assert max(row["accuracy"] for row in rows) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("shuffled-check-in-figure-1a", 4 * 2),
        ("shuffled-check-in-figure-1b", 4 * 2),
        ("shuffled-check-in-figure-1c", 4 * 2),
        ("shuffled-check-in-figure-2", 5 * 2),
        ("random-check-ins-figure-2", 13 * 2),
        ("random-check-ins-clients", 4 * 2),
    ],
)
def test_figures_hold_what_is_computed(tmp_path, name, count):
    """The certified curve is between a lower and an upper end, whatever is published."""
    out, data = tmp_path / "figure.png", tmp_path / "figure.csv"
    write(FIGURES[name], out, data, points=2)
    assert_picture(out)
    rows = read(data)
    assert len(rows) == count
    ends = [(float(row["lower"]), float(row["epsilon"])) for row in rows if row["lower"]]
    assert all(0 <= low <= high for low, high in ends)


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        (
            "random_check_ins_table_1",
            {"out": "nosuch/table.csv"},
            "out=.*: expected a file in an existing folder",
        ),
        (
            "shuffled_check_in_table_1",
            {"out": "nosuch/table.csv"},
            "out=.*: expected a file in an existing folder",
        ),
        (
            "shuffled_check_in_table_1",
            {"out": "table.csv", "orders": (8, 1)},
            "orders=1: expected a whole number",
        ),
        ("rounds_and_clients", {"out": "table.pdf"}, "out='table.pdf': expected a name ending in"),
        ("availability", {"log": "log.csv", "rounds": -3}, "rounds=-3: expected a whole number"),
    ],
)
def test_wrong_options_are_refused_before_the_work(tmp_path, monkeypatch, name, arguments, match):
    monkeypatch.chdir(tmp_path)
    paths = {key: Path(value) if isinstance(value, str) else value for key, value in arguments.items()}
    with pytest.raises(ValueError, match=match):
        program(f"accountants/{name}.py").main(**paths)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("random_check_ins_table_1", {"num_clients": 1_000, "num_slots": 100}, 5),
        ("shuffled_check_in_table_1", {"num_clients": (1e3,), "orders": (8,)}, 4),
    ],
)
def test_tables(tmp_path, name, arguments, count):
    program(f"accountants/{name}.py").main(tmp_path / "table.csv", **arguments)
    assert len(read(tmp_path / "table.csv")) == count
