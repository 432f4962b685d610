"""`checkin statement`: every format says the same, and the record keeps to the published schema."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest
from stand_in import as_read, audited, quick_account

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax.reports import theorems
from checkin_jax.training.reports import recorded, statement
from checkin_jax.training.run import PrivateRun

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "statement.schema.json").read_text())
VALID = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture
def run_dir(tmp_path):
    """A run that was killed after two of three rounds."""
    protocol = cj.ShuffledCheckIn(num_clients=30, check_in_prob=0.5, num_rounds=3)
    private = PrivateRun(protocol=protocol, randomizer=cj.PureLDP(epsilon0=1.0), delta=1e-4)
    about = {**private.as_dict(), "dataset": "<digits>", "version": "0.0", "records_per_client": 2}
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "check_ins": 14}\n{"round": 2, "check_ins": 16}\n')
    return tmp_path


@pytest.fixture
def record(run_dir):
    return statement.record(recorded.read(run_dir), quick_account, attack=False)


def test_the_record_keeps_to_the_schema(record):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALID.validate(json.loads(statement.as_json(record)))
    assert record["unit"]["records_per_client"] == 2
    assert record["guarantees"][1]["epsilon"] == pytest.approx(4e-3)
    assert record["guarantees_of_all_planned_rounds"][1]["epsilon"] == pytest.approx(6e-3)
    assert record["tuning"]["covered"] is False


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.pop("not_covered"),
        lambda record: record.update(schema=2),
        lambda record: record["guarantees"][0].update(epsilon=-1.0),
        lambda record: record["tuning"].update(covered=True),
        lambda record: record["unit"].pop("adjacency"),
        lambda record: record.update(extra=1),
    ],
)
def test_the_schema_refuses_other_records(record, spoil):
    record = copy.deepcopy(record)
    spoil(record)
    assert not VALID.is_valid(record)


@pytest.mark.parametrize("form", ["text", "model-card"])
def test_every_format_says_it_all(record, form):
    shown = statement.FORMATS[form](record)
    for words in ("Unit of privacy", "replace-one", "0.0001", "Tuning", "Not covered", "shuffler", "0.006"):
        assert words in shown
    assert "<digits>" in shown


def test_an_entry_of_a_registry_says_what_a_run_cannot_know(record):
    entry = json.loads(statement.as_registry(record))
    assert entry["deployment"]["data_curator"] is None
    assert [each["model"]["view"] for each in entry["dp_flavors"]] == ["local", "messages", "aggregate"]
    VALID.validate(entry["statement"])


def test_the_command_states_with_an_attackers_terms(run_dir, capsys):
    cli.main(["statement", str(run_dir), "--format", "json"])
    values = json.loads(capsys.readouterr().out)
    VALID.validate(values)
    assert all(each["attack"] is None for each in values["guarantees"])
    for each in values["guarantees_of_all_planned_rounds"]:
        assert 0.0 <= each["epsilon_lower"] <= each["epsilon"]
        assert each["attack"]["advantage"]["lower"] <= each["attack"]["advantage"]["upper"] < 1.0


def test_every_format_quotes_the_last_audit(run_dir, record):
    assert record["audit"] is None
    assert "No audit of this run is known here." in statement.as_text(record)
    run = recorded.read(run_dir)
    audited(run)
    record = statement.record(run, quick_account, attack=False)
    VALID.validate(json.loads(statement.as_json(record)))
    for form in ("text", "model-card"):
        shown = statement.FORMATS[form](record)
        assert "attacked by checkin audit on 2026-11-20" in shown
        assert "(confidence 0.95)" in shown
        assert "epsilon at least 0.25, certified at most 0.5, at delta 1e-06" in as_read(shown)
    assert (
        json.loads(statement.as_registry(record))["statement"]["audit"]["findings"][0]["audit_lower"] == 0.25
    )
    audited(run, passed=False)
    assert "VIOLATION" in statement.as_text(statement.record(run, quick_account, attack=False))


def test_an_audit_of_another_run_is_refused_with_one_line(run_dir, capsys):
    audited(recorded.read(run_dir), clip_norm=0.5)
    with pytest.raises(SystemExit) as stop:
        cli.main(["statement", str(run_dir)])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert "of another run" in err


def test_theorems_are_stated(run_dir):
    record = statement.record(recorded.read(run_dir), attack=False)
    (said,) = (lines for head, lines in statement.sections(record) if head == statement.THEOREMS)
    assert said.pop() == theorems.GLOSSARY
    assert said
    for each in said:
        assert f"  {each}\n" in statement.as_text(record)


def test_a_run_without_rounds_is_refused_with_one_line(run_dir, capsys):
    (run_dir / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit) as stop:
        cli.main(["statement", str(run_dir)])
    assert stop.value.code == 2
    assert "nothing to state" in capsys.readouterr().err
