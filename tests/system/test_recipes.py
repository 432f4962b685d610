"""The training programs, in miniature, and one run shared out over devices and processes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import recipe
from stand_in import quick_account

from checkin_jax.cli.programs import UsageError
from checkin_jax.training.reports import recorded

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

ROOT = Path(__file__).parents[2]
# Of one size where that is possible: they compile once.
SMALL = {
    "mnist_ldp_sgd": {"check_in_prob": 2e-4, "num_rounds": 3},
    "mnist_federated_dp_sgd": {"num_clients": 2_000, "check_in_prob": 0.005, "num_rounds": 3},
    "mnist_fixed_window": {"num_clients": 90, "num_slots": 50, "minibatch": 20, "num_epochs": 1},
    "mnist_averaged": {"num_clients": 30, "num_slots": 3, "num_epochs": 1},
    "mnist_sliding_window": {"num_clients": 90, "window": 41, "minibatch": 20, "num_epochs": 1},
}


def loaded(name, monkeypatch):
    spec = importlib.util.spec_from_file_location(name, ROOT / "train" / f"{name}.py")
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, program)
    spec.loader.exec_module(program)
    return program


@pytest.mark.parametrize("name", SMALL)
def test_every_program_trains_and_prints_accuracy_against_epsilon(name, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("checkin_jax.accounting.account.account", quick_account)
    settings = loaded(name, monkeypatch).SETTINGS
    small = dataclasses.replace(settings["protocol"], **SMALL[name])
    recipe.Recipe(run_dir=tmp_path / "run", dataset="digits").run({**settings, "protocol": small})
    out = capsys.readouterr().out
    assert (tmp_path / "run" / "report.txt").read_text() in out
    head, *lines = out.splitlines()[:4]
    assert " ".join(head.split()) == "round accuracy epsilon, local epsilon, messages epsilon, aggregate"
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line.split()[:2] for line in lines] == [
        [str(m["round"]), f"{m['accuracy']:.2%}"] for m in metrics
    ]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["seed"] is None
    assert len(metrics) == 3


def test_the_linear_model_is_trained_once_a_setting(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("checkin_jax.accounting.account.account", quick_account)
    program = loaded("mnist_public_features", monkeypatch)
    asked = {"only": ("ldp_sgd_4.0", "gaussian_8.0"), "dataset": "digits", "shrink": 100, "evaluations": 1}
    program.main(tmp_path, **asked, repeats=2)
    found = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert found == ["ldp_sgd_4.0_1", "gaussian_8.0_1", "ldp_sgd_4.0_2", "gaussian_8.0_2"]
    reports = [recorded.read(tmp_path / name).report for name in found]
    assert [report["rounds"] for report in reports] == [4, 4, 4, 4]
    told = "times the rule of thumb were chosen was not stated"  # on other images than those of the default
    assert all(told in recorded.read(tmp_path / name).about["tuning"] for name in found)
    program.main(tmp_path, **asked, repeats=2)  # all kept
    assert capsys.readouterr().out.count("is there already") == 4
    with pytest.raises(UsageError, match=r"ldp_sgd_4\.0_1 is there already, but protocol differs"):
        program.main(tmp_path, **asked | {"shrink": 50}, repeats=2)
    for wrong in (
        {"shrink": 0},
        {"evaluations": 0},
        {"steps": -1.0},
        {"momentum": 1.0},
        {"repeats": 0},
        {"adam": True, "momentum": 0.9},
    ):
        with pytest.raises(ValueError, match=f"{list(wrong)[-1]}="):
            program.main(tmp_path, **asked | wrong)
    with pytest.raises(ValueError, match=r"only=\['other'\]: expected names out of at_epsilon_0.5"):
        program.main(tmp_path, only=("other",))


SHARED = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
from stand_in import quick_account
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian
from recipe import Recipe
from checkin_jax.training.reports import report
from checkin_jax.training import draws
report.account = quick_account
folder, number, port = sys.argv[1:]
hosts = {"coordinator": f"127.0.0.1:{port}", "num_processes": 2, "process_id": int(number)} if port != "0" else {}
draws.fresh_entropy = lambda: 3 + int(number)  # the first process's must hold for all
Recipe(run_dir=Path(folder), dataset="digits", **hosts).run({
    "protocol": ShuffledCheckIn(num_clients=2_000, check_in_prob=0.1, num_rounds=5),
    "randomizer": Gaussian(noise_multiplier=2.0),
})
"""


def _spawn(folder: Path, number: int = 0, port: int = 0, devices: int = 1) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[2]), str(Path(__file__).parents[1]), *sys.path]
        ),
    }
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-c", SHARED, str(folder), str(number), str(port)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow  # four processes that compile
def test_a_run_shared_out_is_the_run_of_one_device(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    runs = [
        [_spawn(tmp_path / "one")],
        [_spawn(tmp_path / "eight", devices=8)],
        [_spawn(tmp_path / "two", number, port) for number in (0, 1)],
    ]
    for processes in runs:
        outs = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes)
        assert "Saved in" in outs[0]
        assert all("Saved in" not in out for out in outs[1:])
    metrics = {name: (tmp_path / name / "metrics.jsonl").read_text() for name in ("one", "eight", "two")}
    assert metrics["one"] == metrics["eight"] == metrics["two"]
    for name in ("eight", "two"):
        with (
            np.load(tmp_path / "one" / "parameters.npz") as one,
            np.load(tmp_path / name / "parameters.npz") as other,
        ):
            for array in one.files:
                np.testing.assert_allclose(other[array], one[array], atol=1e-6)
