"""Rounds of the digits network over every device there is, their sums saved; run by test_sharding.py.

python rounds_over_devices.py SUMS.npz [PORT NUM_PROCESSES PROCESS]
"""

import sys
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from checkin_jax.randomizers import Gaussian, PureLDP
from checkin_jax.training.examples import data, networks
from checkin_jax.training.private import step
from checkin_jax.training.private.mechanism import mechanism_of
from checkin_jax.training.private.step import AXIS, Performance

RECORDS = np.insert(np.random.default_rng(0).integers(1437, size=530), [0, 77, 400], -1).astype(np.int32)
MECHANISMS = {
    "Gaussian, messages": (Gaussian(noise_multiplier=2.0), "messages"),
    "l2, aggregate": (PureLDP(epsilon0=2.0), "aggregate"),
}


def sums(mesh: jax.sharding.Mesh | None, names: Iterable[str] = tuple(MECHANISMS)) -> dict[str, np.ndarray]:
    """The round's sum under each mechanism; the index buffer overflows, and no device's work is the same."""
    digits = data.digits()
    parameters, apply = networks.functional(networks.build(8, jax.random.key(0)))

    def loss(parameters, record):
        image, label = record
        logits = apply(parameters, image.astype(jnp.float32)[..., None] * (1 / 16))
        return networks.cross_entropy(logits, label.astype(jnp.int32))

    arguments = parameters, (digits.train_images, digits.train_labels)
    if mesh is not None:
        arguments = jax.device_put(arguments, NamedSharding(mesh, PartitionSpec()))
    out = {}
    for name in names:
        randomizer, simulate = MECHANISMS[name]
        mechanism = mechanism_of(randomizer, clip_norm=0.1, simulate=simulate)
        key = jax.random.key(7)
        performance = Performance(mesh=mesh)
        total = step.round_sum(
            mechanism, loss, *arguments, RECORDS, key, capacity=400, performance=performance
        )
        out[name] = np.asarray(total)
    return out


if __name__ == "__main__":
    path, *network = sys.argv[1:]
    if network:
        port, processes, process = map(int, network)
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    everything = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))
    np.savez(path, devices=jax.device_count(), **sums(everything))  # ty: ignore
