"""The kept compilation cache of the tests: old entries go (`conftest.py`)."""

import os
import time

import conftest


def test_old_entries_are_forgotten(tmp_path):
    for name in ("new", "old"):
        (tmp_path / f"{name}-cache").write_bytes(b"kernel")
    os.utime(tmp_path / "old-cache", (time.time() - 40 * 86_400,) * 2)
    conftest._forget(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"new-cache"}


def test_the_folder_is_chosen_or_named_after_release_and_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("CHECKIN_JAX_TESTS_CACHE", str(tmp_path))
    assert conftest._cache_folder() == tmp_path
    monkeypatch.delenv("CHECKIN_JAX_TESTS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = conftest._cache_folder()
    assert folder.parent == tmp_path / "checkin-jax" / "tests"
    assert folder.name.startswith("jaxlib-")
