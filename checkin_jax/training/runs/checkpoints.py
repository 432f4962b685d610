"""Checkpoints of a run, from which a killed run ends with the same bits as an uninterrupted one.

They contain the run's entropy, from which the noise of published rounds can be drawn again. A round that is
repeated bit for bit is the same release and costs no more privacy; repeated with other noise it would. So the
folder is SECRET during the run: its reader can undo all privacy of the run. Its mode is 0700, and it is
deleted when the run has finished; deleting does not scrub the disk.

Orbax writes each checkpoint atomically, and the loop waits for it. A digest in its note covers the note, which
contains the digest of the arrays; it is verified first. If it does not match, this checkpoint is renamed and
the one before is used. None is deleted before the run has finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from checkin_jax._compiled import processor
from checkin_jax._files import delete
from checkin_jax.training.draws import DRAWS
from checkin_jax.training.model import Dataset
from checkin_jax.training.runs.run_directory import ResumeError
from checkin_jax.training.server import State

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
# What has no value but a digest, in words.
_DIGESTS = {
    "program": "the computation of model, loss and optimizer (program)",
    "dataset.digest": "the content of the data set (dataset.digest)",
}


class Saved(NamedTuple):
    """One checkpoint: the state after `round` rounds and all other data of the loop, as plain values."""

    round: int
    state: State
    progress: dict[str, Any]


class Unusable(NamedTuple):
    """An unusable checkpoint: its round, the reason, and its new name."""

    round: int
    why: str
    name: str


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of one run; use as a context manager.

    Args:
      folder: of the checkpoints, created with mode 0700.
      run: identity of the run (`describe`); only the same run may continue from them.
      keep: number of checkpoints on disk, at least 1.

    Raises:
      OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any], *, keep: int) -> None:
        self._folder = folder.absolute()
        self._run = json.loads(json.dumps(run))
        self._folder.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self._folder, 0o700)  # an earlier run may have left another mode
        # Orbax logs every file, and errors that it also raises.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                cleanup_tmp_directories=True,
                create=False,
                enable_async_checkpointing=False,
                # With several processes only the first one has checkpoints.
                multiprocessing_options=ocp.options.MultiprocessingOptions(
                    primary_host=0, active_processes={0}, barrier_sync_key_prefix="checkin-jax"
                )
                if jax.process_count() > 1
                else ocp.options.MultiprocessingOptions(),
            ),
        )

    def __exit__(self, *exc_info: object) -> None:
        self._manager.close()

    def save(self, number: int, state: State, progress: Mapping[str, Any]) -> None:
        """Writes the checkpoint after round `number`.

        Raises:
          OSError: it could not be written; earlier ones stay.
        """
        progress = json.loads(json.dumps(progress))
        note = {"run": self._run, "progress": progress, "state": _digest_of_arrays(state)}
        note["digest"] = _digest(note)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(_as_tree(state)), note=ocp.args.JsonSave(note)
        )
        try:
            self._manager.save(number, args=arguments, force=True)
        except Exception as error:  # tensorstore has its own errors for a full disk
            raise OSError(
                f"the checkpoint of round {number} could not be written: {_first_line(error)}"
            ) from error

    def newest(
        self, like: State, use: Callable[[Mapping[str, Any]], None]
    ) -> tuple[Saved | None, list[Unusable]]:
        """Newest complete and usable checkpoint, if there is one, and the unusable ones.

        Nothing is deleted. Unusable checkpoints after the returned one are renamed within the folder, since
        they hold entropy. If none is usable they keep their names, since they may become readable later.

        Args:
          like: a state of the same shapes.
          use: called with the `progress` of a complete checkpoint; raises if it cannot be used, and
            ResumeError if no checkpoint can be used.

        Raises:
          ResumeError: they belong to another run, version or machine, which the message names; or raised by
            `use`.
          OSError: an unusable one cannot be renamed.
        """
        passed = list[Unusable]()
        for step in reversed(self.rounds):
            try:
                saved = self._whole(step, like)
                use(saved.progress)
            except ResumeError:
                raise
            except Exception as error:
                passed.append(Unusable(step, _first_line(error), str(step)))
                continue
            return saved, [one._replace(name=self._move_aside(one.round)) for one in passed]
        return None, passed

    def _whole(self, step: int, like: State) -> Saved:
        """Checkpoint after this round; raises if damaged, and ResumeError if of another run."""
        arguments = ocp.args.Composite(note=ocp.args.JsonRestore())
        note = self._manager.restore(step, args=arguments)["note"]
        if _digest({name: value for name, value in note.items() if name != "digest"}) != note["digest"]:
            raise ValueError("the digest of its note does not match")
        self._check_same(note["run"])
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(_as_tree(like)))
        leaves = jax.tree.leaves(self._manager.restore(step, args=arguments)["state"])
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        if _digest_of_arrays(state) != note["state"]:
            raise ValueError("the digest of its arrays does not match")
        return Saved(step, state, note["progress"])

    @property
    def rounds(self) -> list[int]:
        """Rounds with checkpoints, complete or damaged, in order."""
        return sorted(self._manager.all_steps())

    def delete_all(self) -> None:
        """Deletes the folder, with the entropy in it. `_files.delete_rest` removes remains after a kill."""
        self._manager.close()
        delete(self._folder)

    def _check_same(self, run: Mapping[str, Any]) -> None:
        if differing := _differing(run, self._run):
            were, are = _processes(run), _processes(self._run)
            if were != are:
                differing = {n: both for n, both in differing.items() if not n.startswith("machine.")}
                differing["number of processes"] = were, are
            told = "; ".join(
                f"{_DIGESTS[name]} differs" if name in _DIGESTS else f"{name} was {before!r}, is {now!r}"
                for name, (before, now) in differing.items()
            )
            raise ResumeError(
                f"run_dir={str(self._folder.parent)!r}: its checkpoints are those of another run ({told}). Only the "
                "same run on the same kind of machine repeats its rounds bit for bit; rounds with other settings or "
                "other noise would be further releases, which cost privacy (docs/theory_filters.md)"
            )

    def _move_aside(self, step: int) -> str:
        """Renames a checkpoint, so that it is not found, and returns the new name."""
        names = (f"unused-{step}-{number}" for number in itertools.count(1))
        aside = next(name for name in names if not (self._folder / name).exists())
        os.rename(self._folder / str(step), self._folder / aside)
        self._manager.reload()
        return aside


def describe(
    config: Mapping[str, Any], dataset: Dataset, program: str, mesh: jax.sharding.Mesh | None
) -> dict[str, Any]:
    """Settings, data, versions and machine, which two processes must share to compute the same bits.

    Args:
      program: text that differs if the model's loss, its parameters or the optimizer differ, see
        `fingerprint`.

    Raises:
      ResumeError: this machine does not promise to repeat a computation bit for bit.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() in ("gpu", "cuda", "rocm") and DETERMINISTIC not in flags.split():
        raise ResumeError(
            f"checkpoints on a GPU need XLA_FLAGS={DETERMINISTIC} in the environment: "
            "a resumed run must repeat rounds bit for bit"
        )
    device = jax.devices()[0]
    return {
        "config": config,
        "dataset": {
            "name": dataset.name,
            "digest": _digest_of_arrays((dataset.records, dataset.owner, dataset.test)),
        },
        "program": program,
        "versions": {
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "numpy": np.__version__,
            "draws": DRAWS,
        },
        "machine": {
            "platform": device.platform,
            "device": device.device_kind,
            # Processors of other models may round sums in another order.
            "processor": processor("model name").rpartition(":")[2].strip(),
            "processors": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
            "XLA_FLAGS": flags,
            "matmul_precision": jax.config.values["jax_default_matmul_precision"],
            "x64": jax.config.values["jax_enable_x64"],
            "mesh": None if mesh is None else [int(size) for size in mesh.devices.shape],
        },
    }


