"""Programs that are compiled ahead of their use, side by side in threads, and kept for the next process.

A `compiled` kernel has one program a shape of its arguments and value of its static ones. `prepare` begins to compile
it while other work goes on. Programs are kept on the disk (`checkin_jax._compiled`) under a name that is made from the
sources of all kernels, releases, platform and shapes, so that nothing of another version is ever run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
from jax.experimental import serialize_executable

from checkin_jax import _compiled
from checkin_jax.kernels.execution import devices
from checkin_jax.kernels.execution.engine import traced, tracing

# Compiles in half the time what mostly runs as fast; tests/bounds/test_engines.py measures what it computes.
QUICK = {"xla_cpu_use_fusion_emitters": False}
_KERNELS: list[Kernel] = []
_LOCK = threading.Lock()


class Kernel:
    """A function of arrays that XLA runs; `static` arguments select one of its programs."""

    def __init__(self, function: Callable[..., Any], static: tuple[str, ...], quick: bool) -> None:
        functools.update_wrapper(self, function)
        self._function, self._static, self._quick = function, static, quick
        self._signature = inspect.signature(function)
        self._jitted = jax.jit(function, static_argnames=static)
        self._programs: dict[Any, Future[Callable[..., Any]]] = {}
        _KERNELS.append(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _plain() or traced(args, kwargs):
            with tracing():
                return self._jitted(*args, **kwargs)
        program, leaves = self._begin(args, kwargs)
        return program.result()(*leaves)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Begins to compile what a call with such arguments needs; shapes and static arguments count, not numbers."""
        if _plain() and not traced(args, kwargs):
            self._begin(args, kwargs)

    def forget(self) -> None:
        """Drops the programs of this process."""
        self._programs.clear()

    def _begin(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Future[Callable[..., Any]], list[Any]]:
        """The program for these arguments, at once or to come, and what to call it with."""
        given = self._signature.bind(*args, **kwargs).arguments
        static = {name: given.pop(name) for name in self._static if name in given}
        leaves, tree = jax.tree.flatten(dict(given))
        # What is on the device stays there.
        leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
        shapes = tuple((leaf.shape, leaf.dtype.str) for leaf in leaves)
        device = devices.in_use()
        key = (tuple(static.items()), tree, shapes, device)
        with _LOCK:
            found = self._programs.get(key)
            if found is not None:
                return found, leaves
            found = self._programs[key] = Future()
        try:
            self._make(found, static, tree, leaves, device, repr((_named(static), str(tree), shapes)))
        except BaseException:
            del self._programs[key]
            raise
        return found, leaves

    def _make(
        self,
        found: Future,
        static: dict[str, Any],
        tree: Any,
        leaves: list[Any],
        device: Any,
        key: str,
    ) -> None:
        function = self._function
        name = f"{function.__module__}.{function.__qualname__}"
        place = hashlib.sha256(f"{name} {key} {surroundings(device, 'kernels')}".encode()).hexdigest()
        loaded = _load(place, leaves, device)

        def flat(*leaves: Any) -> Any:
            return function(**jax.tree.unflatten(tree, leaves), **static)

        flat.__name__ = function.__name__

        def lowered() -> Any:
            with tracing():
                return jax.jit(flat).lower(*(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves))

        if loaded is not None:
            found.set_result(_Loaded(loaded, lambda: _compile(lowered(), device, self._quick)[0]))
            return
        traced_once = lowered()

        def compile_it() -> None:
            try:
                program, fresh = _compile(traced_once, device, self._quick)
            except BaseException as error:
                found.set_exception(error)
                return
            found.set_result(program)
            if fresh:
                _store(place, program, traced_once.out_tree)

        _pool().submit(compile_it)


def compiled(*, static: tuple[str, ...] = (), quick: bool = True) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a function a `Kernel`; quick: that it is compiled soon counts for more than that it runs fast."""
    return lambda function: Kernel(function, static, quick)


def family(make: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Makes a function that returns kernels return one for equal arguments, named as they are in every process."""

    @functools.cache
    @functools.wraps(make)
    def member(*args: Any) -> Callable[..., Any]:
        kernel = make(*args)
        kernel.family = (f"{make.__module__}.{make.__qualname__}", _named(args))  # type: ignore[attr-defined]
        return kernel

    return member


