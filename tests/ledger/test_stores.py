"""The two stores: they keep the same chain and give the same answers, also across restarts."""

import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import EPOCH, History, cell
from tests.ledger.histories import NODES, PAYERS, RUNS, sound_histories

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.derived_rows import runs_of
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Conflict, Head, LeaseQuery, LeaseRow, Snapshot, Store
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_index import pack_slots, unpack_slots
from fairlease.model.record import key
from fairlease.reason import Reason

AnyStore = MemoryStore | SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with SqliteStore(tmp_path / "ledger.db") as made:
        yield made


def maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


def queries() -> st.SearchStrategy[LeaseQuery]:
    times = st.integers(EPOCH - 5, EPOCH + 300)
    return st.builds(
        LeaseQuery,
        run=maybe(st.sampled_from([*RUNS, key("nobody")])),
        node=maybe(st.sampled_from([*NODES, "nowhere"])),
        owner=maybe(st.sampled_from(["org:ai", "lab"])),
        budget=maybe(st.sampled_from([payer.budget for payer in PAYERS])),
        envelope=maybe(st.sampled_from([payer.envelope for payer in PAYERS])),
        open=maybe(st.booleans()),
        since=maybe(times),
        until=maybe(times),
        limit=maybe(st.integers(0, 3)),
    )


def by_hand(rows: list[LeaseRow], query: LeaseQuery) -> list[LeaseRow]:
    """The answer, from looking at every lease and at every millisecond."""
    found = []
    for row in rows:
        lease = row.lease
        wanted = (query.run, query.node, query.owner, query.budget, query.envelope, query.open)
        had = (lease.run, lease.node, lease.owner, lease.payer.budget, lease.payer.envelope, row.end is None)
        if all(want is None or want == have for want, have in zip(wanted, had, strict=True)):
            end = EPOCH + 3_000 if row.end is None else row.end
            first = max(lease.start, query.since or 0)
            last = min(end, query.until or EPOCH + 4_000)
            timed = query.since is not None or query.until is not None
            if not timed or any(True for _ in range(first, last)):
                found.append(row)
    return found[: query.limit]


@settings(max_examples=60, deadline=None)
@given(sound_histories(), st.lists(queries(), max_size=8), st.integers(0, 30))
def test_memory_and_sqlite_answer_alike_even_after_a_restart(
    history: History, asked: list[LeaseQuery], restart_at: int
) -> None:
    memory = history.into(MemoryStore())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with SqliteStore(path) as first:
            for at, events in history.steps[:restart_at]:
                first.append(first.head().seq, at, events)
        with SqliteStore(path) as sqlite, SqliteStore(path, readonly=True) as reader:
            for at, events in history.steps[restart_at:]:
                sqlite.append(sqlite.head().seq, at, events)
            for disk in (sqlite, reader):
                same_answers(memory, disk, asked)


def same_answers(memory: MemoryStore, disk: SqliteStore, asked: list[LeaseQuery]) -> None:
    assert disk.head() == memory.head()
    assert list(disk.entries()) == list(memory.entries())
    assert list(disk.rows(2)) == list(memory.rows(2))
    everything = list(memory.leases(LeaseQuery()))
    assert [row.lease.serial for row in everything] == list(range(len(everything)))
    for query in [LeaseQuery(), *asked]:
        expected = by_hand(everything, query)
        assert list(memory.leases(query)) == expected, query
        assert list(disk.leases(query)) == expected, query
    for run in RUNS:
        told = [(entry.seq, event) for entry in memory.entries() for event in entry.events if run in runs_of(event)]
        assert [(moment.seq, moment.event) for moment in memory.story(run)] == told
        assert disk.story(run) == memory.story(run)
    for limit in (None, 0, 1, 2):
        assert disk.endings(limit) == memory.endings(limit)


