"""Models and data sets for the trainer: any parameters, loss and records. No framework is imported here."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from checkin_jax import _validate
from checkin_jax._suggest import ByName
from checkin_jax.training.private import jaxpr
from checkin_jax.training.private.clients import ClientUpdate, Parameters, Records, takes_key
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.schedules import draws

# (parameters, one record of the public test set) -> name -> scalar; their means are logged.
Metrics = Callable[[Parameters, Any], Mapping[str, jax.Array]]
_MIXES = (
    "what it computes for one client would depend on other clients' records, or on those of earlier rounds, so that "
    "clipping one client's update would not bound what its records change; use normalisation within a record "
    "(GroupNorm, LayerNorm), and keep counters and random keys out of the parameters"
)
# The operation of functions that say themselves how they are mapped over clients (jax.custom_batching).
_OWN_BATCHES = "custom_vmap_call"
# How flax's modules say that they were to write what they keep from one record to the next, by the names of the errors:
# flax is not imported here.
_WRITES = {"TraceContextError", "ModifyScopeVariableError"}


class Holdings(Protocol):
    """The records of every client, by an array of clients; see `Dataset.holdings`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(clients,) or (clients, records each)."""
        ...

    def __getitem__(self, clients: np.ndarray, /) -> np.ndarray:
        """(k,) or (k, records each) for (k,) clients."""
        ...


@dataclasses.dataclass(frozen=True)
class Model(ByName):
    """A model as pure functions; compared by them, so that the same functions compile once.

    Attributes:
      init: key -> parameters, a pytree of floating-point arrays.
      loss: (parameters, record) -> scalar, for one record as it lies in the data set, without a leading axis; or
        (parameters, record, key) -> scalar, for a loss that draws random numbers, such as dropout's. A third argument
        with a default is left alone. The key is the client's own, and another one for each record and round.
      metrics: (parameters, record) -> name -> scalar, for one record of the public test set; "accuracy" in [0, 1] is
        the one that `target_accuracy` and the pictures of the report look for. None: nothing is measured.
      name: for reports.
      apply: (parameters, input ...) -> output, what a trained model is used for, see `predictor`. Training does not
        call it; None where only the parameters are wanted.
    """

    init: Callable[[jax.Array], Parameters]
    loss: Loss
    metrics: Metrics | None = None
    name: str = "model"
    apply: Callable[..., Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(ByName):
    """Records that clients hold, and public ones to test on.

    Attributes:
      records: a pytree of arrays with one leading axis, a record a row: images and labels, tokens and masks, tables.
      test: the same for the public test set, on which nothing depends but what is reported; None: there is none.
      owner: (records,) whole numbers or words, whose each record is: a client holds all records of one owner. Or the
        key of that column in `records`, which is then no part of a record any more. None: records are dealt out to the
        clients.
      name: for reports.

    Raises:
      ValueError, TypeError: there are no records, or leading axes differ; columns that JAX cannot hold: words, or whole
        numbers beyond 32 bits; owners are no whole numbers or words, one a record, or no column of the records.
    """

    records: Records
    test: Records | None = None
    owner: np.ndarray | str | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        number = _rows(self.records, "records")
        if self.test is not None:
            _rows(self.test, "test")
        if self.owner is not None:
            object.__setattr__(self, "owner", self._owners(self.owner, number))
        _check_columns(self.records, "records")
        _check_columns(self.test, "test")

    def _owners(self, owner: np.ndarray | str, number: int) -> np.ndarray:
        """Owners as an array; a column is taken out of the records, of the test set too."""
        if isinstance(owner, str):
            if not isinstance(self.records, Mapping) or owner not in self.records or len(self.records) < 2:
                raise ValueError(
                    f"owner={_validate.shown(owner)}: expected one of several columns of records, or an array"
                )
            column = self.records[owner]
            for name in ("records", "test"):
                if isinstance(table := getattr(self, name), Mapping):
                    rest = {key: value for key, value in table.items() if key != owner}
                    object.__setattr__(self, name, rest)
            owner = column
        try:
            found = np.asarray(owner)
        except ValueError as error:  # lists of lists of different lengths
            raise ValueError(
                f"owner={_validate.shown(owner)}: expected {number} whole numbers or words"
            ) from error
        if found.dtype == object and all(isinstance(each, str) for each in found.flat):
            found = found.astype(str)  # as tables of other packages keep words
        if found.shape != (number,) or found.dtype.kind not in "iuUS":
            raise ValueError(
                f"owner: expected {number} whole numbers or words, one a record, got {found.dtype} {found.shape}"
            )
        return found

    def __len__(self) -> int:
        """Number of records that clients hold."""
        return len(jax.tree.leaves(self.records)[0])

    def holdings(self, entropy: int, num_clients: int, each: int | None) -> Holdings:
        """Assigns records to clients, fixed for the whole run.

        Args:
          entropy: of the run.
          num_clients: clients of the protocol. With fewer owners, or fewer records than all clients need, clients draw
            theirs with replacement: what is protected is then a client's holding, not a record.
          each: records a client, the largest number where it owns fewer or more; None: one, or all that it owns.

        Returns:
          What gives, for an array of k clients, (k,) or (k, r) int32 indices of records; a row of fewer ends in -1.
        """
        if self.owner is None:
            return draws.client_records(entropy, num_clients, len(self), each or 1)
        order = draws.generator(entropy, draws.Stream.CLIENT_RECORDS, 2).permutation(len(self))
        owner = np.asarray(self.owner)
        order = order[np.argsort(owner[order], kind="stable")]
        _, starts, counts = np.unique(owner[order], return_index=True, return_counts=True)
        most = counts.max() if each is None else min(each, counts.max())
        places = np.arange(most)
        inside = places < counts[:, None]
        rows = np.where(inside, order[np.minimum(starts[:, None] + places, len(order) - 1)], draws.DUMMY)
        return _Owned(rows.astype(np.int32), draws.client_records(entropy, num_clients, len(rows)))

    def drawn(self, entropy: int, index: int, records: np.ndarray, number: int) -> np.ndarray:
        """Draws the records that clients use in round `index`, of those they hold.

        Formal guarantees: for each row by itself a uniform set of `number` of its entries that are not -1, or all where
        it has no more; the coins are the client's own, so its message is still a function of nothing but its records
        and its own randomness.

        Args:
          records: (k, r) of `holdings`, a row of fewer than r ends in -1.

        Returns:
          (k, min(r, number)), a row of fewer ends in -1.
        """
        if records.ndim == 1 or records.shape[1] <= number:
            return records
        coins = draws.generator(entropy, draws.Stream.CLIENT_RECORDS, 3, index).random(records.shape)
        first = np.argsort(np.where(records >= 0, coins, 2.0), axis=1)[:, :number]
        return np.take_along_axis(records, first, axis=1)

    def most_held(self, each: int | None) -> int:
        """The largest number of records of a client that holds `each` of them, or of those it owns at most so many."""
        if self.owner is None:
            return each or 1
        owned = int(np.unique(np.asarray(self.owner), return_counts=True)[1].max())
        return owned if each is None else min(each, owned)

    def holding(self, each: int | None) -> str | None:
        """Describes what is protected where clients hold several records; None where each holds one."""
        most = self.most_held(each)
        if most == 1:
            return None
        return (
            f"a client holds up to {most:,} records: what is protected, and called its record here, is all of them at "
            "once, whichever of them a message is made from"
        )

    def sharing(self, num_clients: int, each: int | None) -> str | None:
        """Describes records that clients share; None where every record is one client's at most."""
        if self.owner is not None:
            owners = len(np.unique(np.asarray(self.owner)))
            if num_clients <= owners:
                return None
            return (
                f"{num_clients:,} clients drew their holdings with replacement from those of {owners:,} owners: the "
                "guarantee is per client, and records that several clients share are protected less"
            )
        if num_clients * (each or 1) <= len(self):
            return None
        return (
            f"{num_clients:,} clients drew their records with replacement from {len(self):,}: the guarantee is per "
            "client, and a record that several clients share is protected less"
        )


