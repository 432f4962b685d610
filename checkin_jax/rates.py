"""Unequal check-in rates of clients: all of them, or limits known to an operator (docs/theory_rates.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from checkin_jax import _validate
from checkin_jax._files import read_numbers
from checkin_jax._serialize import Columns, Part
from checkin_jax._suggest import ByName, legal

# Relative difference below which rates count as equal in a look-up of a client by its rate.
_SAME = 1e-12
# Columns of probabilities; those of other names are counts.
_PROBS = ("values", "rate", "coin")


def check_columns(at: Callable[[str, int], str] = "{}[{}]=".format, **columns: np.ndarray) -> None:
    """Raises ValueError for the first entry that is no probability in (0, 1], or no whole number in [1, 2^42].

    at: name and place of an entry, in words; NaN is never legal.
    """
    for name, found in columns.items():
        if name in _PROBS:
            fine, expected = (found > 0) & (found <= 1), "a number in (0, 1]"
        else:
            fine = (found >= 1) & (found <= 2.0**42) & (found == np.floor(found))
            expected = "a whole number in [1, 2^42]"
        for i in np.flatnonzero(~fine)[:1].tolist():
            raise ValueError(f"{at(name, i)}{float(found[i])!r}: expected {expected}")


def read_columns(path: str | Path, needed: Sequence[str], more: Sequence[str] = ()) -> list[np.ndarray]:
    """Columns of a CSV file, checked as by `check_columns`; errors name the line, the header being line 1."""
    columns = [np.array(column) for column in read_numbers(path, needed, more)]
    check_columns(lambda name, i: f"{path}: line {i + 2}: {name}=", **dict(zip((*needed, *more), columns)))
    return columns


@dataclasses.dataclass(frozen=True, eq=False)
class Rates(ByName, Columns):
    """Probability with which each client checks in, in every round, given the public past.

    Rates are a histogram, without names: two runs of an account may have different clients at the same rate.

    Args:
      values: rates in (0, 1], one for each client, or for each group of `counts` clients. Stored as NumPy
        float64.
      counts: number of clients with each rate, whole, at least 1; default one each.

    Raises:
      ValueError, TypeError: no rates; one outside (0, 1] or NaN; counts that are not whole, below 1, or not
        one for each value.

    >>> fleet = Rates([0.05, 0.3], counts=[900, 100])
    >>> fleet.num_clients, fleet.largest, fleet.expected_check_ins
    (1000, 0.3, 75.0)
    """

    values: np.ndarray
    counts: np.ndarray

    def __init__(
        self, values: Sequence[float] | np.ndarray, counts: Sequence[int] | np.ndarray | None = None
    ) -> None:
        found = _validate.column("values", values)
        if found.size == 0:
            raise ValueError("values=[]: expected at least one rate")
        many = np.ones_like(found) if counts is None else _validate.column("counts", counts)
        if many.shape != found.shape:
            raise ValueError(f"counts={many.size} numbers: expected one for each of the {found.size} values")
        check_columns(values=found, counts=many)
        self._keep(values=found, counts=many)

    @classmethod
    def read(cls, path: str | Path) -> Rates:
        """Reads rates from a CSV file with the column `rate`, and `count` for lines of several clients.

        Raises:
          ValueError: a missing column, or a line that is not numbers in their ranges, with its number in the
            file (the header is line 1); no rates.
          OSError: the file cannot be read.
        """
        return cls(*read_columns(path, ("rate",), ("count",)))

    def __repr__(self) -> str:
        if self.values.size <= 6:
            return f"Rates({self.values.tolist()}, counts={[int(n) for n in self.counts]})"
        return f"Rates({self.num_clients} clients, {self.smallest:.6g} to {self.largest:.6g})"

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return int(self.counts.sum())

    @property
    def largest(self) -> float:
        """The rate of the fastest client."""
        return float(self.values.max())

    @property
    def smallest(self) -> float:
        """The rate of the slowest client."""
        return float(self.values.min())

    @property
    def always_present(self) -> int:
        """Number of clients that always check in."""
        return int(self.counts[self.values == 1.0].sum())

    @property
    def expected_check_ins(self) -> float:
        """Expected number of check-ins of all clients in a round."""
        return float(self.values @ self.counts)

    @property
    def common(self) -> float | None:
        """The rate of all clients, if it is the same; else None."""
        return self.largest if self.smallest == self.largest else None

    @property
    def examples(self) -> tuple[float, ...]:
        """At most a dozen rates that represent their range."""
        return self.quantiles(11)

    def quantiles(self, count: int) -> tuple[float, ...]:
        """`count` >= 1 rates evenly over the clients, from the slowest to the fastest; for one,
        the fastest.
        """
        order = np.argsort(self.values)
        reached = np.cumsum(self.counts[order]) / self.num_clients
        shares = np.linspace(0.0, 1.0, count) if count > 1 else np.ones(1)
        places = np.searchsorted(reached, shares)
        return tuple(self.values[order][np.minimum(places, order.size - 1)].tolist())

    @property
    def span(self) -> str:
        """Range of the rates, in words that continue "rates"."""
        return f"from {self.smallest:.6g} to {self.largest:.6g}"

    @property
    def description(self) -> str:
        """Assumption about the rates, in words."""
        return f"the clients' check-in rates are as given: {self.span}, adding up to {self.expected_check_ins:,.6g}"

    def check_clients(self, num_clients: int) -> None:
        """Checks a number of clients.

        Raises:
          ValueError: it contradicts the rates.
        """
        if num_clients != self.num_clients:
            raise _validate.error(f"{self.num_clients}, as many as there are rates", num_clients=num_clients)

    def fastest(self, client_rate: float | None = None) -> float:
        """Rate of the fastest client whose rate is at most `client_rate`; of all clients by default.

        Raises:
          ValueError, TypeError: outside (0, 1], or every client is faster.
        """
        return self.largest if client_rate is None else float(self.values[self._fastest(client_rate)])

    def others(self, client_rate: float) -> Rates | None:
        """Rates without one client of rate `fastest(client_rate)`; None if there is no other client.

        With a pool's theta of at least `client_rate`, bounds for this client hold for all slower ones.

        Raises:
          ValueError: outside (0, 1], or every client is faster.
        """
        counts = self.counts.copy()
        counts[self._fastest(client_rate)] -= 1.0
        kept = counts > 0
        return Rates(self.values[kept], counts[kept]) if kept.any() else None

    def _fastest(self, client_rate: float) -> int:
        rate = _validate.real(0.0, 1.0, "(]", client_rate=client_rate)
        slower = np.flatnonzero(self.values <= rate * (1.0 + _SAME))
        if slower.size == 0:
            raise _validate.error(f"at least {self.smallest!r}, the slowest client's", client_rate=rate)
        return int(slower[np.argmax(self.values[slower])])

    def thinned(self, arrival_prob: float) -> Rates:
        """Rates of messages that arrive, each with probability `arrival_prob` in (0, 1], independently.

        Raises:
          ValueError, TypeError: `arrival_prob` outside its range.
        """
        arrival_prob = _validate.real(0.0, 1.0, "(]", arrival_prob=arrival_prob)
        return self if arrival_prob == 1.0 else Rates(self.values * arrival_prob, self.counts)


@dataclasses.dataclass(frozen=True)
class RateLimits(ByName, Part):
    """Limits on check-in rates that are not known individually: two numbers, which suffice for a guarantee.

    Args:
      largest: upper bound on every client's rate, in (0, 1). expected_check_ins: lower bound on the sum of
        the OTHER clients' rates, without that of the client of the guarantee, > 0.

    Raises:
      ValueError, TypeError: an argument outside its range.

    >>> RateLimits(largest=0.3, expected_check_ins=6200.0)
    RateLimits(largest=0.3, expected_check_ins=6200.0)
    """

    largest: float
    expected_check_ins: float

    _legal = legal(
        largest=(_validate.real, 0.0, 1.0, "()"), expected_check_ins=(_validate.real, 0.0, 2.0**42, "(]")
    )

    @classmethod
    def between(cls, smallest: float, largest: float, *, num_clients: int) -> RateLimits:
        """Limits of clients whose rates are somewhere in an interval, each its own (K1 of docs/theory_rates.md).

        No rate of the interval stands for it: a client at the largest rate is hidden by others at any rate in it, and
        epsilon neither rises nor falls with these.

        Args:
          smallest: lower end of the interval, in (0, largest].
          largest: upper end of the interval, in (0, 1).
          num_clients: number of clients, at least 2.

        Raises:
          ValueError, TypeError: an argument outside its range.

        >>> RateLimits.between(0.25, 0.5, num_clients=1001)
        RateLimits(largest=0.5, expected_check_ins=250.0)
        """
        largest = _validate.real(0.0, 1.0, "()", largest=largest)
        smallest = _validate.real(0.0, largest, "(]", smallest=smallest)
        num_clients = _validate.integer(2, 2**42, num_clients=num_clients)
        return cls(largest, smallest * (num_clients - 1))

    @property
    def examples(self) -> tuple[float, ...]:
        """At most a dozen rates that represent their range."""
        return tuple(self.largest * 0.5**k for k in range(6))

    @property
    def span(self) -> str:
        """Range of the rates, in words that continue "rates"."""
        return f"of at most {self.largest:.6g}"

    @property
    def description(self) -> str:
        """Assumption about the rates, in words."""
        return (
            f"no client's check-in rate exceeds {self.largest:.6g}, and for every client the rates of all other "
            f"clients add up to at least {self.expected_check_ins:,.6g}"
        )

    def check_clients(self, num_clients: int) -> None:
        """Checks a number of clients.

        Raises:
          ValueError: it contradicts the rates.
        """
        if self.expected_check_ins > self.largest * (num_clients - 1) * (1.0 + _SAME):
            raise ValueError(
                f"expected_check_ins={self.expected_check_ins!r}: expected at most "
                f"{self.largest * (num_clients - 1):.6g}, the sum for "
                f"{num_clients - 1} other clients of rate {self.largest!r}"
            )

    def fastest(self, client_rate: float | None = None) -> float:
        """Upper bound on the client's rate: `client_rate` in (0, largest], or the largest by default.

        Raises:
          ValueError, TypeError: outside its range.
        """
        if client_rate is None:
            return self.largest
        return _validate.real(0.0, self.largest, "(]", client_rate=client_rate)

    def common_rate_of_others(self, client_rate: float, num_clients: int) -> float:
        """Common rate of the others of a client of this rate, in a fleet that is within the limits for each client.

        The others of each of these are the rest of them and this client, who may be slower. `largest` if no such fleet
        exists: then the limits hold for this client only.
        """
        others = num_clients - 1
        mean = self.expected_check_ins / others
        if client_rate < mean:
            mean = (self.expected_check_ins - client_rate) / (others - 1) if others > 1 else self.largest
        return min(mean, self.largest)

    @property
    def weight(self) -> float:
        """Lower bound W on the sum of the others' weights w_j, at theta = largest."""
        return self.expected_check_ins / self.largest

    def thinned(self, arrival_prob: float) -> RateLimits:
        """Limits of messages that arrive, each with probability `arrival_prob` in (0, 1], independently.

        Raises:
          ValueError, TypeError: `arrival_prob` outside its range.
        """
        arrival_prob = _validate.real(0.0, 1.0, "(]", arrival_prob=arrival_prob)
        if arrival_prob == 1.0:
            return self
        return RateLimits(self.largest * arrival_prob, self.expected_check_ins * arrival_prob)


# Knowledge of check-in rates that may differ: all of them, or limits.
CheckInRates = Rates | RateLimits
