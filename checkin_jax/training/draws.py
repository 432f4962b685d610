"""Participants of every protocol: pure functions of the run's entropy, drawn on the host in float64.

Trust model: no party of the protocol knows the entropy, nor the participants that it determines. Whoever has
it can undo the amplification. So it comes from the operating system unless the user requests a reproducible
run. It is on disk only during a run with checkpoints.

Clients of unequal rates (`Fleet`) are numbered in the order of `Rates`: those of the first value come first. Each has
its own coin, at a cost proportional to participants.

Every draw of a run has its own stream, `SeedSequence(entropy, spawn_key=(purpose, index...))`, so round or
window t can be drawn without those before it. `schedules.Schedule` cuts windows into rounds of training.
The float32 sampler `jax.random.binomial` is not used, since it has the wrong law for large n.
"""

from __future__ import annotations

import enum
import hashlib
import math
import secrets
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax import _validate
from checkin_jax.protocols import AveragedUpdates, FixedWindow, Shuffle, ShuffledCheckIn, SlidingWindow
from checkin_jax.rates import Rates

# Increased whenever the same entropy draws another run: runs begun before cannot be resumed.
DRAWS = 2
ENTROPY_BYTES = 16
KEYS = "threefry2x32"  # JAX's generator of every key, for any default
TABLE = 10**8  # most records of clients in memory
# A function that returns n fresh secret bytes, like os.urandom.
EntropySource = Callable[[int], bytes]

DUMMY = -1  # placeholder for a client: a message of the zero gradient
MIN_BLOCK = 1 << 16  # fewest clients of a sliding window drawn at once, unless the window is longer


class EntropyError(ValueError):
    """A source of entropy that is visibly broken."""


class Stream(enum.IntEnum):
    """Names of the independent streams of randomness; the numbers are part of what `--seed` reproduces."""

    PARTICIPANTS = 0
    NOISE = 1
    INITIAL_PARAMETERS = 2
    CLIENT_RECORDS = 3
    SLIDING_SLOTS = 4


def fresh_entropy() -> int:
    """128 secret bits from the operating system."""
    return secrets.randbits(8 * ENTROPY_BYTES)


def drawn_entropy(source: EntropySource) -> int:
    """128 bits from a source whose quality is assumed; only visible failures are refused.

    Raises:
      TypeError: not a function, or it does not return bytes.
      EntropyError: a wrong number of bytes, all bytes equal, or the same bytes twice in a row.
    """
    name = source_name(source)
    drawn = [source(ENTROPY_BYTES) for _ in range(2)]
    for each in drawn:
        # Errors show none of the bytes, which may be secret.
        if not isinstance(each, bytes):
            raise TypeError(f"entropy={name}: expected bytes, got {type(each).__name__}")
        if len(each) != ENTROPY_BYTES:
            raise EntropyError(f"entropy={name}: expected {ENTROPY_BYTES} bytes, got {len(each)}")
        if len(set(each)) == 1:
            raise EntropyError(f"entropy={name}: expected random bytes, got {ENTROPY_BYTES} equal ones")
    if drawn[0] == drawn[1]:
        raise EntropyError(f"entropy={name}: expected other bytes each time, got the same twice")
    return int.from_bytes(drawn[0], "big")


def source_name(source: EntropySource) -> str:
    """Name of a source of entropy for reports: its `name` if it has one, else its module and qualified name.

    Raises:
      TypeError: it is not callable.
    """
    if not callable(source):
        raise _validate.type_error("a function of a number of bytes", entropy=source)
    of = source if hasattr(source, "__qualname__") else type(source)
    return str(getattr(source, "name", f"{of.__module__}.{of.__qualname__}"))


def generator(entropy: int, stream: Stream, *index: int) -> np.random.Generator:
    """NumPy generator of one stream; different (stream, index...) are independent. No index means 0."""
    return np.random.Generator(np.random.Philox(_sequence(entropy, stream, *(index or (0,)))))


