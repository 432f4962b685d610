"""The statement that ends a run: what was trained, how well, and how private it is in the three views."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from checkin_jax._rounding import up
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import VIEWS, Guarantee
from checkin_jax.protocols import (
    AveragedUpdates,
    CheckInProtocol,
    Shuffle,
    ShuffledCheckIn,
)
from checkin_jax.randomizers import Gaussian, Randomizer
from checkin_jax.training.config import TrainingConfig

SEEDED = "reproducible run: not private against someone who knows the seed"
OPERATING_SYSTEM, SEED = "the operating system", "the seed"
SIMULATED = (
    "central-limit simulation, not the mechanism itself: the sums were drawn from the normal limit of the l2 "
    "mechanism's; the guarantees are those of the protocol this run imitates"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a finished (or stopped) run has to say.

    Attributes:
      config: the run's public description.
      dataset: name of the data set; `num_records` is the size of its training part.
      accuracy: on the public test set, in [0, 1].
      rounds: updates of the model that ran. Units of the protocol are accounted for, see `units`.
      seconds: wall time of the loop, compilation included; of all parts of a resumed run.
      stopped: why the run ended before its last round; None when it did not.
      guarantees: view -> Guarantee over the units that ran.
      planned: view -> Guarantee over all planned units, when fewer ran; empty otherwise.
      message: (epsilon0, delta0)-local privacy of one message of one client.
      entropy: where the run's secret bits came from: the operating system, the seed, or the name of another source.
    """

    config: TrainingConfig
    dataset: str
    num_records: int
    accuracy: float
    rounds: int
    seconds: float
    stopped: str | None
    guarantees: dict[str, Guarantee]
    planned: dict[str, Guarantee]
    message: tuple[float, float]
    entropy: str = OPERATING_SYSTEM

    @property
    def units(self) -> int:
        """Rounds of the protocol, or windows, that are accounted for: a window counts whole once it has begun."""
        return self.config.plan.units(self.rounds)

    @property
    def messages_per_client(self) -> float:
        """Expected number of messages one client sends over the units that ran."""
        return self.units * self.config.protocol.rate

    def notes(self) -> list[str]:
        """What a careful reader must know beside the numbers."""
        protocol = self.config.protocol
        notes = []
        if self.config.seed is not None:
            notes.append(SEEDED)
        elif self.entropy != OPERATING_SYSTEM:
            notes.append(f"entropy came from {self.entropy}: that it is secret and random is assumed")
        if self.config.simulate == "central-limit":
            notes.append(SIMULATED)
        each = self.config.records_per_client
        if protocol.num_clients * each > self.num_records:
            notes.append(
                f"{protocol.num_clients:,} clients drew their records with replacement from "
                f"{self.num_records:,}: the guarantee is per client, and a record that several clients share "
                "is protected less"
            )
        planned = self.config.plan.num_rounds
        if self.rounds < planned:
            ended = f"ended after {self.rounds:,} of {planned:,} rounds ({self.stopped})"
            if self.planned:
                ended += (
                    "; where the moment of stopping was chosen by looking at results, the figures of all planned "
                    f"rounds apply: epsilon <= {up(self.planned['messages'].epsilon)} in view 'messages', "
                    f"{up(self.planned['aggregate'].epsilon)} in view 'aggregate'"
                )
            notes.append(ended)
        if self.rounds % self.config.plan.rounds_per_unit:
            notes.append("the last window did not end, and is accounted for as a whole")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Plain values for report.json."""
        return {
            "config": self.config.as_dict(),
            "dataset": self.dataset,
            "num_records": self.num_records,
            "accuracy": self.accuracy,
            "rounds": self.rounds,
            "units": self.units,
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped,
            "entropy": self.entropy,
            "guarantees": {view: guarantee.as_dict() for view, guarantee in self.guarantees.items()},
            "guarantees_of_all_planned_rounds": {
                view: guarantee.as_dict() for view, guarantee in self.planned.items()
            },
            "one_message": dict(zip(("epsilon0", "delta0"), self.message)),
            "messages_per_client": self.messages_per_client,
            "notes": self.notes(),
        }

    def __str__(self) -> str:
        config, protocol = self.config, self.config.protocol
        each = "" if config.records_per_client == 1 else f", {config.records_per_client:,} records each"
        steps = "" if config.local_steps == 1 else f" of {config.local_steps:,} local steps"
        lines = [
            f"Private training on {self.dataset} under {protocol.title}",
            f"  clients    {protocol.num_clients:,}{each}; {_check_ins(config)}",
            f"  rounds     {self.rounds:,} in {self.seconds:.1f} s",
            f"  accuracy   {self.accuracy:.2%} on the test set",
            f"  mechanism  {_mechanism(config)}, clip norm {config.clip_norm:g}{steps}",
            f"  drawn as   {config.simulate!r}",
        ]
        lines += [f"  note       {note}" for note in self.notes()]
        for view in VIEWS:
            lines += ["", str(self.guarantees[view])]
            if view == "local":
                lines.append(
                    f"  a message  is ({up(self.message[0])}, {up(self.message[1], 3)})-locally private "
                    f"by itself; a client is expected to send {self.messages_per_client:,.4g}"
                )
        return "\n".join(lines) + "\n"


def make_report(
    config: TrainingConfig,
    *,
    dataset: str,
    num_records: int,
    accuracy: float,
    rounds: int,
    seconds: float,
    stopped: str | None,
    entropy: str = OPERATING_SYSTEM,
    known: Mapping[CheckInProtocol, Guarantee] | None = None,
) -> Report:
    """Accounts for the units of the protocol that ran, in every view, and builds the report.

    Args:
      known: `guarantee` of what was accounted for already, in some view.

    Raises:
      ValueError: no round ran, or more than planned.
    """
    protocol = config.protocol
    if not 1 <= rounds <= config.plan.num_rounds:
        raise ValueError(f"rounds={rounds!r}: expected a number in [1, {config.plan.num_rounds}]")
    ran = config.plan.so_far(rounds)
    early, known = ran.repeats < protocol.repeats, known or {}
    return Report(
        config=config,
        dataset=dataset,
        num_records=num_records,
        accuracy=accuracy,
        rounds=rounds,
        seconds=seconds,
        stopped=stopped,
        guarantees=every_view(config, ran, *([known[ran]] if ran in known else [])),
        planned=every_view(config, protocol) if early else {},
        message=message_privacy(protocol, config.randomizer),
        entropy=entropy,
    )


def guarantee(config: TrainingConfig, protocol: CheckInProtocol, view: str) -> Guarantee:
    """The guarantee of `protocol`, the run or what has begun of it: the one number that a run states, everywhere."""
    return account(protocol, config.randomizer, delta=config.delta, view=view, tight=True)


def every_view(config: TrainingConfig, protocol: CheckInProtocol, *known: Guarantee) -> dict[str, Guarantee]:
    """view -> Guarantee of `protocol`; `known` are guarantees of it that have been accounted for."""
    found = {each.view: each for each in known}
    return {view: found.get(view) or guarantee(config, protocol, view) for view in VIEWS}


def message_privacy(protocol: CheckInProtocol, randomizer: Randomizer) -> tuple[float, float]:
    """(epsilon0, delta0) of one message: delta0 is 0 for PureLDP, else n^-1.5 but at most 0.1."""
    if not isinstance(randomizer, Gaussian):
        return randomizer.epsilon0, 0.0
    delta0 = min(0.1, math.pow(protocol.num_clients, -1.5))
    once = ShuffledCheckIn(num_clients=protocol.num_clients, check_in_prob=1.0, num_rounds=1)
    return account(once, randomizer, delta=delta0, view="local").epsilon, delta0


def _mechanism(config: TrainingConfig) -> str:
    if isinstance(config.randomizer, Gaussian):
        return f"Gaussian, noise multiplier {config.randomizer.noise_multiplier:g} a client"
    return f"l2 mechanism, epsilon0 = {config.randomizer.epsilon0:g} a message"


def _check_ins(config: TrainingConfig) -> str:
    """How many messages make a round, in words."""
    protocol, plan = config.protocol, config.plan
    if isinstance(protocol, ShuffledCheckIn | Shuffle):
        return f"checking in at rate {protocol.rate:.6g}: about {protocol.num_clients * protocol.rate:,.0f} a round"
    if isinstance(protocol, AveragedUpdates):
        number, rate = plan.check_ins
        return f"all of a slot averaged, {protocol.num_slots:,} slots: about {number * rate:,.6g} clients a round"
    return f"one client a slot, {plan.slots_per_unit:,} slots, {plan.minibatch:,} of them a round"
