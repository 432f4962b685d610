"""The public description of a training run; whatever changes its privacy is in the protocol or here."""

from __future__ import annotations

import dataclasses
from typing import Any

from checkin_jax import _validate
from checkin_jax._version import __version__
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, Randomizer

SIMULATE = ("aggregate", "messages", "central-limit")
MICROBATCH_UNIT = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Private training under shuffled check-in: clip, privatise, sum, divide by the expected count, step.

    Attributes:
      protocol: who checks in, for how many rounds.
      randomizer: Gaussian (federated DP-SGD), or PureLDP, realised by the l2 mechanism (LDP-SGD).
      clip_norm: C > 0, l2 norm to which every client's gradient is scaled down.
      learning_rate: step on the estimated mean clipped gradient; while nearly all clients are clipped
        only learning_rate * clip_norm matters.
      decay: "linear" to zero over `protocol.num_rounds`, or "constant".
      momentum: heavy-ball momentum in [0, 1).
      averaging: the last fraction of rounds over which the parameters are averaged, in [0, 1); 0 keeps the
        last ones. Averaging is post-processing: it costs no privacy.
      simulate: how the server's sum is drawn: "aggregate" (exact law, cheap), "messages" (every message
        drawn) or "central-limit" (l2 mechanism only; a simulation, not the mechanism itself).
      delta: of the reported guarantees, in (0, 1).
      eval_every: rounds between evaluations on the public test set.
      target_accuracy: stop at the first evaluation that reaches it; None runs all rounds.
      seed: None draws the run's entropy from the operating system and never stores it. A number makes the
        run reproducible and hence not private against anybody who knows it.
      pool_stride, activation: of the 28x28 network; `activation` also of the 8x8 one.
      microbatch: clients differentiated at once, a multiple of 40; changes speed only.

    Raises:
      ValueError, TypeError: an argument outside its range, or a combination that does not exist.
    """

    protocol: ShuffledCheckIn
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
    microbatch: int = 40

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "clip_norm": _validate.real(0, 1e30, open_low=True, clip_norm=self.clip_norm),
            "learning_rate": _validate.real(0, 1e30, open_low=True, learning_rate=self.learning_rate),
            "decay": _validate.choice(("linear", "constant"), decay=self.decay),
            "momentum": _validate.real(0, 1, open_high=True, momentum=self.momentum),
            "averaging": _validate.real(0, 1, open_high=True, averaging=self.averaging),
            "simulate": _validate.choice(SIMULATE, simulate=self.simulate),
            "delta": _validate.real(0, 1, open_low=True, open_high=True, delta=self.delta),
            "eval_every": _validate.integer(1, eval_every=self.eval_every),
            "pool_stride": _validate.integer(1, 2, pool_stride=self.pool_stride),
            "activation": _validate.choice(("tanh", "relu"), activation=self.activation),
            "microbatch": _validate.integer(MICROBATCH_UNIT, 10**6, microbatch=self.microbatch),
        }
        if self.target_accuracy is not None:
            target = _validate.real(0, 1, open_low=True, target_accuracy=self.target_accuracy)
            checked["target_accuracy"] = target
        if self.seed is not None:
            checked["seed"] = _validate.integer(0, 2.0**128, seed=self.seed)
        if checked["microbatch"] % MICROBATCH_UNIT:
            raise ValueError(f"microbatch={self.microbatch}: expected a multiple of {MICROBATCH_UNIT}")
        if isinstance(self.randomizer, Gaussian):
            if self.simulate == "central-limit":
                raise ValueError("simulate='central-limit': Gaussian sums are exact already; use 'aggregate'")
        else:
            # At epsilon0 = 0 no unbiased message has a finite norm; above, float32 coins need some room.
            _validate.real(1e-5, 50, epsilon0=self.randomizer.epsilon0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for config.json, with kinds and the library's version."""
        out = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("protocol", "randomizer"):
            out[name] = {"kind": type(out[name]).__name__, **dataclasses.asdict(out[name])}
        return {**out, "version": __version__}