def jax_key(entropy: int, stream: Stream) -> jax.Array:
    """JAX key of one stream; all its 64 bits come from the entropy."""
    words = _sequence(entropy, stream, 0).generate_state(2, np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=KEYS)


_fold_in = jax.jit(jax.random.fold_in)


def round_key(noise_key: jax.Array, round_index: int) -> jax.Array:
    """PRNG key of one round: the run's noise key folded with the round's index. No other round uses it."""
    return _fold_in(noise_key, np.uint32(round_index))


class _Octave(NamedTuple):
    """Groups of clients with rates within a factor of two of the largest, `top`; [groups].

    rates: of each group. first: number of its first client. ends: number of clients of this and earlier
    groups.
    """

    top: float
    rates: np.ndarray
    first: np.ndarray
    ends: np.ndarray


class Fleet:
    """Clients with the rates at which their messages arrive.

    Args:
      rates: in (0, 1], with the number of clients of each.

    Attributes:
      num_clients: number of clients. expected: expected number of messages per round.
    """

    def __init__(self, rates: Rates) -> None:
        values, counts = rates.values, rates.counts.astype(np.int64)
        self._values, self._counts, self._ends = values, counts, np.cumsum(counts)
        self.num_clients, self.expected = rates.num_clients, rates.expected_check_ins
        octave = np.floor(-np.log2(values)).astype(np.int64)
        self._octaves = []
        for which in np.unique(octave):
            mine = np.flatnonzero(octave == which)
            ends, first = np.cumsum(counts[mine]), self._ends[mine] - counts[mine]
            self._octaves.append(_Octave(float(values[mine].max()), values[mine], first, ends))

    def rate_of(self, client: int) -> float:
        return float(self._values[np.searchsorted(self._ends, client, side="right")])

    def all_absent(self, share: float) -> float:
        """Probability that no message arrives, if each is also thinned with probability `share` in (0, 1]."""
        with np.errstate(divide="ignore"):  # clients of rate 1
            return float(np.exp(self._counts @ np.log1p(-share * self._values)))

    def present(self, rng: np.random.Generator) -> np.ndarray:
        """Participants: each client with its own rate, independently, in random order; (k,)
        int64, distinct.

        Among clients within a factor of two, a binomial number is drawn at their largest rate, and each is
        then thinned by the ratio of its own rate to that rate. The cost is proportional to the number of
        participants, not of clients.
        """
        parts = []
        for each in self._octaves:
            size = int(each.ends[-1])
            picked = int(rng.binomial(size, each.top))
            places = rng.choice(size, size=picked, replace=False, shuffle=False)
            group = np.searchsorted(each.ends, places, side="right")
            stays = rng.random(picked) * each.top < each.rates[group]
            places, group = places[stays], group[stays]
            starts = np.concatenate([[0], each.ends[:-1]])
            parts.append(each.first[group] + places - starts[group])
        return rng.permutation(np.concatenate(parts))


def participants(
    entropy: int, protocol: ShuffledCheckIn | Shuffle, round_index: int, fleet: Fleet | None = None
) -> np.ndarray:
    """Clients whose messages arrive in one round of shuffled check-in, or of shuffling.

    Formal guarantees: at one rate the number of participants is Binomial(num_clients, rate), and given the number, the
    set is uniform among sets of that size. At unequal rates every client is present with its own rate, independently of
    the others. Clients are distinct, in uniformly random order, so sending messages in this order shuffles them; rounds
    are independent; the result depends on the arguments only. Drop-outs are included: rate = check_in_prob (1 -
    drop_out_prob). The cost is proportional to the number of participants.

    Args:
      entropy: the run's entropy, sensitive.
      protocol: public description; `num_rounds` is not used.
      round_index: 0, 1, ...
      fleet: the clients, if their rates are unequal.

    Returns:
      (k,) int64, sensitive; k may be 0.
    """
    if fleet is not None:
        return fleet.present(generator(entropy, Stream.PARTICIPANTS, round_index))
    return participants_of(entropy, protocol.num_clients, protocol.rate, round_index)


