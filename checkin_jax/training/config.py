"""The public description of a training run; whatever changes its privacy is in the protocol or here."""

from __future__ import annotations

import dataclasses
from typing import Any

from checkin_jax import _validate
from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.dispatch import check_protocol, check_randomizer
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import Gaussian, Randomizer
from checkin_jax.training.private.mechanisms import CLIP_NORMS
from checkin_jax.training.schedules.schedule import Plan

SIMULATE = ("aggregate", "messages", "central-limit")
MICROBATCH_UNIT = 40
# Each of them takes some twenty bytes, and a message its time: a round of so many takes hours.
MOST_DRAWN = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Private training under a check-in protocol: clip, privatise, sum, divide by a public number, step.

    Attributes:
      protocol: who checks in, and how often: any of the check-in protocols.
      randomizer: Gaussian (federated DP-SGD), or PureLDP, realised by the l2 mechanism (LDP-SGD).
      clip_norm: C in [1e-6, 1e6], l2 norm to which every client's update is scaled down.
      learning_rate: step on the estimated mean clipped gradient; while nearly all clients are clipped
        only learning_rate * clip_norm matters.
      decay: "linear" to zero over the updates of the run, or "constant".
      momentum: heavy-ball momentum in [0, 1).
      averaging: the last fraction of updates over which the parameters are averaged, in [0, 1); 0 keeps the
        last ones. Averaging is post-processing: it costs no privacy.
      simulate: how the server's sum is drawn: "aggregate" (exact law, cheap), "messages" (every message
        drawn) or "central-limit" (l2 mechanism only; a simulation, not the mechanism itself).
      delta: of the reported guarantees, in (0, 1).
      eval_every: updates between evaluations on the public test set.
      target_accuracy: stop at the first evaluation that reaches it; None runs all rounds.
      seed: None draws the run's entropy from the operating system. A number makes the run reproducible and hence
        not private against anybody who knows it.
      pool_stride, activation: of the 28x28 network; `activation` also of the 8x8 one.
      microbatch: clients differentiated at once, a multiple of 40; changes speed only. None: as suits the device.
      records_per_client: records each client holds; its update is made from all of them.
      local_steps: 1: the update is the mean gradient of the client's records. More: federated averaging, the
        update is minus what that many steps on all its records add to the client's own copy of the parameters.
      local_learning_rate: step of the client's own parameters; needed for local_steps above 1 and for nothing else.

    Raises:
      ValueError, TypeError: an argument outside its range, or a combination that does not exist.
    """

    protocol: CheckInProtocol
    randomizer: Randomizer
    clip_norm: float = 0.1
    learning_rate: float = 1.0
    decay: str = "linear"
    momentum: float = 0.0
    averaging: float = 0.0
    simulate: str = "aggregate"
    delta: float = 1e-6
    eval_every: int = 50
    target_accuracy: float | None = None
    seed: int | None = None
    pool_stride: int = 1
    activation: str = "tanh"
    microbatch: int | None = None
    records_per_client: int = 1
    local_steps: int = 1
    local_learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_protocol(self.protocol)
        check_randomizer(self.randomizer)
        checked: dict[str, Any] = {
            "clip_norm": _validate.real(*CLIP_NORMS, clip_norm=self.clip_norm),
            "learning_rate": _validate.real(0, 1e30, open_low=True, learning_rate=self.learning_rate),
            "decay": _validate.choice(("linear", "constant"), decay=self.decay),
            "momentum": _validate.real(0, 1, open_high=True, momentum=self.momentum),
            "averaging": _validate.real(0, 1, open_high=True, averaging=self.averaging),
            "simulate": _validate.choice(SIMULATE, simulate=self.simulate),
            "delta": _validate.real(0, 1, open_low=True, open_high=True, delta=self.delta),
            "eval_every": _validate.integer(1, eval_every=self.eval_every),
            "pool_stride": _validate.integer(1, 2, pool_stride=self.pool_stride),
            "activation": _validate.choice(("tanh", "relu"), activation=self.activation),
            "records_per_client": _validate.integer(1, 10**6, records_per_client=self.records_per_client),
            "local_steps": _validate.integer(1, 10**6, local_steps=self.local_steps),
        }
        if self.plan.drawn_at_once > MOST_DRAWN:
            raise ValueError(
                f"protocol={_validate.shown(self.protocol)}: expected at most {MOST_DRAWN:g} clients or slots drawn at "
                f"once (check-ins of a round, slots of a window), got about {self.plan.drawn_at_once:.3g}"
            )
        if self.target_accuracy is not None:
            target = _validate.real(0, 1, open_low=True, target_accuracy=self.target_accuracy)
            checked["target_accuracy"] = target
        if self.seed is not None:
            checked["seed"] = _validate.integer(0, 2.0**128, seed=self.seed)
        if self.microbatch is not None:
            checked["microbatch"] = _validate.integer(MICROBATCH_UNIT, 10**6, microbatch=self.microbatch)
            if checked["microbatch"] % MICROBATCH_UNIT:
                raise ValueError(
                    f"microbatch={_validate.shown(self.microbatch)}: expected a multiple of {MICROBATCH_UNIT}"
                )
        if (self.local_learning_rate is None) == (checked["local_steps"] > 1):
            raise ValueError(
                f"local_learning_rate={_validate.shown(self.local_learning_rate)}: expected "
                + ("a number with local_steps above 1" if self.local_steps > 1 else "None with local_steps=1")
            )
        if self.local_learning_rate is not None:
            rate = _validate.real(0, 1e30, open_low=True, local_learning_rate=self.local_learning_rate)
            checked["local_learning_rate"] = rate
        if isinstance(self.randomizer, Gaussian):
            if self.simulate == "central-limit":
                raise ValueError(
                    "simulate='central-limit': expected 'aggregate' or 'messages': Gaussian sums are exact already"
                )
        else:
            # At epsilon0 = 0 no unbiased message has a finite norm; above, float32 coins need some room.
            _validate.real(1e-5, 50, epsilon0=self.randomizer.epsilon0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def plan(self) -> Plan:
        """The rounds of this run."""
        return Plan(protocol=self.protocol)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for config.json, with kinds and the library's version."""
        out = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("protocol", "randomizer"):
            out[name] = {"kind": type(out[name]).__name__, **dataclasses.asdict(out[name])}
        return {**out, "version": __version__}
