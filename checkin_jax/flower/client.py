"""A client mod for flwr that checks in at random, clips, and adds noise; only a message or an empty reply leaves.

Trust model: the client trusts nobody with its update. The operator of the SuperLink sees which node answered, so
against the operator only the view "local" holds. The views "messages" and "aggregate" are those of an adversary who
gets messages from a shuffler, or sums by secure aggregation, without names.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax import _validate
from checkin_jax.protocols import MAX_ROUNDS
from checkin_jax.randomizers import Randomizer
from checkin_jax.training.private.mechanism import Mechanism, clip, mechanism_of
from checkin_jax.training.private.per_client_gradients import ClientVectors

_LOG = logging.getLogger(__name__)
# Key and field of the number of requested rounds in flwr's Context.state.
STATE, ASKED = "checkin-jax", "rounds"
# The only metric in replies; the same for all clients.
WEIGHT = "num-examples"


class ClientMod:
    """A flwr mod: with probability `check_in_prob` it sends the randomized update, else an empty reply.

    The update is the inner app's arrays minus the server's arrays, clipped to norm `clip_norm` and randomized, as
    float32. Noise is in units of the clip norm, so there is no separate sensitivity. Metrics of the inner app,
    including the number of examples, are not sent. If the inner app fails, a randomized update of zeros is sent. Other
    messages than training get an empty reply. The check-in is decided first, so a client that does not check in does
    not train.

    Check-ins and noise are drawn from the operating system's entropy, the noise through JAX's threefry. The response
    time of a client is not hidden.

    Args:
      randomizer: `Gaussian`, `L2Mechanism` or `PureLDP`, or one for which a `Mechanism` is registered.
      clip_norm: C in [1e-6, 1e6].
      check_in_prob: of each round, in (0, 1].
      num_rounds: number of rounds with a random check-in; later requests get an empty reply. Counted in flwr's
        `Context.state`.

    Raises:
      TypeError, ValueError: an argument outside its range.
    """

    def __init__(
        self, randomizer: Randomizer, *, clip_norm: float, check_in_prob: float, num_rounds: int
    ) -> None:
        self.mechanism = mechanism_of(randomizer, clip_norm=clip_norm)
        self.check_in_prob = _validate.real(0, 1, "(]", check_in_prob=check_in_prob)
        self.num_rounds = _validate.integer(1, MAX_ROUNDS, num_rounds=num_rounds)

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """flwr's interface of mods; see the class."""
        from flwr.app import (  # pyright: ignore[reportMissingImports]
            Array,
            ArrayRecord,
            ConfigRecord,
            Message,
            MessageType,
            MetricRecord,
            RecordDict,
        )

        nothing = RecordDict()
        if message.metadata.message_type != MessageType.TRAIN or not self._asked(context, ConfigRecord):
            return Message(nothing, reply_to=message)
        if not checks_in(self.check_in_prob):
            return Message(nothing, reply_to=message)
        before = _only(message.content.array_records)
        old = before.to_numpy_ndarrays()
        update = self._trained(message, context, call_next, list(before.keys()), old)
        noisy = privatised(self.mechanism, update)
        arrays = ArrayRecord({key: Array(each) for key, each in zip(before.keys(), noisy, strict=True)})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({WEIGHT: 1})})
        return Message(content, reply_to=message)

    def _trained(
        self,
        message: Any,
        context: Any,
        call_next: Callable[[Any, Any], Any],
        keys: list[str],
        old: list[np.ndarray],
    ) -> list[np.ndarray]:
        """The inner app's update; zeros if the app fails, since a failure may depend on the data."""
        try:
            reply = call_next(message, context)
            if reply.has_error():
                raise ValueError(reply.error.reason)
            return _difference(_only(reply.content.array_records), keys, old)
        except Exception:
            _LOG.exception("training failed on this device: a message of zeros is sent")
            return [np.zeros_like(each) for each in old]

    def _asked(self, context: Any, config_record: Any) -> bool:
        """Counts one more round; False if all rounds are over."""
        asked = int(context.state[STATE][ASKED]) if STATE in context.state else 0
        context.state[STATE] = config_record({ASKED: min(asked + 1, self.num_rounds)})
        return asked < self.num_rounds


def checks_in(prob: float) -> bool:
    """Random decision from the operating system's entropy; its probability is at most `prob`, within 2^-64."""
    return secrets.randbits(64) < int(prob * 2.0**64)


def privatised(mechanism: Mechanism, update: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One client's message: its update clipped as one vector and randomized, in the shapes of the update, float32.

    An update with non-finite values counts as zero. Every call uses fresh secret entropy.
    """
    with np.errstate(over="ignore"):
        flat = np.concatenate([np.asarray(each, dtype=np.float32).ravel() for each in update])
    words = np.frombuffer(secrets.token_bytes(8), dtype=np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    clipped = clip(ClientVectors.of(jnp.asarray(flat)[None]), mechanism.clip_norm)
    message = np.array(mechanism.messages(key[None], clipped.matrix())[0])
    ends = np.cumsum([each.size for each in update])[:-1]
    return [part.reshape(each.shape) for part, each in zip(np.split(message, ends), update, strict=True)]


def _only(records: Any) -> Any:
    """The only record.

    Raises:
      ValueError: none, or several.
    """
    if len(records) != 1:
        raise ValueError(f"a message with {len(records)} ArrayRecords: expected one")
    return next(iter(records.values()))


def _difference(after: Any, keys: list[str], old: Sequence[np.ndarray]) -> list[np.ndarray]:
    """New minus old arrays.

    Raises:
      ValueError: different names or shapes.
    """
    new = after.to_numpy_ndarrays()
    if list(after.keys()) != keys or [each.shape for each in new] != [each.shape for each in old]:
        raise ValueError("the arrays of the reply have other names or shapes than those that were sent")
    return [
        np.asarray(one, dtype=np.float32) - np.asarray(other, dtype=np.float32)
        for one, other in zip(new, old, strict=True)
    ]
