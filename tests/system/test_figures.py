"""No figure has text outside of its canvas, where it would be cut off: `checkin figure`, pages and sweeps."""

import csv
import itertools
import json
import re
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

import checkin_jax as cj
from benchmarks import pictures as benchmark_pictures
from checkin_jax import cli, plotting
from checkin_jax.accounting import published
from checkin_jax.plotting import COLORS, DARK, name_ends
from checkin_jax.protocols import VIEWS
from checkin_jax.sweeps import figures
from checkin_jax.sweeps.figures import FIGURES, write
from checkin_jax.training.reports import recorded, run_page
from checkin_jax.training.run import PrivateRun

ALL = FIGURES | benchmark_pictures.PICTURES
# The size of pictures of pages; without one a figure has that of a column.
PAGE = {"width": 6.0, "text": 10.0}


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


def stand_in(**asked):
    """Rows of the sizes that occur, in place of a sweep's; the exact ones are tests of their own, and take longer."""
    names = ("num_clients", "check_in_prob", "num_rounds", "epsilon0", "delta", "num_colluding")
    axes = {name: np.atleast_1d(asked[name]).astype(float) for name in names if name in asked}
    columns = {name: grid.ravel() for name, grid in zip(axes, np.meshgrid(*axes.values(), indexing="ij"))}
    size = np.log1p(columns.get("num_rounds", 10.0)) / np.sqrt(columns["num_clients"])
    columns["epsilon"] = size * -np.log(columns.get("delta", 1e-6))
    return columns | {"lower": 0.9 * columns["epsilon"], "rdp": columns["epsilon"]}


COMPUTED = {}


def once(bound):
    """The published bound, computed once for equal arguments."""

    def found(*values, **named):
        key = bound.__name__, repr(values), repr(named)
        if key not in COMPUTED:
            COMPUTED[key] = bound(*values, **named)
        return COMPUTED[key]

    return found


@pytest.fixture
def quick(monkeypatch):
    """Figures without accounting, whose slowest published bounds are computed once."""
    for module in (benchmark_pictures, figures):
        monkeypatch.setattr(module, "sweep", stand_in)
    for name in ("approach_1", "approach_2", "theorem_1"):
        monkeypatch.setattr(published, name, once(getattr(published, name)))


def rows_of_runs(settings=2, runs=2):
    """Evaluations as `recorded.evaluations` gives them."""
    return [
        {
            "setting": f"setting {setting}",
            "run": f"run_{setting}_{run}",
            "round": 10 * t,
            "accuracy": 0.1 * t + 0.01 * run,
            "view": "messages",
            "lower": 0.05 * t,
            "epsilon": 0.1 * t,
            "delta": 1e-6,
        }
        for setting in range(settings)
        for run in range(runs)
        for t in (1, 2, 3)
    ]


def given(name):
    """Tiny settings of a figure."""
    chosen = ALL[name]
    return {"source": rows_of_runs()} if chosen.source else {"points": 2} if chosen.points else {}


@pytest.mark.parametrize("name", ALL)
def test_named_figures_keep_text_on_the_canvas_and_every_curve_has_a_look_of_its_own(
    name, drawn, quick, tmp_path
):
    data = None if name == "views" else tmp_path / "data.csv"
    write(ALL[name], tmp_path / "column.svg", data, **given(name))
    write(ALL[name], tmp_path / "page.pdf", **PAGE, **given(name))
    assert write(ALL[name], tmp_path / "again.svg", **given(name)) is None
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "column.svg").read_bytes()
    for figure, width, text in ((drawn[0], 3.3, 7.0), (drawn[1], PAGE["width"], PAGE["text"])):
        assert figure.get_size_inches()[0] == pytest.approx(width)
        sizes = {each.get_fontsize() for each in figure.findobj(Text) if each.get_text()}
        assert sizes <= {text, min(text, 8.0), min(text, 8.5)}
    for file in ("column.svg", "page.pdf"):
        assert (tmp_path / file).stat().st_size < 100_000
    texts = [text.get_text() for text in drawn[0].findobj(Text)]
    assert [text for text in texts if re.search(r"[a-z]_[a-z]|[a-z][A-Z]|\.(csv|py|svg)", text)] == []
    (axis,) = drawn[0].axes
    if name != "views":
        looks = [(line.get_color(), line.get_linestyle()) for line in axis.lines if len(line.get_xdata()) > 1]
        assert len({*looks}) == len(looks)
        lines = data.read_text().splitlines()
        assert len(lines) > 1
        assert len([*csv.reader(lines)]) == len(lines), "a row has two lines"


