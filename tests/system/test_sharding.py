"""Rounds over several devices and processes: the same messages, the same sum up to the order of addition."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from rounds_over_devices import RECORDS, sums

from checkin_jax.training.private import step

PROGRAM = Path(__file__).parents[1] / "rounds_over_devices.py"


@functools.cache
def _on_one_device() -> dict[str, np.ndarray]:
    return sums(None)


def _start(devices: int, *arguments: object) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    cache = str(jax.config.jax_compilation_cache_dir)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "JAX_COMPILATION_CACHE_DIR": cache,
    }
    quiet = ["-W", "error", "-W", "ignore:Error reading persistent compilation cache entry"]
    command = [sys.executable, *quiet, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _check(path: Path, devices: int) -> None:
    with np.load(path) as found:
        assert found["devices"] == devices
        for name, expected in _on_one_device().items():
            # Other noise would differ by about the norm of the sum itself, which is mostly noise.
            assert np.linalg.norm(found[name] - expected) <= 1e-5 * np.linalg.norm(expected), name


def test_eight_devices_add_up_to_one(tmp_path):
    process = _start(8, tmp_path / "sums.npz")
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors
    _check(tmp_path / "sums.npz", 8)


@pytest.mark.slow
def test_two_processes_add_up_to_one(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    paths = [tmp_path / f"{i}.npz" for i in (0, 1)]
    processes = [_start(2, path, port, 2, i) for i, path in enumerate(paths)]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    for path in paths:
        _check(path, 4)


def test_the_round_exercises_dummies_several_passes_and_uneven_shares():
    assert (RECORDS == -1).sum() == 3
    assert 400 < len(RECORDS) < 800
    assert len(RECORDS) % 400 > 2 * 40


@pytest.mark.parametrize(
    ("axis", "kind"), [("rows", AxisType.Auto), (step.AXIS, AxisType.Explicit)], ids=["name", "kind"]
)
def test_other_meshes_are_refused(axis, kind):
    with pytest.raises(ValueError, match="axis 'clients' of type Auto"):
        sums(jax.make_mesh((1,), (axis,), axis_types=(kind,)))
