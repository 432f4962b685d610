"""No figure has text outside of its canvas, where it would be cut off: every program that draws, pages and sweeps."""

import itertools
import json
import re
import types

import numpy as np
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from test_published_programs import ROOT, program

import checkin_jax as cj
from checkin_jax import plotting
from checkin_jax._plot_style import DARK, name_ends
from checkin_jax.accounting.compare import ComparedBound
from checkin_jax.accounting.guarantee import RateRow
from checkin_jax.auditing.auditor import OperatingPoint
from checkin_jax.protocols import VIEWS
from checkin_jax.sweeps import pictures
from checkin_jax.training.reports import recorded, run_page
from checkin_jax.training.run import PrivateRun

NAMES = {
    "colluders": {"shares": (0.0, 0.5)},
    "pictures": {"points": 2},
    "random_check_ins_figure_2": {"points": 2},
    "shuffled_check_in_figure_1": {"points": 2},
    "shuffled_check_in_figure_2": {"points": 2},
}


def outside(drawn):
    """What leaves the canvas, as drawn: names of artists, and their text."""
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    renderer = canvas.get_renderer()
    width, height = drawn.bbox.width, drawn.bbox.height

    def leaves(box):
        return min(box.x0, box.y0) < -0.5 or box.x1 > width + 0.5 or box.y1 > height + 0.5

    artists = drawn.get_children()
    for axis in drawn.axes:
        words = [axis.xaxis, axis.yaxis] if axis.axison else []
        artists += words + [child for child in axis.get_children() if isinstance(child, Text | Legend)]
    found = []
    for artist in artists:
        if artist is drawn.patch or not artist.get_visible():
            continue
        box = artist.get_tightbbox(renderer)
        if box is not None and np.isfinite(box.extents).all() and leaves(box):
            found.append(f"{artist}: {np.round(box.extents / drawn.dpi, 2)} of {drawn.get_size_inches()}")
    return found


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that is saved in the test; at the end of it none has anything outside."""
    figures = []
    save = Figure.savefig

    def saved(figure, *arguments, **options):
        save(figure, *arguments, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", saved)
    yield figures
    assert figures
    assert [outside(figure) for figure in figures] == [[] for _ in figures]


def test_text_outside_is_found():
    figure, (axis,) = plotting.figure()
    axis.set(xlabel="x", ylabel="y", title="title")
    axis.plot([1, 2], [3, 4], label="a" * 30)
    axis.plot([1, 2], [3, 5], label="b" * 60)
    assert not outside(figure)
    figure.legend(loc="outside lower center", ncols=2)
    assert any("Legend" in each for each in outside(figure))
    figure.legends[0].remove()
    axis.text(0.9, 0.5, "a long remark at the edge", transform=axis.transAxes).set_in_layout(False)
    assert any("a long remark" in each for each in outside(figure))


@pytest.mark.parametrize(
    ("widths", "columns"), [((10, 10, 10), 3), ((30, 30, 30), 2), ((100, 10), 1), ((300,), 1)]
)
def test_a_legend_takes_as_many_columns_as_fit(widths, columns):
    figure, (axis,) = plotting.figure()
    for place, width in enumerate(widths):
        axis.plot([0, 1], [0, place], label="n" * width)
    plotting.legend(figure, 3)
    assert len(figure.legends) == 1
    assert figure.legends[0]._ncols == columns
    assert not outside(figure)


def test_every_program_that_draws_is_measured():
    drawing = {
        path.stem for path in (ROOT / "accountants").glob("*.py") if "plotting.figure(" in path.read_text()
    }
    assert drawing == {*NAMES, "training_curves"}


@pytest.mark.parametrize("name", NAMES)
def test_programs_keep_text_on_the_canvas(name, drawn, tmp_path, monkeypatch):
    def account(protocol, randomizer, *, delta, **options):
        # Numbers of the sizes that occur; the exact ones are tests of their own, and take longer.
        size = np.log1p(protocol.repeats) / np.sqrt(protocol.num_clients) * -np.log(delta)
        return types.SimpleNamespace(
            epsilon=size, lower=0.9 * size, method="clones, PLD", lower_method="3-ary", validity="certified"
        )

    monkeypatch.setattr(cj, "account", account)
    # As a program finds modules beside it.
    monkeypatch.syspath_prepend(ROOT / "accountants")
    out = tmp_path if name == "pictures" else tmp_path / "figure.png"
    program(f"accountants/{name}.py").main(out, **NAMES[name])
    assert len(drawn) == (5 if name == "pictures" else 1)


def run_of(folder, rounds=20):
    """A run directory as the trainer leaves it."""
    protocol = cj.ShuffledCheckIn(num_clients=1_000, check_in_prob=0.1, num_rounds=rounds)
    private = PrivateRun(protocol=protocol, randomizer=cj.PureLDP(epsilon0=1.0))
    about = {**private.as_dict(), "eval_every": 10, "seed": 7, "dataset": "digits", "jax": "0.0"}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(about))
    with (folder / "metrics.jsonl").open("w") as file:
        for index in range(1, rounds + 1):
            line = {"round": index, "check_ins": 90 + index}
            if index % 10 == 0:
                line |= {"accuracy": index / 40, "epsilon": index / 10, "epsilon_lower": index / 20}
                line |= {"spent": dict.fromkeys(VIEWS, index / 10)}
                line |= {"spent_lower": dict.fromkeys(VIEWS, index / 20)}
                line |= {"update_norm": 0.1 / index, "noise_norm": 0.05 / index}
            file.write(json.dumps(line) + "\n")
    return folder


def test_curves_of_runs_with_long_names_keep_text_on_the_canvas(drawn, tmp_path):
    for index in range(5):
        run_of(tmp_path / "runs" / f"a_run_with_a_name_of_some_length_{index}")
    run_of(tmp_path / "runs" / ("x" * 200))
    program("accountants/training_curves.py").main(tmp_path / "runs", tmp_path / "curves.png")


def test_pages_keep_text_on_the_canvas(drawn, tmp_path):
    run_page.build(recorded.read(run_of(tmp_path / "run")))
    assert len(drawn) == 5


def test_comparisons_keep_text_on_the_canvas(drawn, tmp_path):
    rows = [
        ComparedBound(
            method=f"the method of bound {index}, with a name of some length",
            source="a paper",
            epsilon=10.0**index,
            delta=1e-6,
            direction="lower" if index == 0 else "upper",
            validity=validity,
        )
        for index, validity in enumerate(plotting.COLORS)
    ]
    plotting.write(plotting.comparison(rows), tmp_path / "comparison.svg")


class _Curve:
    def trade_off(self, fprs):
        return np.sqrt(fprs), fprs**0.25


def test_trade_off_curves_keep_text_on_the_canvas(drawn, tmp_path):
    point = OperatingPoint(fpr=0.01, tpr=0.2, fpr_at_most=0.02, tpr_at_least=0.15)
    terms = {f"a view with a name of some length {index}": _Curve() for index in range(3)}
    figure, rows = plotting.trade_off(terms, {name: [point] for name in terms})
    plotting.save(figure, tmp_path / "curve.svg", rows)
    assert {"name", "fpr", "tpr_lower", "tpr_upper"} == set(rows[0])


def test_sweeps_keep_text_on_the_canvas(drawn, tmp_path):
    grid = np.meshgrid([1e3, 1e9], [1e-6, 0.123456789], [0.25, 8.0], [1, 10**9], indexing="ij")
    names = ("num_clients", "check_in_prob", "epsilon0", "num_rounds")
    columns = {name: column.ravel() for name, column in zip(names, grid)}
    columns["epsilon"] = columns["epsilon0"] / np.sqrt(columns["num_clients"])
    columns["lower"] = 0.5 * columns["epsilon"]
    plotting.write(pictures.picture(columns, "bracket"), tmp_path / "sweep.png")


def test_divergences_against_their_order_have_a_band_and_labels_apart(drawn, tmp_path):
    columns = {"num_clients": np.repeat([1e3, 1e5], 12), "order": np.tile(np.geomspace(1.5, 64.0, 12), 2)}
    columns["rdp"] = columns["order"] / columns["num_clients"]
    columns["lower"] = 0.8 * columns["rdp"]
    picture = pictures.picture(columns, "rdp-bracket")
    plotting.write(picture, tmp_path / "sweep.png")
    (axis,) = picture.axes
    assert [len(band.get_paths()) for band in axis.collections] == [1, 1]
    corners = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert corners.min() == pytest.approx(columns["lower"][:12].min())
    assert axis.get_ylabel() == "Renyi divergence (nats)"
    picture.canvas.draw()
    labels = [*axis.get_xticklabels(), *axis.get_xticklabels(minor=True)]
    boxes = sorted(
        (box.x0, box.x1) for box in (each.get_window_extent() for each in labels if each.get_text())
    )
    assert all(before[1] < after[0] for before, after in itertools.pairwise(boxes))


@pytest.mark.parametrize("name", [name for name in (*NAMES, "training_curves") if name != "pictures"])
def test_a_picture_in_no_folder_is_refused_before_any_work(name, tmp_path, monkeypatch):
    def work(*args, **kwargs):
        pytest.fail("work has begun")

    for module in (cj, plotting):
        monkeypatch.setattr(module, "account" if module is cj else "figure", work)
    runs = [run_of(tmp_path / "run").parent] if name == "training_curves" else []
    with pytest.raises(ValueError, match="expected a file in an existing folder"):
        program(f"accountants/{name}.py").main(*runs, tmp_path / "missing" / "figure.png")


def test_pictures_are_dark_where_the_page_or_the_name_is(tmp_path):
    def drawn():
        figure, (axis,) = plotting.figure()
        plotting.bracket(
            axis, [1, 2], [RateRow(0.1, 1, 2), RateRow(0.1, 2, 3)], "", plotting.COLORS["certified"]
        )
        axis.annotate("here", (1, 1), (9, 9), textcoords="offset points", arrowprops={"arrowstyle": "-"})
        return figure

    for name in ("one.svg", "one.png", "one-dark.png"):
        plotting.write(drawn(), tmp_path / name)
    shown = (tmp_path / "one.svg").read_text()
    assert shown.count("@media (prefers-color-scheme: dark)") == 1
    for color in {*re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", shown)}:
        assert color in DARK, "every colour of a picture has a dark one"
    light, dark = (image.imread(tmp_path / name)[0, 0, :3] for name in ("one.png", "one-dark.png"))
    assert light.min() == 1.0
    assert dark.max() < 0.2


def test_names_at_the_ends_of_curves_do_not_touch():
    figure, (axis,) = plotting.figure()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    curves = [
        ([0, 1], [0, height], name, "black")
        for height, name in ((0.5, "one"), (0.51, "two\nlines"), (0.52, "x"))
    ]
    name_ends(axis, curves)
    figure.draw_without_rendering()
    boxes = sorted(text.get_window_extent().extents[[1, 3]].tolist() for text in axis.texts)
    assert all(below[1] <= above[0] + 1 for below, above in itertools.pairwise(boxes))