def participants_of(entropy: int, number: int, rate: float, round_index: int) -> np.ndarray:
    """`participants` among clients 0 .. number - 1, each at the same rate."""
    rng = generator(entropy, Stream.PARTICIPANTS, round_index)
    return rng.choice(number, size=int(rng.binomial(number, rate)), replace=False)


def fixed_window(
    entropy: int, protocol: FixedWindow, window_index: int, fleet: Fleet | None = None
) -> np.ndarray:
    """Client used in each slot of one window of A_fix ([RCI] Algorithm 1), DUMMY in empty slots.

    Formal guarantees: the law is that of every client taking part with probability `check_in_prob` and
    choosing a slot uniformly, and the server using one uniform client of each slot. Windows are independent.
    Unused clients are not drawn: first the number of clients in each slot, then the used ones as a uniform
    ordered sample, since clients are exchangeable. Cost and memory are O(num_slots) for every n. With unequal rates, a
    `fleet`, they are proportional to slots and participants.

    Returns:
      (num_slots,) int64, sensitive; clients are distinct.
    """
    rng = generator(entropy, Stream.PARTICIPANTS, window_index)
    slots = np.full(protocol.num_slots, DUMMY, np.int64)
    if fleet is not None:
        clients = fleet.present(rng)
        # In random order, the last client to claim a slot is a uniform one.
        slots[rng.integers(protocol.num_slots, size=len(clients))] = clients
        return slots
    occupied = _loads(rng, protocol) > 0
    slots[occupied] = rng.choice(protocol.num_clients, size=int(occupied.sum()), replace=False)
    return slots


