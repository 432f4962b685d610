"""The program that measures an accelerator, at a size for a CPU; its numbers mean nothing here."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_program_for_accelerators_runs_on_a_cpu(tmp_path):
    out = tmp_path / "table.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "accelerator.py"), "--small", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    table = out.read_text(encoding="utf-8")
    assert "cpu" in table.splitlines()[0]
    for what in ("brackets", "as on the CPU", "RDP sweep", "step, 40 clients", "GFLOP/s", "to 90%"):
        assert what in table, what
    assert "NOT" not in table
