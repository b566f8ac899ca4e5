"""What another version of Fairlease wrote: what came before is read, what comes later is not half understood."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
from tests.ledger.keep import FORMATS, entries_of, snapshot_of, states

from fairlease.ledger.audit.audit import scan
from fairlease.ledger.state.state import State
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.protocol import Snapshot
from fairlease.ledger.store.snapshot import FORMAT, derived, freeze, open_up


def folded(number: int) -> State:
    *_, (state, _) = states(entries_of(number))
    return state


@pytest.mark.parametrize("number", FORMATS)
def test_a_ledger_that_an_earlier_version_wrote_is_still_sound(number: int) -> None:
    report = scan(entries_of(number).rows())
    assert report.ok, report.findings


@pytest.mark.parametrize("number", FORMATS)
def test_a_snapshot_of_an_earlier_version_is_the_state_that_its_entries_tell(number: int) -> None:
    state = open_up(snapshot_of(number))
    assert state is not None
    assert told(state, number) == told(folded(number), number)
    assert derived(state) == derived(folded(number))


UNKNOWN_BEFORE: dict[int, tuple[str, ...]] = {4: ("names", "durations", "expected"), 5: ("forecasts",)}
"""By the first format that has it, what earlier snapshots do not tell to the millisecond: when runs ended, and what was learned."""


def told(state: State, number: int) -> object:
    """What a state says, but for what a format did not know."""
    unknown = [name for first, names in UNKNOWN_BEFORE.items() if number < first for name in names]

    def known(value: object) -> object:
        if isinstance(value, dict):
            return {name: known(each) for name, each in value.items() if name not in unknown}
        return [known(each) for each in value] if isinstance(value, list) else value

    return known(msgspec.msgpack.decode(freeze(state)))


def test_what_changes_the_bytes_of_snapshots_is_a_format_of_its_own() -> None:
    assert freeze(folded(FORMAT)) == snapshot_of(FORMAT).body, "raise FORMAT, and run: python -m tests.ledger.keep"


def test_a_snapshot_of_a_later_version_is_passed_over_whatever_it_seems_to_say() -> None:
    taken = snapshot_of(FORMAT)
    body = msgspec.msgpack.encode({**msgspec.msgpack.decode(taken.body), "format": FORMAT + 1})
    later = Snapshot(seq=taken.seq, hash=taken.hash, at=taken.at, digest=sha256(body).hexdigest(), body=body)
    assert open_up(later) is None
    assert not snapshot.readable(later)
