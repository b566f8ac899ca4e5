"""Reading what a scheduler is told: one YAML file with two kinds of keys, and nothing in it is required.

The policy of decisions (`notice`, `commitQuantum`, …) becomes part of the ledger; the rest is the backend's own business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

import msgspec

from fairlease.model import rules
from fairlease.model.config import Config
from fairlease.model.document import Findings, load
from fairlease.model.partial import readable
from fairlease.model.reading import Reader, Wrong
from fairlease.model.record import Record

PORT_MAX = 65_535
_ABSOLUTE = "an absolute path: the scheduler works elsewhere than you"

Own = TypeVar("Own", bound=Record)


class BeaconSource(Record, frozen=True, kw_only=True):
    """What to read a public random value from: a file, or what a command prints."""

    file: str | None = None
    command: tuple[str, ...] = ()


class Commands(Protocol):
    """A record that names a command."""

    @property
    def command(self) -> tuple[str, ...]:
        """Its words."""


def read_both(text: str, source: str, own: type[Own], reader: Reader) -> tuple[Config, Own]:
    """The policy, and what the backend reads besides. Raises `Invalid` with all that is wrong with either."""
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


def a_path(value: str) -> str | None:
    """What is wrong with the name of a file; None where nothing is."""
    return None if value.startswith("/") else f"expected {_ABSOLUTE}"


def commands_are_commands(record: Commands) -> Iterator[Wrong]:
    """A command begins with the path of a program, and what is handed to it can be handed over."""
    for index, word in readable(record.command):
        if "\0" in word or (index == 0 and not word.startswith("/")):
            yield Wrong(("command", index), word, f"expected {_ABSOLUTE}" if index == 0 else "holds a NUL")


def a_beacon_has_one_source(source: BeaconSource) -> Iterator[Wrong]:
    """A file or a command."""
    if (source.file is None) == (not source.command):
        yield Wrong((), None, "expected a file or a command, one of the two")