def test_the_line_of_one_message_is_in_the_random_check_ins_figure(drawn, quick, tmp_path):
    write(FIGURES["random-check-ins-figure-2"], tmp_path / "figure.svg", points=3)
    lines = [line for line in drawn[0].axes[0].lines if len(line.get_xdata()) == 3]
    assert [line for line in lines if list(line.get_xdata()) == list(line.get_ydata())]


def test_figures_are_listed(capsys):
    cli.main(["figure"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["figure", *FIGURES]


def test_without_matplotlib_the_extra_is_named_in_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.figure")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["figure", "random-check-ins-clients", "--out", str(tmp_path / "a.pdf")])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.count("\n") == 1
    assert "figures need matplotlib: run pip install '.[plots]'" in said


def test_more_settings_than_looks_and_mixed_views_are_refused(tmp_path):
    many = rows_of_runs(settings=25, runs=1)
    with pytest.raises(ValueError, match="25 settings: expected at most 24"):
        write(FIGURES["shuffled-check-in-figure-4"], tmp_path / "a.svg", source=many)
    mixed = [*rows_of_runs(), {**rows_of_runs()[0], "view": "aggregate"}]
    with pytest.raises(ValueError, match="expected one of each"):
        write(FIGURES["shuffled-check-in-figure-3"], tmp_path / "a.svg", source=mixed)


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
            file.write(json.dumps(line) + "\n")
    return folder


def test_curves_of_runs_with_long_names_keep_text_on_the_canvas(drawn, tmp_path):
    for index in range(5):
        run_of(tmp_path / "runs" / f"a_run_with_a_name_of_some_length_{index}")
    run_of(tmp_path / "runs" / ("x" * 200))
    for name in ("shuffled-check-in-figure-3", "shuffled-check-in-figure-4"):
        write(ALL[name], tmp_path / "curves.png", source=recorded.evaluations(tmp_path / "runs"))


def test_pages_keep_text_on_the_canvas(drawn, tmp_path):
    run_page.build(recorded.read(run_of(tmp_path / "run")))
    assert len(drawn) == 4


def test_sweeps_keep_text_on_the_canvas(drawn, tmp_path):
    grid = np.meshgrid([1e3, 1e9], [1e-6, 0.123456789], [0.25, 8.0], [1, 10**9], indexing="ij")
    names = ("num_clients", "check_in_prob", "epsilon0", "num_rounds")
    columns = {name: column.ravel() for name, column in zip(names, grid)}
    columns["epsilon"] = columns["epsilon0"] / np.sqrt(columns["num_clients"])
    columns["lower"] = 0.5 * columns["epsilon"]
    plotting.write(figures.picture(columns, "bracket"), tmp_path / "sweep.png")


def test_divergences_against_their_order_have_a_band_and_labels_apart(drawn, tmp_path):
    columns = {"num_clients": np.repeat([1e3, 1e5], 12), "order": np.tile(np.geomspace(1.5, 64.0, 12), 2)}
    columns["rdp"] = columns["order"] / columns["num_clients"]
    columns["lower"] = 0.8 * columns["rdp"]
    picture = figures.picture(columns, "rdp-bracket")
    plotting.write(picture, tmp_path / "sweep.png")
    (axis,) = picture.axes
    assert [len(band.get_paths()) for band in axis.collections] == [1, 1]
    corners = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert corners.min() == pytest.approx(columns["lower"][:12].min())
    assert axis.get_ylabel() == "Rényi divergence (nats)"
    assert all(line.get_marker() == "None" for line in axis.lines), (
        "the points of a dense line are not marked"
    )
    picture.canvas.draw()
    labels = [*axis.get_xticklabels(), *axis.get_xticklabels(minor=True)]
    boxes = sorted(
        (box.x0, box.x1) for box in (each.get_window_extent() for each in labels if each.get_text())
    )
    assert all(before[1] < after[0] for before, after in itertools.pairwise(boxes))


def test_pictures_are_dark_where_the_page_is(tmp_path):
    def drawn():
        figure, (axis,) = plotting.figure()
        axis.fill_between([1, 2], [1, 2], [2, 3], color=COLORS["certified"], alpha=0.25, linewidth=0)
        axis.plot([1, 2], [2, 3], color=COLORS["certified"])
        axis.annotate("here", (1, 1), (9, 9), textcoords="offset points", arrowprops={"arrowstyle": "-"})
        return figure

    plotting.write(drawn(), tmp_path / "one.svg")
    shown = (tmp_path / "one.svg").read_text()
    assert shown.count("@media (prefers-color-scheme: dark)") == 1
    for color in {*re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", shown)}:
        assert color in DARK, "every colour of a picture has a dark one"


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
