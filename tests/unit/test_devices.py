"""Certified numbers are the CPU's, whatever device JAX prefers; sweeps may name another one with IEEE float64."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import checkin_jax as cj
from checkin_jax.kernels.execution import devices

RUN, MESSAGE = cj.ShuffledCheckIn(num_clients=1000, check_in_prob=0.1, num_rounds=1), cj.PureLDP(epsilon0=1.0)


class _Device(NamedTuple):
    platform: str


def device_of(platform: str) -> Any:
    return _Device(platform)


CPU = jax.local_devices(backend="cpu")[0]


@pytest.fixture
def platform(request, monkeypatch):
    """JAX prefers another device, which nothing can be put on."""
    real = devices.in_use
    monkeypatch.setattr(
        devices,
        "in_use",
        lambda: device_of(request.param) if jax.config.jax_default_device is None else real(),
    )
    return request.param


@pytest.mark.parametrize("platform", ["tpu", "METAL", "gpu", "cuda"], indirect=True)
def test_the_cpu_accounts_beside_any_other_device(platform):
    with devices.float64():
        assert jax.config.jax_default_device == CPU
        assert jnp.zeros(3).dtype == jnp.float64
        with devices.float64():
            assert jax.config.jax_default_device == CPU
    assert jax.config.jax_default_device is None
    assert cj.account(RUN, MESSAGE, delta=1e-6, bounds="fast").epsilon > 0


def test_the_cpu_is_not_set_where_it_is_preferred_anyway():
    """JAX would compile anew."""
    with devices.float64():
        assert jax.config.jax_default_device is None


def test_a_sweep_names_its_device_for_all_within():
    (other,) = jax.local_devices(backend="cpu")[-1:]
    with devices.float64(other):
        assert devices._chosen.get() == other
        with devices.float64():
            assert devices.in_use() == other
    assert devices._chosen.get() is None


def test_no_cpu_either_is_one_error(monkeypatch):
    def only(platform):
        def local_devices(backend=None):
            if backend is None:
                return [device_of(platform)]
            raise RuntimeError(f"Unknown backend {backend}")

        return local_devices

    monkeypatch.setattr(jax, "local_devices", only("tpu"))
    with pytest.raises(RuntimeError, match=r"JAX_PLATFORMS.*tpu,cpu"):
        devices.host_cpu()
    monkeypatch.setattr(jax, "local_devices", only("cuda"))
    assert devices.host_cpu() == device_of("cuda")


def test_sweeps_over_other_devices_use_the_cpu(monkeypatch):
    monkeypatch.setattr(
        "jax.local_devices", lambda backend=None: [CPU] if backend else [device_of("tpu")] * 8
    )
    found = cj.sweep(protocol=cj.Shuffle, what="rdp", num_clients=1000, epsilon0=1.0, order=2.0)
    assert found["rdp"][0] == cj.rdp(cj.Shuffle(num_clients=1000), MESSAGE, [2.0])[0]


def test_float64_is_entered_in_one_place_only():
    """`jax.enable_x64` alone would let a certified number come from a device whose float64 is not IEEE's."""
    root = Path(cj.__file__).parent
    entered = re.compile(r"(?<!`)(jax\.enable_x64\(|jax_enable_x64\", True|default_device\()")
    found = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if entered.search(path.read_text("utf-8"))
    }
    assert found == {"kernels/execution/devices.py"}


def test_the_device_in_use_follows_the_default():
    (first,) = jax.device_put(0).devices()
    assert devices.in_use() == first
    with jax.default_device("cpu"):
        assert devices.in_use() == CPU
    with jax.default_device(CPU):
        assert devices.in_use() == CPU
