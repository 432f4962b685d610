"""Models and data sets for the trainer: any parameters, loss and records, without a framework."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from checkin_jax import _validate
from checkin_jax._suggest import ByName, legal
from checkin_jax.training import draws
from checkin_jax.training.private import layers
from checkin_jax.training.private.clients import ClientUpdate, Parameters, Records, takes_key
from checkin_jax.training.private.layers import Loss

# (parameters, one record of the public test set) -> name -> scalar; means over the test set are logged.
Metrics = Callable[[Parameters, Any], Mapping[str, jax.Array]]
_MIXES = (
    "a client's update would depend on records of other clients or of earlier rounds, and clipping would not bound "
    "the effect of one client's records; use normalisation within a record (GroupNorm, LayerNorm), and keep counters "
    "and random keys out of the parameters"
)
# Primitive of functions with their own batching rule (jax.custom_batching).
_OWN_BATCHES = "custom_vmap_call"
# Names of the errors that flax raises if a module would write state during a trace; flax is not imported
# here.
_WRITES = {"TraceContextError", "ModifyScopeVariableError"}


@dataclasses.dataclass(frozen=True)
class Model(ByName):
    """A model as pure functions. Models are compared by them, so equal functions compile once.

    Attributes:
      init: key -> parameters, a pytree of floating-point arrays.
      loss: (parameters, record) -> scalar, for one record of the data set, without a leading axis. Or
        (parameters, record, key) -> scalar, for a loss that draws random numbers, such as dropout's; a third
        argument with a default is not used. The key is the client's own and different for each record and
        round.
      metrics: (parameters, record) -> name -> scalar, for one record of the public test set.
        `target_accuracy` and the report's figures use "accuracy", in [0, 1]. None: no metrics.
      name: for reports.
      apply: (parameters, input ...) -> output of the trained model, see `predictor`. Training does not call
        it. None if only the parameters are needed.

    Raises:
      TypeError: init or loss is no function.
    """

    init: Callable[[jax.Array], Parameters]
    loss: Loss
    metrics: Metrics | None = None
    name: str = "model"
    apply: Callable[..., Any] | None = None

    _legal = legal(init=(_validate.function,), loss=(_validate.function,))


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(ByName):
    """Records of clients, and public test records.

    Attributes:
      records: a pytree of arrays with one leading axis, one record per row: images and labels, tokens and
        masks, tables.
      test: the public test set in the same form, used for reported metrics only; None: there is none.
      owner: (records,) whole numbers or words, the owner of each record; a client holds all records of one
        owner. Or the key of that column in `records`, which is then removed from the records. None: records
        are dealt out to the clients.
      name: for reports.

    Raises:
      ValueError, TypeError: there are no records, or leading axes differ; columns that JAX cannot hold
        (words, or whole numbers beyond 32 bits); NaN or infinities; owners that are not one whole number or word
        per record, nor a column of the records.
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
        """Owners as an array; a column of owners is removed from the records and from the test set."""
        if isinstance(owner, str):
            if not isinstance(self.records, Mapping) or owner not in self.records or len(self.records) < 2:
                raise _validate.error("one of several columns of records, or an array", owner=owner)
            column = self.records[owner]
            for name in ("records", "test"):
                if isinstance(table := getattr(self, name), Mapping):
                    rest = {key: value for key, value in table.items() if key != owner}
                    object.__setattr__(self, name, rest)
            owner = column
        try:
            found = np.asarray(owner)
        except ValueError as error:  # lists of lists of different lengths
            raise _validate.error(f"{number} whole numbers or words", owner=owner) from error
        if found.dtype == object and all(isinstance(each, str) for each in found.flat):
            found = found.astype(str)  # words as stored in tables of other packages
        if found.shape != (number,) or found.dtype.kind not in "iuUS":
            raise ValueError(
                f"owner: expected {number} whole numbers or words, one a record, got {found.dtype} {found.shape}"
            )
        return found

    def __len__(self) -> int:
        """Number of records of all clients."""
        return len(jax.tree.leaves(self.records)[0])

    def holdings(self, entropy: int, num_clients: int, each: int | None) -> Holdings:
        """Assigns records to clients, fixed for the whole run.

        Args:
          entropy: of the run.
          num_clients: clients of the protocol. With fewer owners, or fewer records than all clients need,
            clients draw theirs with replacement. A client's holding is then protected, not a record.
          each: records per client, or the largest number of owned records that a client holds; None: one, or
            all owned.

        Returns:
          Map from an array of k clients to (k,) or (k, r) int32 indices of records; shorter rows are padded
          with -1.
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
        """Draws the records that clients use in round `index`, among those they hold.

        Formal guarantees: each row by itself is a uniform set of `number` of its entries other than -1, or
        all if there are no more. The coins are the client's own, so its message depends only on its records
        and its own randomness.

        Args:
          records: (k, r) of `holdings`; a row with fewer than r records is padded with -1.

        Returns:
          (k, min(r, number)); shorter rows are padded with -1.
        """
        if records.ndim == 1 or records.shape[1] <= number:
            return records
        coins = draws.generator(entropy, draws.Stream.CLIENT_RECORDS, 3, index).random(records.shape)
        first = np.argsort(np.where(records >= 0, coins, 2.0), axis=1)[:, :number]
        return np.take_along_axis(records, first, axis=1)

    def most_held(self, each: int | None) -> int:
        """Largest number of records of a client that holds `each`, or at most `each` of those it owns."""
        if self.owner is None:
            return each or 1
        owned = int(np.unique(np.asarray(self.owner), return_counts=True)[1].max())
        return owned if each is None else min(each, owned)

    def holding(self, each: int | None) -> str | None:
        """Describes the unit of protection if clients hold several records; None if each holds one."""
        most = self.most_held(each)
        if most == 1:
            return None
        return (
            f"a client holds up to {most:,} records: all of them together are protected, and are called its record "
            "here, whichever of them a message uses"
        )

    def sharing(self, num_clients: int, each: int | None) -> str | None:
        """Describes the sharing of records among clients; None if no record belongs to several clients."""
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
    """Records of owners, indexed by clients; each client stands for one owner."""

    def __init__(self, rows: np.ndarray, owner_of: Holdings) -> None:
        self._rows, self._owner_of = rows, owner_of
        self.shape = (*owner_of.shape, rows.shape[1])

    def __getitem__(self, clients: np.ndarray, /) -> np.ndarray:
        return self._rows[self._owner_of[clients]]


# Records of every client, indexed by an array of clients; see `Dataset.holdings`.
Holdings = np.ndarray | draws.DrawnRecords | _Owned


def check_model(
    model: Model, dataset: Dataset, client_update: ClientUpdate | None = None, width: int = 1
) -> Any:
    """Shapes of the parameters, after a check that the model can be trained privately.

    Args:
      client_update: clients' computation instead of the gradient of the loss; checked likewise.
      width: most records per message of a client.

    Raises:
      TypeError: parameters that are not floating-point arrays, or none; a loss that is not a scalar; an
        update that is not a ClientUpdate.
      ValueError: state of batch normalisation among the parameters, or a loss that communicates with other
        clients or with the host.
    """
    parameters = jax.eval_shape(model.init, jax.random.key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if "batch_stats" in name.split("/") or not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"parameters {name!r} of type {leaf.dtype}: expected floating-point arrays, with respect to which the "
                f"loss is differentiated; with running statistics of batch normalisation or other state, {_MIXES}"
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
    """Trace of one client's computation, after a check that it depends on nothing but its arguments.

    Raises:
      ValueError: it communicates with other clients or with the host, or writes state of a module.
    """
    try:
        with given(what, arguments[1]):
            traced = jax.make_jaxpr(function)(*arguments)
    except NameError as error:
        if (
            error.name is not None
        ):  # a variable's, and no axis of clients, over which normalisation would average
            raise
        raise ValueError(f"{what} communicates with other clients ({error}): {_MIXES}") from error
    except Exception as error:
        if type(error).__name__ not in _WRITES:
            raise
        told = str(error).partition(" (https")[0]
        raise ValueError(f"{what} writes state that later calls read ({told}): {_MIXES}") from error
    names = {
        name
        for name in layers.primitive_names(traced.jaxpr)
        if name.endswith("callback") or name == _OWN_BATCHES
    }
    if traced.effects or names:
        told = ", ".join(sorted({*map(str, traced.effects), *names}))
        raise ValueError(
            f"{what} calls the host, or has its own batching rule ({told}): no guarantee covers values that leave "
            "it other than through the clipped update, nor values of other clients that it reads"
        )
    return traced


def one_of(records: Records) -> Any:
    """Shapes of one record, without a leading axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), records)


