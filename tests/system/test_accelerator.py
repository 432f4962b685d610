"""The program that measures an accelerator, at a size for a CPU; its numbers mean nothing here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow  # two minutes of compilation; its kernels have tests of their own
def test_the_program_for_accelerators_runs_on_a_cpu(tmp_path):
    out = tmp_path / "table.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "accelerator.py"), "--small", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    table = json.loads(out.read_text(encoding="utf-8"))
    assert "cpu" in table["device"]
    for what in ("brackets", "as on the CPU", "RDP sweep", "step, 40 clients", "GFLOP/s", "to 90%"):
        assert what in done.stdout, what
    assert len(table["rows"]) == done.stdout.count("\n| ") - 2
    assert "NOT" not in done.stdout


def test_the_page_has_the_figures_that_were_measured():
    """Of an H200, kept beside the page."""
    kept = json.loads((ROOT / "docs" / "pictures" / "accelerator_h200.json").read_text("utf-8"))
    rows = {row["what"]: row for row in kept["rows"]}
    page = (
        (ROOT / "docs" / "results.md").read_text("utf-8").split("## On an accelerator")[1].split("\n## ")[0]
    )
    rates = (
        "Theorem 1, 4,096 settings",
        "RDP sweep, 10,000 settings, 64 orders, the device",
        "RDP sweep, 1,000 settings, 64 orders, the host's cores",
        "200 rounds of 6,000 clients, the whole loop",
        "49,324 composed brackets, the device",
        "50,000 composed brackets, one sweep",
        "1,000 composed brackets, host's cores",
    )
    times = ("step, 6,000 clients: Gaussian, aggregate", "step, 6,000 clients: l2 mechanism, messages")
    runs = ("mnist to 90%", "mnist to 95%", "mnist to 97%")
    wanted = [
        *(rows[what]["result"].split()[0] for what in rates),
        *(f"{rows[what]['again']} s" for what in times),
        *(f"{rows[what]['result'].split()[0]} in {rows[what]['again']} s" for what in runs),
    ]
    assert "H200" in kept["device"]
    for each in wanted:
        assert each in page, each
    assert rows["5 brackets, host"]["result"] == "as on the CPU"
    assert rows["100 of them by account"]["result"].startswith("as on the CPU: upper ends 0.9988 to 1.0008")
