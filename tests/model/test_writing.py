"""What was written can be read again, whatever it was: as a value, as JSON and as YAML."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.strategies import records

from fairlease.model.amount import HOUR, MINUTE, SECOND, parse_instant
from fairlease.model.budget import BudgetSpec, Envelope
from fairlease.model.config import Config
from fairlease.model.document import Findings, load
from fairlease.model.lease_api import LeaseSpec, LeaseStatus
from fairlease.model.node import Node
from fairlease.model.reading import Reader
from fairlease.model.record import Record
from fairlease.model.reservation import OutcomeSpec, ReservationSpec
from fairlease.model.run import Resources, RunSpec, Runtime
from fairlease.model.writing import write
from fairlease.sim.scenario import Work

PLAIN = Reader()
KINDS = (BudgetSpec, RunSpec, Config, ReservationSpec, OutcomeSpec, LeaseSpec, LeaseStatus, Node, Work)


def read_back(kind: type[Record], raw: object) -> object:
    findings = Findings("", "f")
    record = PLAIN.read(kind, raw, ((), 0), findings)
    assert not len(findings), findings.problems()
    return record


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_record_that_was_written_reads_back_the_same(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(kind))
    assert read_back(kind, write(record)) == record


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_record_survives_being_text_in_between(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(kind))
    (document,) = load(json.dumps(write(record), ensure_ascii=data.draw(st.booleans())), "f.json")
    assert read_back(kind, document.value) == record


def test_a_record_is_written_as_people_would_write_it() -> None:
    spec = RunSpec(
        owner="org:ai",
        resources=Resources(gpu_type="H100", total_gpus=8),
        runtime=Runtime(max_duration=HOUR + 30 * MINUTE, latest_start=parse_instant("2026-01-05T00:00:00Z")),
    )
    assert write(spec) == {
        "owner": "org:ai",
        "resources": {"gpuType": "H100", "totalGPUs": 8},
        "runtime": {"maxDuration": "1h30m", "latestStart": "2026-01-05T00:00:00Z"},
    }


def test_hours_are_written_as_numbers() -> None:
    envelope = Envelope(name="w", flavor="H", selector={"a": "b"}, concurrency=1, max_gpu_hours=HOUR * 5 // 2)
    assert write(envelope)["maxGPUHours"] == 2.5


def test_a_third_of_an_hour_is_read_back_to_the_millisecond() -> None:
    envelope = Envelope(name="w", flavor="H", selector={"a": "b"}, concurrency=1, max_gpu_hours=1_200_001)
    assert read_back(Envelope, write(envelope)) == envelope


def test_a_notice_of_never_is_written_and_its_default_is_not() -> None:
    assert write(Config(notice=None)) == {"notice": "never"}
    assert write(Config()) == {}
    assert write(Config(notice=30 * SECOND)) == {"notice": "30s"}