def test_a_store_gives_back_what_it_was_given(store: Store) -> None:
    history = History().world().submits("train").opens("train", cell("n1", 0, 1), cell("n2", 3)).after(1_000)
    history.closes("train", "train-1-0", reason=Reason.RandomPreempt, seed="5eed").after(500).closes("train").ends(
        "train"
    )
    history.into(store)
    first, second = store.leases(LeaseQuery(run=key("train")))
    assert (first.lease.name, first.lease.node, first.lease.slots) == ("train-1-0", "n1", (0, 1))
    assert (first.end, first.closure) == (EPOCH + 1_000, "RandomPreempt(5eed)")
    assert (second.lease.name, second.end, second.closure) == ("train-1-1", EPOCH + 1_500, "Completed")
    assert second.lease.payer.envelope == "main"
    (ending,) = store.endings()
    assert (ending.seq, ending.at, ending.ended.run) == (4, EPOCH + 1_500, key("train"))
    assert [type(moment.event) for moment in store.story(key("train"))] == [
        ev.RunSubmitted, ev.LeasesOpened, ev.LeasesClosed, ev.LeasesClosed, ev.RunEnded,
    ]  # fmt: skip


def test_leases_of_two_attempts_and_namespaces_have_names_of_their_own(store: Store) -> None:
    history = History().world()
    for run in ("a", "a-1", "team/a"):
        history.submits(run).opens(run, cell("n1", *{"a": (0,), "a-1": (1,), "team/a": (2,)}[run]))
    history.after(5).closes("a", reason=Reason.NodeFailure).requeues("a").opens("a", cell("n2", 0), attempt=2)
    history.into(store)
    names = [(row.lease.run, row.lease.name) for row in store.leases(LeaseQuery())]
    assert names == [
        ("default/a", "a-1-0"), ("default/a-1", "a-1-1-0"), ("team/a", "a-1-0"), ("default/a", "a-2-0"),
    ]  # fmt: skip


def test_an_append_behind_another_head_is_a_conflict_and_writes_nothing(store: Store) -> None:
    History().world().into(store)
    before = store.head()
    for expected in (0, 2):
        with pytest.raises(Conflict):
            store.append(expected, EPOCH + 1, ())
    assert store.head() == before
    assert store.append(1, EPOCH + 1, ()).seq == 2


def test_an_append_before_the_last_entry_is_refused(store: Store) -> None:
    History().world().into(store)
    with pytest.raises(ValueError, match="before its predecessor"):
        store.append(1, EPOCH - 1, ())
    assert store.head().seq == 1


def a_snapshot(head: Head, body: bytes) -> Snapshot:
    return Snapshot(seq=head.seq, hash=head.hash, at=head.at, digest=sha256(body).hexdigest(), body=body)


def test_the_latest_snapshot_is_found_and_only_two_are_kept(store: AnyStore) -> None:
    assert store.latest_snapshot() is None
    snapshots = []
    for number in range(4):
        store.append(number, EPOCH + number, ())
        snapshots.append(a_snapshot(store.head(), b"state %d" % number))
        store.save_snapshot(snapshots[-1])
        assert store.latest_snapshot() == snapshots[-1]
    if isinstance(store, SqliteStore):
        kept = [row[0] for row in store._db.execute("SELECT seq FROM snapshot ORDER BY seq")]
        assert kept == [3, 4]


def test_a_snapshot_of_another_ledger_is_not_kept(store: Store) -> None:
    History().world().into(store)
    for strange in (Head(seq=1, hash="f" * 64, at=EPOCH), Head(seq=9, hash=store.head().hash, at=EPOCH)):
        with pytest.raises(ValueError, match="does not belong"):
            store.save_snapshot(a_snapshot(strange, b"state"))


def test_a_snapshot_of_nothing_belongs_to_every_ledger(store: Store) -> None:
    snapshot = a_snapshot(Head(), b"empty")
    store.save_snapshot(snapshot)
    assert store.latest_snapshot() == snapshot


@given(st.lists(st.integers(0, 5_000), max_size=12).map(tuple))
def test_slots_of_any_number_survive_packing_in_their_order(slots: tuple[int, ...]) -> None:
    assert unpack_slots(pack_slots(slots)) == slots
    if all(slot < 128 for slot in slots):
        assert len(pack_slots(slots)) == len(slots)
