"""Certified numbers on devices without IEEE float64: from the CPU, said once; on any other, where JAX puts them."""

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
    """The device in use is another one, which nothing can be put on; nobody has been told yet."""
    devices._say.cache_clear()
    real = devices.in_use
    monkeypatch.setattr(
        devices,
        "in_use",
        lambda: device_of(request.param) if jax.config.jax_default_device is None else real(),
    )
    yield request.param
    devices._say.cache_clear()


@pytest.mark.parametrize("platform", ["tpu", "METAL"], indirect=True)
def test_without_ieee_float64_the_cpu_accounts_and_says_so_once(platform):
    def account():
        return cj.account(RUN, MESSAGE, delta=1e-6, bounds="fast")

    with pytest.warns(RuntimeWarning, match=rf"{platform} has no IEEE float64.*CPU"):
        found = account()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = account()
    assert (found.lower, found.epsilon) == (again.lower, again.epsilon)
    with devices.float64():
        assert jax.config.jax_default_device == CPU
        assert jnp.zeros(3).dtype == jnp.float64
    assert jax.config.jax_default_device is None


@pytest.mark.parametrize("platform", ["cpu", "gpu", "cuda", "rocm"], indirect=True)
def test_with_ieee_float64_it_stays_where_it_is(platform):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with devices.float64():
            assert jax.config.jax_default_device is None
            assert jnp.zeros(3).dtype == jnp.float64


def test_no_cpu_either_is_one_error(monkeypatch):
    def none(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", none)
    devices._say.cache_clear()
    with (
        pytest.warns(RuntimeWarning, match="tpu"),
        pytest.raises(RuntimeError, match=r"JAX_PLATFORMS.*tpu,cpu"),
    ):
        devices.certified(device_of("tpu"))
    devices._say.cache_clear()


def test_sweeps_over_other_devices_use_the_cpu(monkeypatch):
    devices._say.cache_clear()
    monkeypatch.setattr(
        "jax.local_devices", lambda backend=None: [CPU] if backend else [device_of("tpu")] * 8
    )
    with pytest.warns(RuntimeWarning, match="tpu") as told:
        found = cj.sweep(protocol=cj.Shuffle, what="rdp", num_clients=1000, epsilon0=1.0, order=2.0)
    assert found["rdp"][0] == cj.rdp(cj.Shuffle(num_clients=1000), MESSAGE, [2.0])[0]
    assert len(told) == 1
    devices._say.cache_clear()


@pytest.mark.parametrize("platform", ["gpu", "tpu"], indirect=True)
def test_a_trainer_accounts_on_the_cpu(platform):
    where = []
    devices.on_cpu(lambda: where.append(jax.config.jax_default_device))()
    assert where == [CPU]


def test_float64_is_entered_in_one_place_only():
    """`jax.enable_x64` alone would let a certified number come from a device whose float64 is not IEEE's."""
    root = Path(cj.__file__).parent
    entered = re.compile(r"(?<!`)(jax\.enable_x64\(|jax_enable_x64\", True|default_device\()")
    found = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if entered.search(path.read_text("utf-8"))
    }
    assert found == {"kernels/execution/devices.py", "sweeps/curves.py", "sweeps/evaluate.py"}


def test_the_device_in_use_follows_the_default():
    (first,) = jax.device_put(0).devices()
    assert devices.in_use() == first
    with jax.default_device("cpu"):
        assert devices.in_use() == CPU
    with jax.default_device(CPU):
        assert devices.in_use() == CPU
    assert np.asarray(devices.on_cpu(lambda x: x + 1)(1)) == 2
