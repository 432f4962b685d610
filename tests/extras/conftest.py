"""Tests against packages that not everybody has; a file is collected where its package is installed."""

import importlib.util

NEEDED = {"test_jax_privacy.py": "jax_privacy"}
collect_ignore = [file for file, package in NEEDED.items() if importlib.util.find_spec(package) is None]