def check_finite(parameters: Parameters) -> Parameters:
    """The parameters, unchanged.

    Raises:
      ValueError: a parameter is NaN or infinite, which training would preserve.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        if not jnp.isfinite(leaf).all():
            raise ValueError(
                f"initial parameters {_name(path)!r}: expected finite numbers, got NaN or infinities"
            )
    return parameters


def row_of(records: Records, width: int) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Shapes of a client's row of records, and of their weights."""
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((width, *x.shape[1:]), x.dtype), records)
    return row, jax.ShapeDtypeStruct((width,), jnp.float32)


def keys_of(update: Loss | ClientUpdate) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shape of the key that a loss or an update takes as its last argument; empty if it takes none."""
    if not takes_key(update):
        return ()
    return (jax.eval_shape(lambda: jax.random.key(0, impl=draws.KEYS)),)


@contextlib.contextmanager
def given(what: str, record: Any) -> Iterator[None]:
    """Adds to errors of a user's function a note about its arguments."""
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
    """Inverse of `named_arrays`: the parameters in the structure of `like`.

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
    """Type for NumPy's files, which have no bfloat16; every bfloat16 number is a float32 number."""
    return np.dtype(np.float32) if dtype.kind == "V" else dtype


def _name(path: tuple[Any, ...]) -> str:
    """Path of a leaf, without the name under which flax's variables store their array."""
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
    """Common length of the leading axes."""
    leaves = jax.tree.leaves(records)
    lengths = {len(leaf) if np.ndim(leaf) else 0 for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"{name}: expected arrays with one leading axis of at least 1, got {sorted(lengths)}"
            + ("" if all(map(np.ndim, leaves)) else " (the numbers of a list are columns of their own)")
        )
    return lengths.pop()


def _check_columns(records: Records, name: str) -> None:
    """Raises for columns that JAX cannot hold or would silently cut to 32 bits, and for NaN and infinities."""
    for path, column in jax.tree_util.tree_leaves_with_path(records):
        shown = f"{name} {_name(path)!r}" if path else name
        if not isinstance(column, np.ndarray | jax.Array):
            continue
        if jnp.issubdtype(column.dtype, jnp.inexact):
            with np.errstate(over="ignore"):  # of 64 bits
                finite = jnp.isfinite(column).reshape(len(column), -1).all(axis=1)
            if not finite.all():
                raise ValueError(
                    f"{shown}: expected finite numbers, got NaN or infinities in {int((~finite).sum()):,} of "
                    f"{len(column):,} rows"
                )
        if isinstance(column, jax.Array):
            continue
        if column.dtype.kind in "OSUMm":
            raise TypeError(f"{shown} of type {column.dtype}: expected numbers; only owners can be words")
        if column.dtype.kind in "iu":
            held = jax.dtypes.canonicalize_dtype(column.dtype)
            if held != column.dtype and (column.astype(held) != column).any():
                raise ValueError(
                    f"{shown}: whole numbers from {column.min()} to {column.max()}, expected numbers that fit in {held}"
                )