def forget() -> None:
    """Drops all programs of this process; those on the disk stay."""
    for kernel in _KERNELS:
        kernel.forget()


def _named(value: Any) -> Any:
    """The value with functions by their names, which are the same in every process."""
    if isinstance(value, dict):
        return {name: _named(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_named, value))
    if not callable(value):
        return value
    if hasattr(value, "family"):
        return value.family  # type: ignore[attr-defined]
    # Others of this name may do something else, and would be run in its place.
    if "<" in value.__qualname__:
        raise ValueError(
            f"a kernel must be a function of a module or one of a family, got {value.__qualname__}"
        )
    return f"{value.__module__}.{value.__qualname__}"


def _plain() -> bool:
    """Whether JAX is set as it is for most; where it looks for NaN or interprets, it shall do so here."""
    values = jax.config.values
    return not (values["jax_disable_jit"] or values["jax_debug_nans"] or values["jax_debug_infs"]) and bool(
        jax.config.jax_enable_x64  # type: ignore[attr-defined]
    )


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1)), "checkin_jax-compiling")


@functools.cache
def _digest(source: Path) -> bytes:
    return hashlib.sha256(source.read_bytes()).digest()


@functools.cache
def surroundings(device: Any, *folders: str) -> str:
    """Everything besides its arguments that the work of the sources in these folders of the package depends on."""
    package = Path(_compiled.__file__).parent
    paths = (path for folder in folders for path in sorted((package / folder).rglob("*.py")))
    sources = hashlib.sha256(b"".join(map(_digest, paths)))
    releases = [importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy")]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION")]
    place = (device.platform, device.device_kind, device.id, jax.device_count())
    return repr((sources.hexdigest(), releases, sys.version_info[:2], flags, place))


class _Loaded:
    """A program from the disk. One that cannot be run after all, which only shows when it is, is made anew."""

    def __init__(self, program: Callable[..., Any], anew: Callable[[], Callable[..., Any]]) -> None:
        self._program, self._anew = program, anew

    def __call__(self, *leaves: Any) -> Any:
        try:
            return jax.block_until_ready(self._program(*leaves))
        except jax.errors.JaxRuntimeError:
            self._program = self._anew()
            return self._program(*leaves)


class _Found(threading.local):
    """How many programs this thread has had from JAX's own cache."""

    count = 0


_FOUND = _Found()


@functools.cache
def _listen() -> None:
    def count(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            _FOUND.count += 1

    jax.monitoring.register_event_listener(count)


def _compile(lowered: Any, device: Any, quick: bool) -> tuple[Callable[..., Any], bool]:
    """The program, and whether it is fresh: one from JAX's own cache, written again, lacks its functions."""
    _listen()
    before = _FOUND.count
    try:
        program = lowered.compile(compiler_options=QUICK if quick and device.platform == "cpu" else None)
    except jax.errors.JaxRuntimeError:  # another release, which does not know the option
        program = lowered.compile()
    return program, _FOUND.count == before


def _store(place: str, program: Any, out_tree: Any) -> None:
    """Keeps a program, where this can be done; its result's tree is kept as one of numbers."""
    try:
        payload, _, _ = serialize_executable.serialize(program)
        skeleton = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
        _compiled.write(place, pickle.dumps((payload, skeleton)))
    except (ValueError, NotImplementedError, RuntimeError, pickle.PicklingError):
        return  # the next process compiles again


def _load(place: str, leaves: list[Any], device: Any) -> Any:
    content = _compiled.read(place)
    if content is None:
        return None
    try:
        payload, skeleton = pickle.loads(content)
        in_tree = jax.tree.structure((tuple(leaves), {}))
        return serialize_executable.deserialize_and_load(
            payload, in_tree, jax.tree.structure(skeleton), device.client, [device]
        )
    except Exception:  # whatever a driver or another build makes of it: it is compiled again, and replaced
        return None