def averaged_updates(
    entropy: int, protocol: AveragedUpdates, window_index: int, fleet: Fleet | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Participants of one window of A_avg ([RCI] Algorithm 2), slot after slot.

    Formal guarantees: every client takes part with probability `check_in_prob`, or with its own rate in a `fleet`,
    independently, in one uniform slot; windows are independent. Cost and memory are O(num_clients + num_slots).

    Returns:
      clients: (k,) int64, sensitive, distinct; the clients of slot i are clients[ends[i] - load : ends[i]].
      ends: (num_slots,) int64, cumulated loads, which do not depend on data and which the protocol publishes.
    """
    rng = generator(entropy, Stream.PARTICIPANTS, window_index)
    if fleet is not None:
        clients = fleet.present(rng)
        picked = rng.integers(protocol.num_slots, size=len(clients))
        ends = np.cumsum(np.bincount(picked, minlength=protocol.num_slots))
        return clients[np.argsort(picked, kind="stable")], ends
    ends = np.cumsum(_loads(rng, protocol))
    return rng.choice(protocol.num_clients, size=int(ends[-1]), replace=False), ends


def sliding_window(entropy: int, protocol: SlidingWindow, pass_index: int, block: int) -> np.ndarray:
    """Client used in each slot of one block of one pass of A_sldw ([RCI] Algorithm 3), DUMMY in empty slots.

    Client j = 0..n-1 chooses a slot of {j, ..., j + window - 1}; slots window - 1..n - 1 are used (the paper
    counts from 1). Block b holds slots b L..(b+1) L - 1 with L = `sliding_block(protocol)`; the first and the
    last block omit unused slots.

    Formal guarantees: slots are independent between clients and uniform in each client's window. The server
    uses a uniform client of each slot. A client is used at most once. Passes are independent. Blocks can be
    drawn in any order; the cost of one is O(L).

    Returns:
      (slots of the block,) int64, sensitive.
    """
    length, n, window = sliding_block(protocol), protocol.num_clients, protocol.window
    first = max(0, block - 1) * length  # a window is at most as long as a block
    starts = np.arange(first, min(n, (block + 1) * length))
    offsets = [
        generator(entropy, Stream.SLIDING_SLOTS, pass_index, b).integers(window, size=length)
        for b in range(first // length, block + 1)
    ]
    picked = starts + np.concatenate(offsets)[: len(starts)]
    low, high = max(block * length, window - 1), min((block + 1) * length, n)
    # In random order, the last client to claim a slot is a uniform one.
    order = generator(entropy, Stream.PARTICIPANTS, pass_index, block).permutation(len(starts))
    order = order[(picked[order] >= low) & (picked[order] < high)]
    slots = np.full(max(0, high - low), DUMMY, np.int64)
    slots[picked[order] - low] = starts[order]
    return slots


def sliding_block(protocol: SlidingWindow) -> int:
    """Slots per block of `sliding_window`: at least the window."""
    return max(MIN_BLOCK, protocol.window)


def client_records(
    entropy: int, num_clients: int, num_records: int, each: int = 1
) -> np.ndarray | DrawnRecords:
    """Assigns records to clients, fixed for the whole run.

    With enough records for all, clients hold disjoint records: the first `num_clients * each` of a random
    permutation. With fewer, every client draws with replacement (bootstrap), so clients share records. One
    client's holding is then protected, not one record of the data set.

    Returns:
      (num_clients,) int32 in [0, num_records), or (num_clients, each) for `each` above 1. Beyond `TABLE`
      entries the result is not an array, but draws them when indexed.
    """
    shape = (num_clients,) if each == 1 else (num_clients, each)
    if num_clients * each > max(TABLE, num_records):
        return DrawnRecords(entropy, shape, num_records)
    rng = generator(entropy, Stream.CLIENT_RECORDS)
    if num_clients * each <= num_records:
        return rng.permutation(num_records)[: num_clients * each].astype(np.int32).reshape(shape)
    return rng.integers(num_records, size=shape, dtype=np.int32)


class DrawnRecords:
    """Records of more clients than fit into memory: a function of the entropy and the client's number.

    Formal guarantees: uniform in [0, num_records) up to num_records / 2^64 and independent, if SHAKE128 is a
    random function. Repeated look-ups give the same records.

    Attributes:
      shape: (clients,) or (clients, records each).
    """

    def __init__(self, entropy: int, shape: tuple[int, ...], num_records: int) -> None:
        self.shape, self._num_records = shape, num_records
        self._key = _sequence(entropy, Stream.CLIENT_RECORDS, 1).generate_state(4, np.uint64).tobytes()

    def __getitem__(self, clients: np.ndarray) -> np.ndarray:
        """(k,) or (k, each) int32 for (k,) clients."""
        size = 8 * math.prod(self.shape[1:])
        drawn = [hashlib.shake_128(self._key + int(client).to_bytes(8)).digest(size) for client in clients]
        numbers = np.frombuffer(b"".join(drawn), ">u8") % np.uint64(self._num_records)
        return numbers.astype(np.int32).reshape(len(clients), *self.shape[1:])


def _loads(rng: np.random.Generator, protocol: FixedWindow | AveragedUpdates) -> np.ndarray:
    """Number of clients in each slot: the participants are split in halves until every part is one slot."""
    counts = np.array([rng.binomial(protocol.num_clients, protocol.rate)])
    widths = np.array([protocol.num_slots])
    while widths[0] > 1:  # no part is wider than the first one
        right = widths // 2
        pick_right = rng.binomial(counts, right / widths)
        counts = np.stack([counts - pick_right, pick_right], axis=1).ravel()
        widths = np.stack([widths - right, right], axis=1).ravel()
        counts, widths = counts[widths > 0], widths[widths > 0]
    return counts


def _sequence(entropy: int, stream: Stream, *index: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy, spawn_key=(int(stream), *index))