class _Owned:
    """The records of owners, by clients each of whom stands for one owner."""

    def __init__(self, rows: np.ndarray, owner_of: Holdings) -> None:
        self._rows, self._owner_of = rows, owner_of
        self.shape = (*owner_of.shape, rows.shape[1])

    def __getitem__(self, clients: np.ndarray, /) -> np.ndarray:
        return self._rows[self._owner_of[clients]]


def check_model(
    model: Model, dataset: Dataset, client_update: ClientUpdate | None = None, width: int = 1
) -> Any:
    """The shapes of the parameters, once the model is seen to be one that private training can be made of.

    Args:
      client_update: what clients compute in place of the gradient of the loss; likewise looked at.
      width: records of a client that makes a message, at most.

    Raises:
      TypeError: parameters that are not floating-point arrays, or none; a loss that is not a scalar; an update that is
        no ClientUpdate.
      ValueError: state of batch normalisation among the parameters, a loss that speaks to other clients or to the host.
    """
    parameters = jax.eval_shape(model.init, jax.random.key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if "batch_stats" in name.split("/") or not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"parameters {name!r} of type {leaf.dtype}: expected floating-point arrays that the loss is "
                f"differentiated by; as for running statistics of batch normalisation and other state, {_MIXES}"
            )
    kinds = {type(x).__name__ for x in _variables(parameters)}
    if "BatchStat" in kinds:
        raise TypeError(f"parameters with running statistics of batch normalisation: {_MIXES}")
    if not jax.tree.leaves(parameters):
        raise TypeError("parameters: expected at least one floating-point array, got none")
    record = one_of(dataset.records)
    own = keys_of(model.loss)
    traced = _apart(model.loss, "the loss of one record", parameters, record, *own)
    shapes = [value.shape for value in traced.out_avals if hasattr(value, "shape")]
    if shapes != [()] or not jnp.issubdtype(traced.out_avals[0].dtype, jnp.floating):  # type: ignore[attr-defined]
        raise TypeError(f"the loss of one record is {traced.out_avals}: expected one floating-point scalar")
    _apart(jax.grad(model.loss), "the gradient of one record's loss", parameters, record, *own)
    if client_update is not None:
        _validate.instance(ClientUpdate, client_update=client_update)
        arguments = *row_of(dataset.records, width), *keys_of(client_update)
        _apart(client_update.function, "the update of one client", parameters, *arguments)
    return parameters


