"""Names that Kubernetes takes, made from any name that a run may have."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from fairlease.kube.api.names import event_name, host_name, label_value, run_of, service_name, slots_of
from fairlease.model import rules

HOST = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

run_names = st.from_regex(rules.NAME, fullmatch=True).filter(lambda name: len(name) <= rules.RUN_NAME_MAX)


@given(run_names)
def test_every_run_gets_a_service_whose_name_is_a_host_name(name: str) -> None:
    assert HOST.fullmatch(service_name(name))
    assert LABEL.fullmatch(label_value(name))
    assert rules.a_name(event_name(name, 2**40, 4_000)) is None


@given(run_names, run_names)
def test_two_runs_never_share_a_service_or_a_label(one: str, other: str) -> None:
    if one != other:
        assert service_name(one) != service_name(other)
        assert label_value(one) != label_value(other)


def test_names_that_fit_stay_as_people_wrote_them() -> None:
    assert service_name("train-128k") == "run-train-128k"
    assert label_value("train-128k") == "train-128k"
    assert host_name(2, 17) == "a2-r17"


def test_long_names_are_told_apart_by_their_digest() -> None:
    one, other = "x" * 199 + "a", "x" * 199 + "b"
    assert service_name(one) != service_name(other)
    assert service_name("a.b") != service_name("a-b")


def test_annotations_that_say_nothing_readable_mean_nothing() -> None:
    assert slots_of({"rq.davidlangworthy.io/slots": "0,3,x,,-1"}) == {0, 3}
    assert slots_of({}) == frozenset()
    assert run_of({}, "team") is None
    assert run_of({"rq.davidlangworthy.io/run": "train"}, "team") == "team/train"
