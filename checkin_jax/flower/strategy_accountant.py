"""An accountant for flwr's fixed-clipping strategies: certified bounds for its `PrivacyAccountant` protocol.

Trust model: flwr's own. A trusted server clips, averages over a fixed number of sampled clients and adds Gaussian noise
to the average. Other clients do not hide a client; only the noise protects it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import dp_accounting

from checkin_jax import _validate
from checkin_jax.accounting.interop.accountant import CheckInAccountant

_SCHEMA = 1
_METHOD = "checkin-jax PLD, certified"
_FIELDS = ("target_delta", "population_size", "neighboring_relation", "sampling_method", "max_epsilon")


class Accountant:
    """Certified cumulative epsilon for flwr's central DP: the `accountant=` of its fixed-clipping strategies.

    Implements `flwr.serverapp.PrivacyAccountant` (flwr 1.42). flwr's own RdpAccountant gives a Renyi bound. This one
    composes exact privacy loss distributions, with one-sided errors, and also gives a lower end. Like flwr's strategies
    it knows no amplification by sampling; the relation is add-or-remove (the client's update, or zero).

    `get_epsilon`, `get_delta` and `get_privacy_spent` are upper bounds. No valid bound for the same events is below
    `get_lower_epsilon`. `would_exceed` changes nothing. This is no privacy filter: noise and number of rounds must not
    depend on the released averages.

    Args:
      config: flwr's PrivacyConfig.

    Raises:
      ValueError: amplification by sampling, or another relation. TypeError: no such config.
    """

    def __init__(self, config: Any) -> None:
        if any(not hasattr(config, name) for name in _FIELDS):
            raise _validate.type_error("flwr's PrivacyConfig", config=config)
        sampling, relation = (
            getattr(config, name).value for name in ("sampling_method", "neighboring_relation")
        )
        if sampling != "no-amplification" or relation != "add-or-remove-one":
            raise ValueError(
                f"sampling_method={sampling!r}, neighboring_relation={relation!r}: expected 'no-amplification' and "
                "'add-or-remove-one'"
            )
        self.config = config
        self._ledger = CheckInAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        self._releases: list[tuple[float, int]] = []

    @property
    def num_releases(self) -> int:
        """Number of composed noisy averages."""
        return sum(count for _, count in self._releases)

    def _noise(self, event: Any) -> float:
        """Noise multiplier of flwr's event, which must be of the config's population."""
        if any(not hasattr(event, name) for name in ("noise_multiplier", "population_size")):
            raise _validate.type_error("flwr's GaussianPrivacyEvent", event=event)
        if event.population_size != self.config.population_size:
            raise ValueError(
                f"population_size={event.population_size!r}: expected {self.config.population_size}, the config's"
            )
        return event.noise_multiplier

    def compose(self, event: Any, count: int = 1) -> None:
        """Composes flwr's GaussianPrivacyEvent `count` times.

        Raises:
          ValueError, TypeError: another population, or a count or noise outside its range.
        """
        noise = self._noise(event)
        self._release(noise, _validate.integer(1, 10**9, count=count))

    def _release(self, noise: float, count: int) -> None:
        self._ledger.compose(dp_accounting.GaussianDpEvent(noise), count)
        self._releases.append((noise, count))

    def get_epsilon(self, delta: float) -> float:
        """Certified upper bound on the cumulative epsilon at delta."""
        return self._ledger.get_epsilon(delta)

    def get_lower_epsilon(self, delta: float) -> float:
        """Lower end of epsilon at delta: no valid bound for the same releases is below it."""
        return self._ledger.get_lower_epsilon(delta)

    def get_delta(self, epsilon: float) -> float:
        """Delta at which the cumulative epsilon is at most `epsilon`, rounded up."""
        return self._ledger.get_delta(epsilon)

    def get_privacy_spent(self, delta: float | None = None) -> Any:
        """flwr's PrivacySpent at this delta; None: the config's target delta."""
        from flwr.serverapp import PrivacySpent  # pyright: ignore[reportMissingImports]

        at = self.config.target_delta if delta is None else delta
        return PrivacySpent(
            epsilon=self.get_epsilon(at),
            delta=at,
            num_releases=self.num_releases,
            accounting_method=_METHOD,
            optimal_order=None,
        )

    def would_exceed(self, event: Any, max_epsilon: float | None = None, count: int = 1) -> bool:
        """True if epsilon at the target delta would exceed `max_epsilon`; None: the config's limit.

        Raises:
          ValueError: no limit is given.
        """
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("max_epsilon=None: expected a limit, here or in the config")
        return self._ledger.would_exceed(
            dp_accounting.GaussianDpEvent(self._noise(event)),
            count,
            target_epsilon=limit,
            target_delta=self.config.target_delta,
        )

    def state_dict(self) -> dict[str, object]:
        """Config and releases as plain values, under a schema version."""
        releases = [{"noise_multiplier": noise, "count": count} for noise, count in self._releases]
        return {"schema": _SCHEMA, "config": self._plain_config(), "releases": releases}

    def _plain_config(self) -> dict[str, object]:
        values = {name: getattr(self.config, name) for name in _FIELDS}
        return {name: getattr(value, "value", value) for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the releases by saved ones with the same config.

        Raises:
          ValueError, TypeError: another schema or config, or a release outside its range; nothing is changed then.
        """
        if set(state) != {"schema", "config", "releases"} or state["schema"] != _SCHEMA:
            raise _validate.error(f"one made by state_dict, schema {_SCHEMA}", state=state)
        if state["config"] != self._plain_config():
            raise _validate.error(f"{self._plain_config()}", config=state["config"])
        fresh = type(self)(self.config)
        for each in state["releases"]:
            noise = _validate.real(0, math.inf, noise_multiplier=each["noise_multiplier"])
            count = _validate.integer(1, 10**9, count=each["count"])
            fresh._release(noise, count)
        self._ledger, self._releases = fresh._ledger, fresh._releases