def of_all(told: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The common `describe` of all processes of a run. Their machines may differ, all else must agree.

    Raises:
      ResumeError: a process was started with other settings than the first one.
    """
    first, *others = told
    for number, other in enumerate(others, 1):
        if other is None or first is None:
            raise ResumeError(
                f"process {number} of the run: not all have the same checkpoint_every and resume"
            )
        if differing := _differing({**first, "machine": None}, {**other, "machine": None}):
            raise ResumeError(
                f"process {number} of the run: {', '.join(differing)} differ from those of process 0"
            )
    one = dict(first or {})
    if others:
        one["machine"] = {
            str(number): each["machine"] for number, each in enumerate(told) if each is not None
        }
    return one


def _processes(described: Mapping[str, Any]) -> int:
    """Number of processes of a run, by `of_all`."""
    return sum(isinstance(each, Mapping) for each in described["machine"].values()) or 1


def fingerprint(function: Callable[..., Any], *arguments: Any) -> str:
    """Digest of a function's computation for these shapes, equal in every process with the same code.

    Numbers in its closure, such as a learning rate, are part of it; names and comments are not.
    """
    text = jax.jit(function).lower(*arguments).as_text()
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0] or type(error).__name__
    return text if len(text) < 500 else f"{text[:200]} ... {text[-300:]}"  # the reason may come last


def _as_tree(state: State) -> dict[str, Any]:
    """Leaves by number, so that Orbax need not know the optimizer's own classes."""
    return {f"leaf{i:04d}": leaf for i, leaf in enumerate(jax.tree.leaves(state))}


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _digest_of_arrays(tree: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of what differs, by its name on the path of mappings; None where one lacks it."""
    here, there = _flattened(first), _flattened(second)
    both = {name: (here.get(name), there.get(name)) for name in sorted({*here, *there})}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def _flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of nested mappings by their paths, such as "machine.device"."""
    leaves = jax.tree_util.tree_leaves_with_path(values, is_leaf=lambda value: not isinstance(value, dict))
    return {jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in leaves}
