"""The one line that a long computation says of itself."""

import functools
import importlib
import time

import pytest

import checkin_jax as cj
from checkin_jax._progress import going_on

calibration, compare = (
    importlib.import_module(f"checkin_jax.accounting.{each}") for each in ("calibration", "compare")
)


def test_a_line_is_said_once_and_only_by_the_outermost(capsys):
    with going_on("outer", patience=0.05), going_on("inner", patience=0.05):
        time.sleep(0.3)
    assert capsys.readouterr().err == "checkin: outer\n"


@pytest.mark.parametrize("verbose", [True, False])
def test_quick_or_quiet_computations_say_nothing(capsys, verbose):
    with going_on("outer", verbose, patience=30.0 if verbose else 0.01), going_on("inner", patience=0.01):
        time.sleep(0.1)
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_an_error_ends_the_wait(capsys):
    with pytest.raises(ZeroDivisionError), going_on("outer", patience=0.1):
        raise ZeroDivisionError
    time.sleep(0.3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verbose", [True, False])
def test_calibrate_and_compare_have_their_line(capsys, monkeypatch, verbose):
    for module in (calibration, compare):
        monkeypatch.setattr(module, "going_on", functools.partial(going_on, patience=0.0))
    run = cj.ShuffledCheckIn(num_clients=500, check_in_prob=0.1)
    cj.compare(run, cj.PureLDP(epsilon0=1.0), delta=1e-5, verbose=verbose)
    assert capsys.readouterr().err.count("checkin: comparing") == verbose
    cj.calibrate(run, cj.PureLDP, target_epsilon=1.0, delta=1e-5, bounds="fast", verbose=verbose)
    assert capsys.readouterr().err.count("checkin: calibrating") == verbose
