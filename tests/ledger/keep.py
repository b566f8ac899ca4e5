"""A ledger and its snapshot for every format of snapshots there was: what was written then must be read for ever.

python -m tests.ledger.keep     writes those of the present format, once: after `FORMAT` (store/snapshot.py) has got a new number
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from fairlease.kube.ledger.archive import Archive
from fairlease.ledger.state.events import decode
from fairlease.ledger.state.state import State
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Entry, Head, Snapshot
from fairlease.sim.random.play import RandomFilm

KEPT = Path(__file__).resolve().parent / "kept"
FORMATS = range(1, snapshot.FORMAT + 1)
SEEDS, STEPS, ENTRIES_MAX = 40, 60, 200


def entries_of(number: int) -> MemoryStore:
    """The ledger that was kept with a format."""
    rows = Archive(KEPT / str(number)).rows()
    return MemoryStore.of(
        Entry(seq=seq, at=at, prev=prev.hex(), hash=sealed.hex(), events=decode(body))
        for seq, at, prev, sealed, body in rows
    )


def snapshot_of(number: int) -> Snapshot:
    """The snapshot that was taken of it then."""
    body = zlib.decompress(base64.b64decode((KEPT / str(number) / "snapshot").read_bytes()))
    head = entries_of(number).head()
    return Snapshot(seq=head.seq, hash=head.hash, at=head.at, digest=sha256(body).hexdigest(), body=body)


def states(store: MemoryStore) -> Iterator[tuple[State, Head]]:
    """What a ledger came to, entry by entry."""
    state = State()
    for entry in store.entries():
        for event in entry.events:
            state.apply(entry.at, event)
        state.settled()
        yield state, Head(seq=entry.seq, hash=entry.hash, at=entry.at)


def richness(state: State) -> int:
    """How much of what a state can hold it does hold."""
    runs = list(state.runs.values())
    found = (
        any(run.hold for run in runs),
        any(run.foreseen for run in runs),
        any(run.overdrawn for run in runs),
        any(run.sponsors for run in runs),
        any(run.displaced_by for run in runs),
        any(run.not_before for run in runs),
        any(run.stalled for run in runs),
        any(run.failures for run in runs),
        any(run.by for run in runs),
        any(each.failed for each in state.capacity.nodes.values()),
        any(each.not_ready_since is not None for each in state.capacity.nodes.values()),
        any(lease.role.value == "Spare" for run in runs for lease in run.leases.values()),
        any(lease.role.value == "Borrowed" for run in runs for lease in run.leases.values()),
        bool(state.outcomes),
        bool(state.ended),
        bool(state.queue.shapes),
    )
    return sum(found)


def _filmed(seed: int) -> MemoryStore:
    film = RandomFilm(seed)
    film.open()
    for _ in range(STEPS):
        film.play()
    return film.store


def _write() -> None:
    folder = KEPT / str(snapshot.FORMAT)
    assert not folder.exists(), f"{folder} was kept for good; what changes the bytes of snapshots needs a new FORMAT"
    found = [
        (richness(state), -head.seq, seed)
        for seed in range(SEEDS)
        for state, head in states(_filmed(seed))
        if head.seq <= ENTRIES_MAX
    ]
    score, negative, seed = max(found)
    store, last = _filmed(seed), -negative
    body = next(snapshot.freeze(state) for state, head in states(store) if head.seq == last)
    Archive(folder).add([row for row in store.rows() if row[0] <= last])
    (folder / "snapshot").write_bytes(base64.b64encode(zlib.compress(body, 9)))
    print(f"{folder}: {last} entries of film {seed}, in which {score} kinds of things are at the end")


if __name__ == "__main__":
    _write()
