"""What is kept on disk for later processes, and its switch: CHECKIN_JAX_CACHE, a folder of one's own, or "off".

Kept are what XLA compiles, in JAX's own compilation cache, and tables that take seconds (`numerics.disk_cache`). JAX
writes an entry in place, once, and its keys leave out the instructions of the CPU: so each machine and release has its
own folder, and what a process that was killed left unfinished is removed. An entry that another process is still
writing is compiled anew.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import warnings
import zlib
from hashlib import sha256
from pathlib import Path

VARIABLE = "CHECKIN_JAX_CACHE"
_OFF = ("off", "0", "false", "no")
# The first byte of an entry that zlib has packed, which JAX uses where there is no zstandard.
_ZLIB = b"\x78"


def keep_compiled() -> None:
    """Turns on JAX's compilation cache, for all that takes a tenth of a second to compile.

    JAX_COMPILATION_CACHE_DIR, JAX_ENABLE_COMPILATION_CACHE and JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, or the
    settings of the same name in jax.config, come first. Where the folder cannot be written nothing is kept.
    """
    import jax

    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"] or settings["jax_compilation_cache_dir"] is not None:
        return
    chosen = folder("xla")
    if chosen is None:
        return
    with contextlib.suppress(OSError):
        _remove_unfinished_once(chosen)
    # A full disk, or an entry that another process has not finished, costs a compilation, no more.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def folder(kind: str) -> Path | None:
    """The folder of this kind for this release and machine, made if need be; None: nothing is to be kept there.

    It lies in the one that CHECKIN_JAX_CACHE names, else in $XDG_CACHE_HOME/checkin-jax (~/.cache where that is unset).
    None where the variable is "off", where the folder cannot be written, or others may write to it.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in _OFF:
        return None
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The specification of XDG folders: a relative one is to be ignored.
        usual = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "checkin-jax"
        home = (Path(chosen).absolute() if chosen else usual) / kind
        found = home / release_and_machine()
        # With `parents`, `mode` is the last one's only.
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found.mkdir(mode=0o700, exist_ok=True)
        # What is in there is run as it is: a folder that others own or may write to is none of ours.
        mine = os.access(found, os.R_OK | os.W_OK | os.X_OK) and _is_private(home) and _is_private(found)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return found if mine else None


@functools.cache
def release_and_machine() -> str:
    """A name for the release of jaxlib and the instructions of the CPU."""
    from jaxlib.version import __version__

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    machine = sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:12]
    return f"jaxlib-{__version__}-{machine}"


def remove_unfinished(folder: Path, since: float) -> None:
    """Removes entries, of those written after `since` (seconds since the epoch), that are not whole."""
    for entry in folder.glob("*-cache"):
        try:
            if entry.stat().st_mtime >= since and (content := entry.read_bytes())[:1] in (b"", _ZLIB):
                zlib.decompress(content)
        except zlib.error:
            entry.unlink(missing_ok=True)
        except OSError:  # another process was quicker
            continue


def _remove_unfinished_once(folder: Path) -> None:
    """Looks through what was written since the last process did so."""
    looked = folder / "looked-through"
    # Dates of files are coarser than the clock.
    since = looked.stat().st_mtime - 2.0 if looked.exists() else 0.0
    looked.touch()
    remove_unfinished(folder, since)


def _is_private(folder: Path) -> bool:
    """Whether only this user may write there; always true where users have no numbers."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022
