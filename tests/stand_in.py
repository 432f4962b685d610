"""An instant stand-in for the accountant, where a test is not about numbers of privacy, and short ways to a run."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax.accounting import guarantee as genuine
from checkin_jax.protocols import REPLACE
from checkin_jax.reports import declarations
from checkin_jax.training import Dataset, Model
from checkin_jax.training.examples.networks import ImageTraining
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.run import PrivateRun

# Modules that take the accountant by its name: if they were first imported while a test stands in for it, they would
# keep the stand-in for all tests after.
for _name in (
    "accounting.calibration",
    "accounting.compare",
    "auditing.auditor",
    "sweeps.evaluate",
    "training.loop",
    "training.reports.run_page",
):
    importlib.import_module(f"checkin_jax.{_name}")

_FACTORS = {"local": 3e-3, "messages": 2e-3, "aggregate": 1e-3}


class Guarantee(genuine.Guarantee):
    """A guarantee without an attacker's terms: its epsilon is of no run."""

    @property
    def attack(self):
        return None


def quick_account(
    protocol,
    randomizer,
    *,
    delta,
    view="messages",
    bounds="best",
    neighboring_relation=REPLACE,
    client_rate=None,
    before=(),
) -> Guarantee:
    """A guarantee that grows with the rounds and differs from view to view, of no meaning."""
    epsilon = _FACTORS[view] * (protocol.num_units + sum(one.num_units for one, _ in before))
    common = {"delta": delta, "view": view, "method": "none", "lower_method": "none", "assumptions": ()}
    about = {"protocol": protocol, "randomizer": randomizer, "neighboring_relation": neighboring_relation}
    about["client_rate"] = client_rate
    return Guarantee(epsilon=epsilon, lower=epsilon / 2, before=tuple(before), **about, **common)


def image_training(**settings) -> ImageTraining:
    """Settings of a run on images, those of the private run among them."""
    names = {field.name for field in dataclasses.fields(PrivateRun)} & {*settings}
    return ImageTraining(run=PrivateRun(**{name: settings.pop(name) for name in names}), **settings)


@functools.cache
def two_clouds(number: int) -> tuple[Model, Dataset]:
    """A linear model, and as many points of two clouds for it."""
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=number).astype(np.int32)
    place = (rng.normal(size=(number, 2)) + 4.0 * (label[:, None] - 0.5)).astype(np.float32)
    records = {"place": place, "label": label}

    def loss(parameters, record):
        return -jax.nn.log_softmax(record["place"] @ parameters)[record["label"]]

    def metrics(parameters, record):
        return {"accuracy": (jnp.argmax(record["place"] @ parameters) == record["label"]).astype(jnp.float32)}

    model = Model(init=lambda key: jnp.zeros((2, 2), jnp.float32), loss=loss, metrics=metrics)
    return model, Dataset(records=records, test=records, name="two clouds")


def audited(run: RecordedRun, **found) -> Path:
    """Leaves an audit with one finding in the folder of a run, as of 2026-11-20; `found` in place of what it says."""
    finding = {"test": "many runs", "view": "local", "evidence": "3 of 4", "delta": 1e-6, "audit_lower": 0.25}
    mine = {name: run.run.as_dict()[name] for name in recorded.AUDITED}
    verdict = {"date": "2026-11-20", "version": "0.0", "passed": True, "confidence": 0.95}
    findings = [finding | {"certified": {"epsilon": 0.5}}]
    out = run.path / declarations.AUDIT
    out.write_text(json.dumps({**mine, **verdict, "findings": findings, **found}))
    return out


def without_progress(said: str) -> str:
    """Standard error without lines that say that work goes on: of evaluations, and after some seconds."""
    going_on = re.compile(r"round [\d,]+ of |checkin: .*\.\.\.$")
    return "".join(line for line in said.splitlines(keepends=True) if not going_on.match(line))


def as_read(page: str) -> str:
    """The HTML of a page without what keeps its numbers on one line."""
    return re.sub(r'<span class="number">([^<]*)</span>', r"\1", page)
