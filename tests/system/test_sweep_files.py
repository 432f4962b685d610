"""Sweeps in files: three formats, resuming after a kill, many devices, two processes, and the command."""

import contextlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax.accounting.composition import renyi
from checkin_jax.sweeps import figures, settings, tables

# Closed forms, which compile in a moment.
AXES = ("--what", "published", "--bound", "theorem-2,theorem-3", "--num-clients", "1e3:1e9:log40")
AXES = (*AXES, "--check-in-prob", ".001,.1", "--epsilon0", ".5,1,80", "--num-rounds", "1:1e4:log5")
COUNT = 2 * 40 * 2 * 3 * 5


@pytest.fixture(autouse=True)
def kept_apart(monkeypatch, tmp_path):
    """Neither this process nor a subprocess touches the user's cache or this process's settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)


def command(*args):
    return [sys.executable, "-c", "from checkin_jax.cli import main; main()", "sweep", *AXES, *args]


def rows(path):
    """All columns but seconds, the error rows' missing numbers as None."""
    columns = cj.finished_rows(path).columns
    return {
        name: [None if value != value else value for value in column.tolist()]
        for name, column in columns.items()
        if name != "seconds"
    }


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The rows of the sweep that everything here repeats in another way."""
    out = tmp_path_factory.mktemp("sweep") / "right.csv"
    args = {
        **dict(zip((name.lstrip("-").replace("-", "_") for name in AXES[::2]), AXES[1::2])),
        "delta": 1e-6,
    }
    # The command has the axes in this order, however they are given.
    axes = {name: args.pop(name) for name in settings.NAMES if name in args}
    written = cj.sweep_to_file(out, **args, **axes)
    assert (written.rows, written.failed) == (COUNT, COUNT // 3)
    assert written.first_error == "epsilon0=80.0: expected a number in [0, 50]"
    assert not (out.parent / "right.csv.blocks").exists()
    return rows(out)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_bring_back_what_was_saved(tmp_path, suffix):
    found = cj.sweep(
        what="published",
        bound="theorem-3",
        num_clients=[10, -1, 10**12],
        check_in_prob=0.1,
        epsilon0=1.0,
        delta=1e-6,
    )
    back = cj.finished_rows(found.save(tmp_path / f"table{suffix}"))
    assert list(back.columns) == list(found.columns)
    for name, column in found.columns.items():
        assert back[name].dtype.kind == column.dtype.kind
        assert np.array_equal(back[name], column, equal_nan=column.dtype.kind == "f")
    assert np.isnan(found["epsilon"]).tolist() == [False, True, False]
    # A file is a table of settings as well.
    inputs = ("num_clients", "check_in_prob", "epsilon0", "bound", "delta")
    cj.Sweep({name: found[name] for name in inputs}).save(tmp_path / f"inputs{suffix}")
    again = cj.sweep(what="published", table=tmp_path / f"inputs{suffix}")
    assert np.array_equal(again["epsilon"], found["epsilon"], equal_nan=True)
    assert again["error"].tolist() == found["error"].tolist()


def test_no_file_says_nan(tmp_path, right):
    assert None in right["epsilon"]
    found = cj.sweep(
        what="published", bound="theorem-3", num_clients=-1, check_in_prob=0.1, epsilon0=1.0, delta=1e-6
    )
    assert "nan" not in found.save(tmp_path / "t.csv").read_text().lower()


@pytest.mark.parametrize("text", ["a,b\n1\n", "a,a\n1,2\n", "", "a,b\n", "num_clients;epsilon0\n1;2\n"])
def test_files_that_are_no_tables_are_refused(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv"):
        cj.sweep(table=tmp_path / "t.csv")


def test_a_sweep_of_another_version_is_not_resumed(tmp_path):
    plan = {"version": "0.0.1", "rows": 5}
    with tables.Store(tmp_path / "s.csv", plan, resume=False):
        pass
    with pytest.raises(ValueError, match=r"cannot resume: version was '0\.0\.1' and is '0\.0\.2'"):
        tables.Store(tmp_path / "s.csv", {**plan, "version": "0.0.2"}, resume=True)
    with tables.Store(tmp_path / "s.csv", plan, resume=True):
        pass


def test_eight_devices_give_the_same_rows(tmp_path, right):
    out = tmp_path / "eight.parquet"
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run(
        command("--out", str(out), "--block-rows", "700"), check=True, env=flags, capture_output=True
    )
    assert rows(out) == right


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(capsys, tmp_path):
    out = tmp_path / "a.csv"
    few = ["--protocol", "shuffle", "--num-clients", "100", "--bounds", "fast", "--out", str(out)]
    cli.main(["sweep", *few, "--epsilon0", "1"])
    before = out.read_bytes()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", *few, "--epsilon0", "2"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"checkin: {out} exists: expected another --out, or --overwrite\n"
    assert out.read_bytes() == before
    cli.main(["sweep", *few, "--epsilon0", "2", "--overwrite"])
    assert out.read_bytes() != before


def test_json_and_plot(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "a.csv", tmp_path / "a.png"
    few = [{".001,.1": ".1,2", "1:1e4:log5": "10", ".5,1,80": "1,80"}.get(word, word) for word in AXES]
    cli.main(["sweep", *few, "--out", str(out), "--plot", str(plot), "--plot-axis", "num-clients", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["errors"], said["out"]) == (320, 240, str(out))
    assert plot.stat().st_size > 10_000


def test_plots_draw_every_line_once_and_brackets_as_bands():
    pytest.importorskip("matplotlib")
    n, e = (part.ravel() for part in np.meshgrid([10.0, 100.0, 1000.0], [1.0, 2.0], indexing="ij"))
    columns = {
        "num_clients": n,
        "epsilon0": e,
        "epsilon": e / n,
        "lower": 0.5 * e / n,
        "error": np.full(6, ""),
    }
    (axis,) = figures.picture(columns, "bracket").axes
    lines = [line for line in axis.lines if len(line.get_xdata()) == 3]
    assert [line.get_label() for line in lines] == ["local privacy ε₀ = 1", "local privacy ε₀ = 2"]
    assert (axis.get_xlabel(), lines[0].get_marker()) == ("clients", ".")
    assert np.allclose(lines[1].get_ydata(), [0.2, 0.02, 0.002])
    assert len(axis.collections) == 2
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    with pytest.raises(ValueError, match=r"more than 8 lines \(30 of b\): give fewer values"):
        figures.axis_and_lines({"a": np.arange(30.0), "b": np.arange(30.0)}, "a")


def test_a_column_called_order_is_kept(tmp_path):
    out = tmp_path / "curve.csv"
    written = cj.sweep_to_file(
        out, what="rdp", protocol=cj.Shuffle, num_clients=10**4, epsilon0=1.0, order=[2.0, 3.0]
    )
    assert (written.rows, written.failed) == (2, 0)
    held = cj.finished_rows(out)
    assert held["order"].tolist() == [2.0, 3.0]
    run, noise = cj.Shuffle(num_clients=10**4), cj.PureLDP(epsilon0=1.0)
    np.testing.assert_allclose(held["rdp"], cj.rdp(run, noise, [2.0, 3.0]), rtol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["curve.csv"]


PUBLISHED = {
    "what": "published",
    "bound": "theorem-3",
    "delta": 1e-6,
    "num_clients": [100, 1000],
    "check_in_prob": 0.1,
}


def test_blocks_without_a_plan_are_nobodys(tmp_path):
    """A kill while the folder of a finished sweep was being removed must not lend its blocks to the next one."""
    out = tmp_path / "rows.csv"
    folder = tmp_path / "rows.csv.blocks"
    folder.mkdir()
    (folder / "00000000.parquet").write_bytes(b"another sweep's")
    for resume in (False, True):
        with pytest.raises(ValueError, match="remove the folder"):
            cj.sweep_to_file(out, resume=resume, epsilon0=1.0, **PUBLISHED)
    (folder / "00000000.parquet").unlink()
    for damaged in ("[1]", "null", "{"):
        (folder / "plan.json").write_text(damaged)
        with pytest.raises(ValueError, match="not the plan of a sweep"):
            cj.sweep_to_file(out, resume=True, epsilon0=1.0, **PUBLISHED)


@pytest.mark.parametrize("resume", [False, True])
def test_of_two_sweeps_into_one_file_the_second_is_refused(tmp_path, resume):
    out = tmp_path / "rows.csv"
    with (
        tables.Store(out, {}, resume=False),
        pytest.raises(BlockingIOError, match=r"rows\.csv'.* in use by another process"),
    ):
        cj.sweep_to_file(out, resume=resume, epsilon0=1.0, **PUBLISHED)


def test_a_stopped_sweep_is_not_begun_again_by_accident(tmp_path):
    (tmp_path / "rows.csv.blocks").mkdir()  # killed before it wrote anything
    with pytest.raises(ValueError, match="was stopped"):
        cj.sweep_to_file(tmp_path / "rows.csv", epsilon0=1.0, **PUBLISHED)
    assert cj.sweep_to_file(tmp_path / "rows.csv", resume=True, epsilon0=1.0, **PUBLISHED).rows == 2


def test_what_kills_left_is_removed(tmp_path):
    out = tmp_path / "rows.csv"
    (tmp_path / ".rows.csv.tmp").write_bytes(b"half a file, longer than the whole one" * 99)
    (tmp_path / ".rows.csv.blocks.gone").mkdir()
    (tmp_path / ".rows.csv.blocks.gone" / "00000000.parquet").touch()
    cj.sweep_to_file(out, epsilon0=1.0, **PUBLISHED)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert len(cj.finished_rows(out)) == 2


@pytest.mark.parametrize("how", ["empty", "half", "text", "one bit"])
def test_a_damaged_block_is_named(tmp_path, monkeypatch, how):
    out = tmp_path / "rows.csv"
    with monkeypatch.context() as patch:
        patch.setattr(tables, "write", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cj.sweep_to_file(out, epsilon0=1.0, block_rows=1, **PUBLISHED)
    block = tmp_path / "rows.csv.blocks" / "00000001.parquet"
    content = block.read_bytes()
    flipped = bytearray(content)
    flipped[content.index(b"theorem-3")] ^= 1
    block.write_bytes(
        {"empty": b"", "half": content[:999], "text": b"no table", "one bit": bytes(flipped)}[how]
    )
    with pytest.raises(ValueError, match=r"00000001\.parquet': a damaged block .* remove it and resume"):
        cj.sweep_to_file(out, resume=True, epsilon0=1.0, block_rows=1, **PUBLISHED)
    block.unlink()
    cj.sweep_to_file(out, resume=True, epsilon0=1.0, block_rows=1, **PUBLISHED)
    assert len(cj.finished_rows(out)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_row_without_a_number_is_an_error_and_the_others_go_on(monkeypatch):
    real = renyi.UnitCurve.curve
    monkeypatch.setattr(
        renyi.UnitCurve,
        "curve",
        lambda one, orders: real(one, orders)._replace(values=real(one, orders).values * [np.nan, 1.0]),
    )
    found = cj.sweep(what="rdp", protocol=cj.Shuffle, num_clients=100, epsilon0=1.0, order=[3.0, 4.0])
    assert found["error"].tolist() == ["rdp: the evaluation gave no number", ""]
    assert np.isnan(found["rdp"][0])
    assert found["rdp"][1] > 0


def test_a_cell_that_is_no_number_is_one_row_with_an_error(tmp_path):
    file = tmp_path / "settings.csv"
    file.write_text(
        "\ufeffnum_clients, check_in_prob, epsilon0, delta, bound\n"
        "100, .1, 1, 1e-6, theorem-3\nbanana, .1, 1, 1e-6, theorem-3\n, .1, 1, 1e-6, theorem-3\n"
        "100, true, 1, 1e-6, theorem-3\n"
    )
    found = cj.sweep(what="published", table=file, block_rows=3)
    assert found.failed.tolist() == [False, True, True, True]
    assert found["error"][1] == "num_clients='banana': expected a number"
    assert found["error"][2].startswith("num_clients=nan: expected a whole number")
    assert found["error"][3] == "check_in_prob='true': expected a number"
    assert np.isnan(found["num_clients"]).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    "more", [{"what": "published", "delta": 1e-6, "bound": "theorem-3"}, {"what": "rdp", "order": 2}]
)
def test_noise_is_not_ignored_where_it_means_nothing(more):
    with pytest.raises(ValueError, match="noise_multiplier"):
        cj.sweep(num_clients=100, check_in_prob=0.1, epsilon0=1.0, noise_multiplier=2.0, **more)


def test_arguments_that_would_be_ignored_are_refused(tmp_path):
    with pytest.raises(ValueError, match="rows"):
        cj.sweep(rows="garbage", table={"num_clients": [100]}, epsilon0=1.0, delta=1e-6, bounds="fast")
    with pytest.raises(TypeError, match="table"):
        cj.sweep(table=3, epsilon0=1.0, delta=1e-6, bounds="fast")


SMALL = {"num_clients": [100, 200], "check_in_prob": 0.1, "num_rounds": 3, "delta": 1e-6, "bounds": "fast"}


def test_a_finished_file_of_another_sweep_is_not_joined(tmp_path):
    out = tmp_path / "a.csv"
    for _ in range(2):
        assert cj.sweep_to_file(out, join=True, epsilon0=[1.0, -1.0], **SMALL).failed == 2
    before = out.read_bytes()
    for other in (
        {"num_clients": [100, 300]},
        {"epsilon0": [1.0, -2.0]},
        {"epsilon0": [1.0, 2.0, 3.0]},
        {"randomizer": cj.L2Mechanism},
        {"bounds": "best"},
    ):
        with pytest.raises(ValueError, match="there is a file of another sweep"):
            cj.sweep_to_file(out, join=True, **{"epsilon0": [1.0, -1.0], **SMALL, **other})
    assert out.read_bytes() == before


def test_rows_name_their_mechanism_which_a_table_may_not_contradict(tmp_path):
    out = tmp_path / "a.parquet"
    cj.sweep_to_file(out, epsilon0=1.0, randomizer=cj.L2Mechanism, **SMALL)
    assert {*tables.load(out)["randomizer"]} == {"L2Mechanism"}
    with pytest.raises(ValueError, match="rows of randomizer L2Mechanism, expected PureLDP"):
        cj.sweep(table=out, bounds="fast")
    again = cj.sweep(table=out, bounds="fast", randomizer=cj.L2Mechanism)
    np.testing.assert_array_equal(again["epsilon"], tables.load(out)["epsilon"])
    with pytest.raises(ValueError, match="randomizer=L2Mechanism: expected none, or PureLDP"):
        cj.sweep(what="published", bound="theorem-1", randomizer=cj.L2Mechanism, epsilon0=1.0, **SMALL)


def test_a_calibration_names_its_variable_which_has_no_other_value():
    asked = {"what": "calibration", "free": "check_in_prob", "epsilon0": 2.0, "target_epsilon": 0.1}
    run = {name: value for name, value in SMALL.items() if name != "check_in_prob"}
    found = cj.sweep(**asked, **run)
    assert "check_in_prob" not in found.columns
    assert {*found["free"]} == {"check_in_prob"}
    stated = cj.ShuffledCheckIn(num_clients=200, num_rounds=3, check_in_prob=found["value"][1])
    again = cj.account(stated, cj.PureLDP(epsilon0=2.0), delta=1e-6, bounds="fast")
    assert again.epsilon == found["epsilon"][1] <= 0.1
    with pytest.raises(ValueError, match="expected no check_in_prob beside it"):
        cj.sweep(**asked, **SMALL)


def test_a_sweep_without_any_result_fails(capsys, tmp_path):
    options = ["--protocol", "shuffle", "--num-clients", "100", "--epsilon0", "1", "--bounds", "fast"]
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", *options, "--delta", "5", "--out", str(tmp_path / "a.csv")])
    assert stop.value.code == 1
    assert "1 with an error instead of a result" in capsys.readouterr().out
    cli.main(["sweep", *options, "--delta", "5,1e-6", "--out", str(tmp_path / "b.csv")])


def test_pictures_of_nothing_are_refused():
    axes = {"num_clients": np.array([10, 100]), "epsilon0": np.array([1.0, np.nan])}
    with pytest.raises(ValueError, match="no number"):
        figures.axis_and_lines(axes, "num_clients")
    empty = {"num_clients": np.array([10, 100]), "epsilon": np.array(["", ""], dtype=object)}
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.picture(empty, "bracket")


@pytest.mark.parametrize("epsilon0", [1e-300, 1e-160, 1e-12])
def test_renyi_divergence_of_hardly_anything_is_above_zero(epsilon0):
    """Kernels underflow there; the bound of a message by itself does not."""
    run = cj.ShuffledCheckIn(num_clients=10**6, check_in_prob=0.5, num_rounds=3)
    found = cj.rdp(run, cj.PureLDP(epsilon0=epsilon0), [2.0, 1.7e308])
    assert np.all(found > 0)
    assert np.all(found <= 3 * epsilon0 * (1 + 1e-9))


def test_finished_rows_are_read_while_a_sweep_runs(tmp_path):
    out = tmp_path / "sweep.csv"
    arguments = {"what": "rdp", "protocol": cj.Shuffle, "num_clients": 1000, "epsilon0": 1.0}
    orders = [2.0, 3.0, 4.0, 5.0, 6.0]
    seen = []

    def look(done, total):
        with contextlib.suppress(ValueError):  # no block is finished yet
            seen.append(len(cj.finished_rows(out)))

    cj.sweep_to_file(out, block_rows=2, progress=look, order=orders, **arguments)
    assert set(seen) <= {2, 4, 5}
    assert max(seen) >= 4
    whole = cj.finished_rows(out)
    np.testing.assert_allclose(whole["rdp"], cj.sweep(order=orders, **arguments)["rdp"], rtol=0)
    with pytest.raises(FileNotFoundError):
        cj.finished_rows(tmp_path / "other.csv")
