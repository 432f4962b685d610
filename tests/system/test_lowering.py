"""Every kernel lowers for CUDA, and the private step for CUDA and TPU: by `jax.export`, on a machine without either."""

import functools
import importlib
import pkgutil
import re
import sys
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest
from digits_problem import digits_problem

import checkin_jax as cj
from checkin_jax import _compiled, kernels
from checkin_jax.kernels import clones, host
from checkin_jax.kernels.execution import devices
from checkin_jax.training.private import step
from checkin_jax.training.private.mechanism import mechanism_of
from checkin_jax.training.private.step import ACCELERATOR_MICROBATCH, Performance

RUN = cj.ShuffledCheckIn(num_clients=1000, check_in_prob=0.2, num_rounds=20)
ONCE = cj.ShuffledCheckIn(num_clients=1000, check_in_prob=0.2, num_rounds=1)
RATES = cj.Rates([0.1, 0.3], counts=[500, 500])
FLEET = cj.ShuffledCheckIn(num_clients=1000, check_in_prob=RATES, num_rounds=3)
# Together they use every kernel but those that `others` calls.
QUESTIONS = (
    (RUN, cj.PureLDP(epsilon0=1.0), {}),
    (ONCE, cj.PureLDP(epsilon0=1.0), {}),
    (RUN, cj.Gaussian(noise_multiplier=4.0321), {}),  # of nobody else's noise: laws are kept
    (RUN, cj.Gaussian(noise_multiplier=4.0), {"view": "aggregate"}),
    (RUN, cj.Gaussian(noise_multiplier=4.0), {"view": "local"}),
    (RUN, cj.KaryResponse(epsilon0=1.0, num_values=8), {}),
    (RUN, cj.L2Mechanism(epsilon0=1.0), {}),
    (FLEET, cj.PureLDP(epsilon0=1.0), {}),
    (FLEET, cj.L2Mechanism(epsilon0=1.0), {}),
    (FLEET, cj.KaryResponse(epsilon0=1.0, num_values=2), {}),
    (
        cj.ShuffledCheckIn(num_clients=20, check_in_prob=0.5, num_rounds=3),
        cj.PureLDP(epsilon0=1.0),
        {"bounds": "fast"},
    ),
    (cj.FixedWindow(num_clients=1000, num_slots=100), cj.PureLDP(epsilon0=1.0), {}),
    (cj.SlidingWindow(num_clients=400, window=200), cj.PureLDP(epsilon0=1.0), {}),
)


def kernel_functions() -> dict[str, Any]:
    """The compiled functions of `checkin_jax.kernels`, by where they are."""
    found = {}
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            jitted = hasattr(value, "lower") and hasattr(value, "eval_shape")
            if jitted and value.__module__ == module.name:
                found[f"{module.name}.{name}"] = value
    return found


def shapes(value: Any) -> Any:
    """Arrays as their shapes; what is static as it is."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "dtype") else x, value)


def others() -> None:
    """Uses the kernels that no bracket needs, or none of `QUESTIONS`."""
    cj.Gaussian.from_local(epsilon0=1.0, delta0=1e-5)
    table = {"num_clients": [1000], "check_in_prob": [0.2], "num_rounds": [10], "epsilon0": [0.5]}
    cj.sweep(what="published", bound=["theorem-2", "theorem-3"], delta=1e-6, **table)
    cj.published.theorem_1(1000, 0.2, 0.5, [2])
    cj.published.subsampling_only(1000, 0.2, 0.5, [2])
    cj.published.lemma_4(10, 1000, 0.5, [2])
    with devices.float64():
        clones.pool_law(*map(host, ([10.0, 12.0], [0.5, 0.5], 0.1, 0.2, 1.0)))


@pytest.fixture(scope="module")
def calls():
    """Of every kernel its last call, while questions are answered that use all of them."""
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_compiled.VARIABLE, "off")  # else tables that are kept would not be made
        for name, function in kernel_functions().items():

            @functools.wraps(function)
            def record(*args: Any, _name=name, _function=function, **kwargs: Any) -> Any:
                seen[_name] = _function, shapes(args), shapes(kwargs)
                return _function(*args, **kwargs)

            for module in [m for key, m in sys.modules.items() if key.startswith("checkin_jax")]:
                for attribute, value in list(vars(module).items()):
                    if value is function:
                        patch.setattr(module, attribute, record)
        jax.clear_caches()  # else what is traced already would not ask again
        for protocol, randomizer, options in QUESTIONS:
            cj.account(protocol, randomizer, delta=1e-6, **options)
        others()
    return seen


def lowered(platform: str, function: Any, args: Any, kwargs: Any) -> str:
    return jax.export.export(function, platforms=[platform])(*args, **kwargs).mlir_module()


@pytest.mark.usefixtures("x64")
def test_every_kernel_lowers_for_cuda_in_float64(calls):
    seen = calls
    assert set(seen) == set(kernel_functions())
    for name, call in seen.items():
        text = lowered("cuda", *call)
        assert not re.search(r"\b(f32|bf16|f16)>", text), name


@pytest.mark.usefixtures("x64")
def test_functional_kernels_and_their_derivatives_lower_for_cuda():
    def divergence(num_clients: Any, rate: Any, epsilon0: Any) -> Any:
        return cj.numerics.theorem_1_rdp(num_clients, rate, epsilon0, [8], size=256)[0]

    mapped = jax.jit(jax.vmap(jax.value_and_grad(divergence, argnums=(0, 1, 2))))
    text = lowered("cuda", mapped, [jax.ShapeDtypeStruct((4,), jnp.float64)] * 3, {})
    assert not re.search(r"\b(f32|bf16|f16)>", text)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("simulate", ["aggregate", "messages"])
@pytest.mark.parametrize(
    "randomizer", [cj.Gaussian(noise_multiplier=2.0), cj.PureLDP(epsilon0=2.0)], ids=["Gaussian", "l2"]
)
def test_the_private_step_lowers(platform, simulate, randomizer):
    parameters, loss, data = digits_problem()
    mechanism = mechanism_of(randomizer, clip_norm=0.1, simulate=simulate)
    buffer = jax.ShapeDtypeStruct((ACCELERATOR_MICROBATCH, 1), jnp.int32)
    place = jax.ShapeDtypeStruct((2,), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    fixed = mechanism, Performance(microbatch=ACCELERATOR_MICROBATCH), loss
    given = step._Pass(*shapes((parameters, data)), buffer, place, key, key)
    assert lowered(platform, step._sum_messages, (*fixed, given), {})
    total, count = jax.ShapeDtypeStruct((1722,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    assert lowered(platform, step._add_noise, (mechanism, total, count, key), {})
