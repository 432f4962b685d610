"""Who checks in, round by round: a pure function of the run's entropy, drawn on the host in float64.

Trust model: the entropy, and with it the list of participants, is known to nobody in the protocol; whoever
holds it can undo the amplification. So unless the user asks for a reproducible run it comes from the
operating system and is never written to disk.

Every draw of a run comes from its own stream, `SeedSequence(entropy, spawn_key=(purpose, index))`, so round
t can be drawn without drawing the rounds before it. `jax.random.binomial` is not used: its float32 sampler
has the wrong law for large n.
"""

from __future__ import annotations

import enum
import secrets

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax.protocols import ShuffledCheckIn


class Stream(enum.IntEnum):
    """What a stream of randomness is for; the numbers are part of what `--seed` reproduces."""

    PARTICIPANTS = 0
    NOISE = 1
    INITIAL_PARAMETERS = 2
    CLIENT_RECORDS = 3


def fresh_entropy() -> int:
    """128 secret bits from the operating system."""
    return secrets.randbits(128)


def generator(entropy: int, stream: Stream, index: int = 0) -> np.random.Generator:
    """The NumPy generator of one stream; different (stream, index) are independent."""
    return np.random.Generator(np.random.Philox(_sequence(entropy, stream, index)))


def jax_key(entropy: int, stream: Stream) -> jax.Array:
    """The JAX key of one stream: all 64 bits of it come from the entropy."""
    words = _sequence(entropy, stream, 0).generate_state(2, np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def participants(entropy: int, protocol: ShuffledCheckIn, round_index: int) -> np.ndarray:
    """The clients whose messages arrive in one round of shuffled check-in.

    Formal guarantees: the number of participants is Binomial(num_clients, rate); given the number, the
    set is uniform among sets of that size; clients are distinct; rounds are independent; the result
    depends on the arguments only. Drop-outs are included: rate = check_in_prob (1 - drop_out_prob).

    Args:
      entropy: the run's entropy, sensitive.
      protocol: public description; `num_rounds` is not used.
      round_index: 0, 1, ...

    Returns:
      (k,) int64, sensitive, in no particular order; k may be 0.
    """
    rng = generator(entropy, Stream.PARTICIPANTS, round_index)
    count = int(rng.binomial(protocol.num_clients, protocol.rate))
    return rng.choice(protocol.num_clients, size=count, replace=False, shuffle=False)


def client_records(entropy: int, num_clients: int, num_records: int) -> np.ndarray:
    """Which record each client holds, fixed for the whole run.

    With at least as many records as clients, every client holds a record of its own: the first
    `num_clients` of a random permutation. With fewer, every client draws one with replacement (bootstrap),
    so clients share records: what is then protected is one client's holding, not one record of the data set.

    Returns:
      (num_clients,) int32 in [0, num_records).
    """
    rng = generator(entropy, Stream.CLIENT_RECORDS)
    if num_clients <= num_records:
        return rng.permutation(num_records)[:num_clients].astype(np.int32)
    return rng.integers(num_records, size=num_clients, dtype=np.int32)


def _sequence(entropy: int, stream: Stream, index: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy, spawn_key=(int(stream), index))
