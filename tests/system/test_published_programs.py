"""The figures' and tables' programs write what they say; run directories become curves."""

import csv
import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import pytest

from checkin_jax import plotting
from checkin_jax.accounting.compare import ComparedBound
from checkin_jax.accounting.guarantee import RateRow

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


def test_save_writes_the_picture_and_its_numbers(tmp_path):
    drawn, (axis,) = plotting.figure()
    ends = [RateRow(0.1, 0.1, 0.2), RateRow(0.1, 0.2, 0.3)]
    assert plotting.bracket(axis, [1, 2], ends, "bracket", plotting.SERIES[0]) == [0.2, 0.3]
    picture, table = plotting.save(drawn, tmp_path / "a.png", [{"x": 1, "y": 0.1}])
    assert_picture(picture)
    assert read(table) == [{"x": "1", "y": "0.1"}]
    svg, _ = plotting.save(drawn, tmp_path / "b.svg", [{"x": 1}])
    assert "<svg" in svg.read_text()
    with pytest.raises(ValueError, match=r"expected a name ending in \.png, \.svg, \.pdf"):
        plotting.save(drawn, tmp_path / "a.txt", [{"x": 1}])
    with pytest.raises(ValueError, match="expected at least one row"):
        plotting.write_csv(tmp_path / "a.csv", [])


def test_a_comparison_shows_every_bound_whatever_its_value(tmp_path):
    rows = [
        ComparedBound(
            method=f"bound {i}",
            source="a paper",
            epsilon=epsilon,
            delta=1e-6,
            direction="lower" if i == 0 else "upper",
            validity=validity,
        )
        for i, (epsilon, validity) in enumerate(
            [(0.0, "certified"), (1.5, "published"), (float("inf"), "estimate"), (0.1, "invalid")]
        )
    ]
    drawn = plotting.comparison(rows)
    plotting.save(drawn, tmp_path / "c.svg", map(dataclasses.asdict, rows))
    assert [row["epsilon"] for row in read(tmp_path / "c.csv")] == ["0.0", "1.5", "inf", "0.1"]
    (axis,) = drawn.axes
    assert [text.get_text() for text in axis.texts] == ["0", "1.5", "inf", "0.1"]
    assert [label.get_text() for label in axis.get_yticklabels()][-1] == "bound 3 (no bound)"
    assert plotting.comparison(rows[:1]).axes  # nothing finite and positive to draw


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
    curves = program("accountants/training_curves.py")
    curves.main(tmp_path / "runs", tmp_path / "curves.svg")
    # Two curves: those of equal settings are one.
    drawn = (tmp_path / "curves.svg").read_text()
    assert re.findall(r"<!-- (a|b|b_1|b_2) -->", drawn) == ["a", "b"]
    curves.main(tmp_path / "runs", tmp_path / "curves.png")
    assert_picture(tmp_path / "curves.png")
    rows = read(tmp_path / "curves.csv")
    assert [(row["run"], row["round"], row["epsilon"]) for row in rows] == [
        ("a", "10", "1.0"),
        ("a", "20", "2.0"),
        ("b_1", "10", "1.0"),
        ("b_1", "20", "2.0"),
        ("b_2", "10", "1.0"),
        ("b_2", "20", "2.0"),
    ]
    with pytest.raises(SystemExit, match="no run directories there"):
        curves.main(tmp_path / "nothing", tmp_path / "curves.png")
    # The same picture from its own table.
    curves.main(tmp_path / "curves.csv", tmp_path / "again.svg")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "curves.csv").read_bytes()
    assert re.findall(r"<!-- (a|b) -->", (tmp_path / "again.svg").read_text()) == ["a", "b"]
    with pytest.raises(SystemExit, match="no table of curves in view 'aggregate'"):
        curves.main(tmp_path / "curves.csv", tmp_path / "again.svg", view="aggregate")


REAL_CURVES = ["mnist_paper_network", "mnist_public_features"]


@pytest.mark.parametrize("name", REAL_CURVES)
def test_curves_of_real_runs_have_names_in_words_and_a_colour_each(name, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plotting, "save", lambda figure, *_: drawn.append(figure) or ("", ""))
    program("accountants/training_curves.py").main(
        ROOT / "docs" / "pictures" / f"{name}.csv", tmp_path / "a.svg"
    )
    left = drawn[0].axes[0]
    labels = [line.get_label() for line in left.lines]
    assert len({line.get_color() for line in left.lines}) == len({*labels}) == len(labels)
    assert not [label for label in labels if re.search(r"[a-z]_[a-z]|_of_", label)]
    # The picture that is kept is this one.
    kept = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
    assert [label for label in labels if f"<!-- {label} -->" not in kept] == []


def test_random_check_ins_figure_2_has_the_line_of_one_message(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plotting, "save", lambda figure, *_: drawn.append(figure) or ("", ""))
    program("accountants/random_check_ins_figure_2.py").main(
        tmp_path / "a.svg", num_clients=(1_000,), points=3
    )
    lines = [line for line in drawn[0].axes[0].lines if len(line.get_xdata()) == 3]
    assert [line for line in lines if list(line.get_xdata()) == list(line.get_ydata())]


def test_runs_of_equal_settings_are_one_line_with_their_spread(tmp_path, capsys):
    table = program("accountants/training_table.py")
    with pytest.raises(SystemExit, match="no run that has ended"):
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
    program("accountants/training_curves.py").main(tmp_path / "runs", tmp_path / "c.png", view="aggregate")
    assert_picture(tmp_path / "c.png")
    rows = read(tmp_path / "c.csv")
    assert {row["run"] for row in rows} == {"ldp_sgd_epsilon0_4", "gaussian_epsilon0_8"}
    assert max(float(row["accuracy"]) for row in rows) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("shuffled_check_in_figure_1", {"points": 2}, 3 * 4 * 2),
        ("shuffled_check_in_figure_2", {"points": 2}, 6 * 2),
        ("random_check_ins_figure_2", {"points": 2, "num_clients": (1_000,)}, 2),
    ],
)
def test_figures(tmp_path, name, arguments, count):
    program(f"accountants/{name}.py").main(tmp_path / "figure.png", **arguments)
    assert_picture(tmp_path / "figure.png")
    assert len(read(tmp_path / "figure.csv")) == count


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
