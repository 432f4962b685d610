"""The one line that a long computation says of itself."""

import time

import pytest

import checkin_jax as cj
from checkin_jax import _progress
from checkin_jax._progress import going_on


def test_a_line_is_said_once_and_only_by_the_outermost(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "PATIENCE", 0.05)
    with going_on("outer"), going_on("inner"):
        time.sleep(0.3)
    assert capsys.readouterr().err == "checkin: outer\n"


@pytest.mark.parametrize("verbose", [True, False])
def test_quick_or_quiet_computations_say_nothing(capsys, monkeypatch, verbose):
    monkeypatch.setattr(_progress, "PATIENCE", 30.0 if verbose else 0.01)
    with going_on("outer", verbose), going_on("inner"):
        time.sleep(0.1)
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_an_error_ends_the_wait(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "PATIENCE", 0.1)
    with pytest.raises(ZeroDivisionError), going_on("outer"):
        raise ZeroDivisionError
    time.sleep(0.3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verbose", [True, False])
def test_calibrate_and_compare_have_their_line(capsys, monkeypatch, verbose):
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    monkeypatch.setattr("checkin_jax.accounting.compare.beside", lambda *args, **how: [])
    run = cj.ShuffledCheckIn(num_clients=500, check_in_prob=0.1)
    cj.compare(run, cj.PureLDP(epsilon0=1.0), delta=1e-5, verbose=verbose)
    assert capsys.readouterr().err.count("checkin: comparing") == verbose
    cj.calibrate(run, cj.PureLDP, target_epsilon=1.0, delta=1e-5, bounds="fast", verbose=verbose)
    assert capsys.readouterr().err.count("checkin: calibrating") == verbose


@pytest.mark.parametrize("verbose", [True, False])
def test_sweeps_have_their_line_where_no_progress_is_shown(capsys, monkeypatch, tmp_path, verbose):
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    rows = {"what": "published", "bound": "theorem-2", "num_clients": 1000, "check_in_prob": 0.1}
    rows |= {"epsilon0": 1.0, "delta": 1e-6}
    cj.sweep(**rows, verbose=verbose)
    assert capsys.readouterr().err.count("checkin: sweeping") == verbose
    cj.sweep_to_file(tmp_path / "rows.csv", **rows, verbose=verbose)
    assert capsys.readouterr().err.count("checkin: sweeping") == verbose
    cj.sweep(**rows, verbose=verbose, progress=lambda done, total: None)
    assert capsys.readouterr().err == ""