def _apart(function: Callable[..., Any], what: str, *arguments: Any) -> ClosedJaxpr:
    """The trace of what one client computes, if that is seen to depend on nothing but its arguments.

    Raises:
      ValueError: it speaks to other clients or to the host, or writes what a module keeps.
    """
    try:
        with given(what, arguments[1]):
            traced = jax.make_jaxpr(function)(*arguments)
    except NameError as error:  # an axis of clients, over which batch normalisation would take means
        raise ValueError(f"{what} speaks to others ({error}): {_MIXES}") from error
    except Exception as error:
        if type(error).__name__ not in _WRITES:
            raise
        told = str(error).partition(" (https")[0]
        raise ValueError(f"{what} writes what later ones would read ({told}): {_MIXES}") from error
    names = {name for name in jaxpr.names(traced.jaxpr) if name.endswith("callback") or name == _OWN_BATCHES}
    if traced.effects or names:
        told = ", ".join(sorted({*map(str, traced.effects), *names}))
        raise ValueError(
            f"{what} calls the host, or has a rule of its own for many clients at once ({told}): what leaves it "
            "otherwise than through the clipped update is covered by no guarantee, nor is what it sees of others"
        )
    return traced


def one_of(records: Records) -> Any:
    """The shapes of one record, which has no leading axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), records)


def check_finite(parameters: Parameters) -> Parameters:
    """The parameters themselves.

    Raises:
      ValueError: one holds NaN or an infinity; training would keep it to the end.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        if not jnp.isfinite(leaf).all():
            raise ValueError(
                f"initial parameters {_name(path)!r}: expected finite numbers, got NaN or infinities"
            )
    return parameters


