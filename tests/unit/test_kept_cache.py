"""The kept compilation cache of the tests: damaged and old entries go, good ones stay (`conftest.py`)."""

import os
import time
import zlib

import conftest


def test_unfinished_and_old_entries_are_forgotten(tmp_path):
    whole = zlib.compress(b"kernel" * 100)
    contents = {"whole": whole, "cut": whole[:-7], "empty": b"", "old": whole, "before": whole[:-7]}
    for name, content in contents.items():
        (tmp_path / f"{name}-cache").write_bytes(content)
    now = time.time()
    os.utime(tmp_path / "old-cache", (now - 40 * 86_400,) * 2)
    os.utime(tmp_path / "before-cache", (now - 3_600,) * 2)
    conftest._forget(tmp_path, now - 60)
    assert {entry.name for entry in tmp_path.iterdir()} == {"whole-cache", "before-cache"}


def test_the_folder_is_chosen_or_named_after_release_and_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("CHECKIN_JAX_TESTS_CACHE", str(tmp_path))
    assert conftest._cache_folder() == tmp_path
    monkeypatch.delenv("CHECKIN_JAX_TESTS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = conftest._cache_folder()
    assert folder.parent == tmp_path / "checkin-jax" / "tests"
    assert folder.name.startswith("jaxlib-")
