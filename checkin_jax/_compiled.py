"""Disk cache for later processes, and its switch CHECKIN_JAX_CACHE: a folder, or "off".

It holds XLA's compiled programs, in JAX's own compilation cache, and slow tables (`numerics.two_point_laws`). JAX
writes an entry in place, once, and its keys omit the CPU's instruction set. So each machine and release has
its own folder. An incomplete entry is compiled anew.
"""

from __future__ import annotations

import functools
import os
import platform
import warnings
from hashlib import sha256
from pathlib import Path

VARIABLE = "CHECKIN_JAX_CACHE"
_OFF = ("off", "0", "false", "no")


def keep_compiled() -> None:
    """Turns on JAX's compilation cache for programs that take at least a tenth of a second to compile.

    JAX_COMPILATION_CACHE_DIR, JAX_ENABLE_COMPILATION_CACHE and JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, or
    the settings of the same names in jax.config, take precedence. Without a writable folder there is no
    cache.
    """
    import jax

    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"] or settings["jax_compilation_cache_dir"] is not None:
        return
    chosen = folder("xla")
    if chosen is None:
        return
    # A full disk, or an entry left incomplete by a killed process, only costs a compilation.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def folder(kind: str) -> Path | None:
    """Folder of this kind for this release and machine, created if missing; None without a cache.

    Its parent is the folder in CHECKIN_JAX_CACHE, or $XDG_CACHE_HOME/checkin-jax (~/.cache if unset). None if
    the variable is "off", or if the folder is not writable or others may write to it.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in _OFF:
        return None
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # By the XDG specification, a relative path is ignored.
        usual = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "checkin-jax"
        home = (Path(chosen).absolute() if chosen else usual) / kind
        found = home / release_and_machine()
        # With `parents`, `mode` applies to the last folder only.
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found.mkdir(mode=0o700, exist_ok=True)
        # Its content is executed, so a folder that others own or may write to is not used.
        mine = os.access(found, os.R_OK | os.W_OK | os.X_OK) and _is_private(home) and _is_private(found)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return found if mine else None


@functools.cache
def release_and_machine() -> str:
    """Name of the release of jaxlib and the instruction set of the CPU."""
    from jaxlib.version import __version__

    machine = sha256(f"{platform.machine()} {processor('flags', 'Features')}".encode()).hexdigest()[:12]
    return f"jaxlib-{__version__}-{machine}"


def processor(*names: str) -> str:
    """The first line about the CPU that begins with one of these names, or its name on other systems than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(names)), "")


def _is_private(folder: Path) -> bool:
    """True if only this user may write there; always true without user ids."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022