def row_of(records: Records, width: int) -> tuple[Any, jax.ShapeDtypeStruct]:
    """The shapes of a client's row of records, and of their weights."""
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((width, *x.shape[1:]), x.dtype), records)
    return row, jax.ShapeDtypeStruct((width,), jnp.float32)


def keys_of(update: Loss | ClientUpdate) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shape of the key that a loss or an update takes as its last argument; empty where it takes none."""
    if not takes_key(update):
        return ()
    return (jax.eval_shape(lambda: jax.random.key(0, impl=draws.KEYS)),)


@contextlib.contextmanager
def given(what: str, record: Any) -> Iterator[None]:
    """Errors of a function of the user's own say, in a note, what it was called with."""
    try:
        yield
    except Exception as error:
        shapes = jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", record)
        error.add_note(f"{what}: given {shapes}")
        raise


def named_arrays(parameters: Parameters) -> dict[str, np.ndarray]:
    """The parameters as NumPy arrays under their paths, such as "conv1/kernel", for saving."""
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    return {_name(path): np.asarray(leaf).astype(_stored(leaf.dtype)) for path, leaf in leaves}


def from_named_arrays(like: Parameters, arrays: Mapping[str, np.ndarray]) -> Parameters:
    """The parameters behind `named_arrays`, in the structure of `like`.

    Raises:
      ValueError: other names, shapes or types.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [_name(path) for path, _ in paths]
    if sorted(names) != sorted(arrays):
        raise ValueError(
            f"parameters {_validate.shown(sorted(arrays))}: expected {_validate.shown(sorted(names))}"
        )
    for name, (_, leaf) in zip(names, paths):
        found = arrays[name]
        if (found.shape, found.dtype) != (leaf.shape, _stored(leaf.dtype)):
            raise ValueError(
                f"parameters {name!r} of {found.dtype} {found.shape}: expected {_stored(leaf.dtype)} {leaf.shape}"
            )
    leaves = [jnp.asarray(arrays[name], leaf.dtype) for name, (_, leaf) in zip(names, paths)]
    return jax.tree.unflatten(structure, leaves)


def _stored(dtype: np.dtype) -> np.dtype:
    """NumPy's files know no bfloat16, every number of which is one of float32."""
    return np.dtype(np.float32) if dtype.kind == "V" else dtype


def _name(path: tuple[Any, ...]) -> str:
    """A leaf's path; flax's variables keep their array under a name of their own, which is left out."""
    return jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value") or "parameters"


def _variables(tree: Any) -> list[Any]:
    """Nodes that wrap one array, such as flax's variables."""
    found: list[Any] = []

    def stop(node: Any) -> bool:
        wraps = hasattr(type(node), "value") or hasattr(type(node), "get_value")
        if wraps:
            found.append(node)
        return wraps

    jax.tree.leaves(tree, is_leaf=stop)
    return found


def _rows(records: Records, name: str) -> int:
    """The common length of the leading axes."""
    leaves = jax.tree.leaves(records)
    lengths = {len(leaf) if np.ndim(leaf) else 0 for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"{name}: expected arrays with one leading axis of at least 1, got {sorted(lengths)}"
            + ("" if all(map(np.ndim, leaves)) else " (the numbers of a list are columns of their own)")
        )
    return lengths.pop()


def _check_columns(records: Records, name: str) -> None:
    """Refuses columns that JAX cannot hold, or would cut to 32 bits in silence."""
    for path, column in jax.tree_util.tree_leaves_with_path(records):
        if not isinstance(column, np.ndarray):
            continue
        shown = f"{name} {_name(path)!r}" if path else name
        if column.dtype.kind in "OSUMm":
            raise TypeError(f"{shown} of type {column.dtype}: expected numbers; words can be owners alone")
        if column.dtype.kind in "iu":
            held = jax.dtypes.canonicalize_dtype(column.dtype)
            if held != column.dtype and (column.astype(held) != column).any():
                raise ValueError(
                    f"{shown}: whole numbers from {column.min()} to {column.max()}, expected such as {held} holds"
                )
