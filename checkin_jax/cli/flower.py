"""`checkin flower-check`: what a message of Flower's LocalDpMod is really worth."""

from __future__ import annotations

import dataclasses
import json
from typing import ClassVar

from checkin_jax.cli.options import Job
from checkin_jax.cli.pages import say


@dataclasses.dataclass(kw_only=True)
class FlowerCheck:
    """Tells what one message of Flower's LocalDpMod is worth; flwr need not be installed."""

    examples: ClassVar[tuple[str, ...]] = ("--clipping-norm 1 --sensitivity 1 --epsilon 8 --delta 1e-6",)

    clipping_norm: float
    """As given to the mod: the norm that an update is clipped to."""
    sensitivity: float
    """As given to the mod, which takes it apart from the clip."""
    epsilon: float
    """As given to the mod: what is claimed."""
    delta: float
    """As given to the mod, in (0, 1)."""
    json: bool = False
    """Print one JSON object instead of text."""

    def prepare(self) -> Job:
        """Checks the arguments and works it out; the job prints."""
        from checkin_jax.flower.worth import local_dp_worth

        found = local_dp_worth(
            clipping_norm=self.clipping_norm,
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            delta=self.delta,
        )

        def job() -> None:
            if self.json:
                print(json.dumps(found.as_dict(), allow_nan=False))
            else:
                say(str(found))

        return job
