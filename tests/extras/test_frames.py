"""Sweeps as data frames, and data frames as tables of settings."""

import numpy as np
import pandas  # pyright: ignore[reportMissingImports]
import polars  # pyright: ignore[reportMissingImports]
import pytest

import checkin_jax as cj

SETTINGS = {
    "num_clients": [1000, 3000, 1000],
    "epsilon0": [1.0, 2.0, 9e9],
    "view": ["messages", "local", "messages"],
}


@pytest.mark.parametrize(
    "read",
    [
        pandas.DataFrame.from_arrow,
        polars.DataFrame,
    ],
)
def test_a_sweep_is_a_frame(read):
    found = cj.sweep(table=SETTINGS, protocol=cj.Shuffle, delta=1e-6, bounds="fast")
    frame = read(found)
    assert list(frame.columns) == list(found.columns)
    assert frame["num_clients"].to_list() == SETTINGS["num_clients"]
    np.testing.assert_array_equal(frame["epsilon"].to_numpy()[:2], found["epsilon"][:2])
    assert frame["epsilon"].to_numpy()[2:].tolist() != [0.0]
    assert frame["error"].to_list() == found["error"].tolist()


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame])
def test_a_frame_is_a_table_of_settings(frame):
    more = {"protocol": cj.Shuffle, "delta": 1e-6, "bounds": "fast"}
    found = cj.sweep(table=frame(SETTINGS), **more)
    again = cj.sweep(table=SETTINGS, **more)
    for name in ("num_clients", "view", "epsilon", "error"):
        np.testing.assert_array_equal(found[name], again[name])
