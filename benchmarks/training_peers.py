"""The sum of clipped gradients by other libraries, those that are installed; used by training.py.

jax-privacy and optax are given the network as a user would write it, with XLA's convolutions and pooling, and
jax-privacy also our form of it; Opacus the same network in torch. Clip norm and records are ours; noise, which costs
them little, is left out except where it cannot be (optax).
"""

# The peers are not among what the project installs.
# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Call = Callable[[], Any]
CLIP_NORM = 0.1


def installed(*packages: str) -> bool:
    """Whether all of them can be imported."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


def jax_calls(
    plain_loss: Callable[..., jax.Array],
    our_loss: Callable[..., jax.Array],
    parameters: Any,
    images: jax.Array,
    labels: jax.Array,
) -> dict[str, Call]:
    """By name: the sum over all the records given. Losses are of one record."""
    calls: dict[str, Call] = {}
    if installed("optax"):
        import optax.contrib

        private = optax.contrib.differentially_private_aggregate(CLIP_NORM, 1e-30, key=jax.random.key(0))

        @jax.jit
        def by_optax(parameters: Any) -> Any:
            rows = jax.vmap(jax.grad(plain_loss), (None, 0, 0))(parameters, images, labels)
            return private.update(rows, private.init(parameters))[0]

        calls["optax.contrib, obvious network"] = functools.partial(by_optax, parameters)
    if installed("jax_privacy"):
        import jax_privacy

        for name, loss, size in (
            ("obvious network", plain_loss, None),
            ("obvious network, microbatches of 40", plain_loss, 40),
            ("our network, microbatches of 40", our_loss, 40),
        ):
            gradient = jax.jit(
                jax_privacy.clipped_grad(
                    loss,
                    l2_clip_norm=CLIP_NORM,
                    batch_argnums=(1, 2),
                    keep_batch_dim=False,
                    microbatch_size=size,
                )
            )
            # Its microbatches must divide the number of records.
            whole = len(images) if size is None else -(-len(images) // size) * size
            padded = [jnp.concatenate([x, x[: whole - len(x)]]) for x in (images, labels)]
            calls[f"jax-privacy, {name}"] = functools.partial(gradient, parameters, *padded)
    return calls


def torch_calls(images: np.ndarray, labels: np.ndarray) -> dict[str, Call]:
    """By name: torch's plain gradient (first), then Opacus with hooks and with ghost clipping; {} without them.

    Args:
      images: (n, 28, 28) float32.
      labels: (n,).
    """
    if not installed("torch", "opacus"):
        return {}
    import torch
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch import nn

    x, y = torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels.astype(np.int64))
    settings = {"noise_multiplier": 0.0, "max_grad_norm": CLIP_NORM, "expected_batch_size": len(x)}

    def network() -> nn.Module:
        pool = functools.partial(nn.MaxPool2d, 2, 1)
        first = nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), pool()
        second = nn.Conv2d(16, 32, 4, 2), nn.Tanh(), pool(), nn.Flatten()
        return nn.Sequential(*first, *second, nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))

    plain = network()

    def by_torch() -> Any:
        plain.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()

    hooked = GradSampleModule(network())
    clipping = DPOptimizer(torch.optim.SGD(hooked.parameters(), 0.0), **settings)

    def by_hooks() -> Any:
        clipping.zero_grad()
        nn.functional.cross_entropy(hooked(x), y).backward()
        clipping.pre_step()

    ghost = GradSampleModuleFastGradientClipping(network(), max_grad_norm=CLIP_NORM)
    summing = DPOptimizerFastGradientClipping(torch.optim.SGD(ghost.parameters(), 0.0), **settings)
    criterion = DPLossFastGradientClipping(ghost, summing, nn.CrossEntropyLoss())

    def by_ghost(size: int) -> Any:
        # The sums of microbatches are not added up, which would cost next to nothing.
        for start in range(0, len(x), size):
            summing.zero_grad()
            criterion(ghost(x[start : start + size]), y[start : start + size]).backward()
            summing.pre_step()

    return {
        "torch, plain gradient": by_torch,
        "Opacus, hooks": by_hooks,
        "Opacus, ghost clipping": functools.partial(by_ghost, len(x)),
        **{f"the same, microbatches of {n}": functools.partial(by_ghost, n) for n in (40, 200)},
    }
