"""Reading what a scheduler is told: one YAML file with two kinds of keys, and nothing in it is required.

The policy of decisions (`notice`, `commitQuantum`, …) becomes part of the ledger; the rest is the theatre's own business.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from fairlease.model import rules
from fairlease.model.amount import HOUR
from fairlease.model.config import Config
from fairlease.model.document import Findings, load
from fairlease.model.reading import Reader
from fairlease.model.record import Record

GRACE_MAX = HOUR
PORT_MAX = 65_535

Own = TypeVar("Own", bound=Record)


def read_both(text: str, source: str, own: type[Own], reader: Reader) -> tuple[Config, Own]:
    """The policy, and what the theatre reads besides. Raises `Invalid` with all that is wrong with either."""
    findings = Findings(text, source)
    documents = load(text, source)
    for extra in documents[1:]:
        findings.add(extra.trail, "a configuration is one document; remove the others")
    raw, trail = (documents[0].value, documents[0].trail) if documents else ({}, ((), 0))
    names = tuple(field.encode_name for field in msgspec.structs.fields(Config))
    policy = rules.CHECKED.read(Config, {key: raw[key] for key in raw if key in names}, trail, findings)
    rest = reader.read(own, raw, trail, findings, beside=names)
    findings.settle()
    assert policy is not None, "what is wrong was found"
    assert rest is not None, "what is wrong was found"
    return policy, rest


def a_grace(value: int) -> str | None:
    """What is wrong with the time that work gets to end; None where nothing is."""
    return None if value <= GRACE_MAX else "expected at most 1h: nobody gets the GPUs before it is over"
