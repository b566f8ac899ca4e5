"""The ledger's file on a real disk: crashes, second writers, readers, full disks, and hands that try to change it."""

import fcntl
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from tests.builders import EPOCH, History, cell

from fairlease.ledger.audit.audit import scan
from fairlease.ledger.store import chain
from fairlease.ledger.store.protocol import Conflict, LeaseQuery, Snapshot
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_file import FORMAT, RECORD, CannotOpen
from fairlease.model.record import key
from fairlease.reason import Reason

ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from bench.ledger import steps, world
from fairlease.ledger.store.sqlite import SqliteStore
with SqliteStore(sys.argv[1]) as store:
    if store.head().seq == 0:
        store.append(0, *world())
    done = store.head().seq - 1
    for number, (at, events) in enumerate(steps(100_000, apart=True)):
        if number >= done:
            entry = store.append(number + 1, at, events)
            print(entry.seq, entry.hash, flush=True)
"""


def a_history() -> History:
    history = History().world().submits("train").opens("train", cell("n1", 0, 1), cell("n2", 0, 1)).after(1_000)
    return history.closes("train", "train-1-0").after(1_000).closes("train").ends("train").after(1_000).submits("next")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path) as made:
        yield a_history().into(made)


def write_in_a_child(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def indexes_agree(store: SqliteStore) -> None:
    """Every index row has its entry and every entry its index rows: replaying into a fresh file gives the same tables."""
    tables = [*RECORD, "lease_open"]
    with SqliteStore(store.path.with_name("again.db")) as again:
        for entry in store.entries():
            again.append(again.head().seq, entry.at, entry.events)
        for table in tables:
            rows = f"SELECT * FROM {table}"  # noqa: S608 - a name from our own schema
            assert sorted(again._db.execute(rows)) == sorted(store._db.execute(rows)), table
    for leftover in store.path.parent.glob("again.db*"):
        leftover.unlink()


@pytest.mark.parametrize("seed", range(4))
def test_a_writer_killed_at_any_moment_leaves_whole_entries_only(path: Path, seed: int) -> None:
    random.seed(seed)
    told: list[str] = []
    for _ in range(3):
        with write_in_a_child(path) as child:
            assert child.stdout is not None
            told.append(child.stdout.readline())
            told += [child.stdout.readline() for _ in range(random.randrange(60))]
            time.sleep(random.random() / 200)
            child.send_signal(signal.SIGKILL)
            told += child.stdout.readlines()
        assert child.returncode == -signal.SIGKILL
        with SqliteStore(path) as store:
            assert chain.verify(store.rows()) is None
            assert scan(store.rows()).ok
            indexes_agree(store)
            hashes = {entry.seq: entry.hash for entry in store.entries()}
            for line in told:
                if line.endswith("\n"):
                    seq, stated = line.split()
                    assert hashes[int(seq)] == stated, "what was acknowledged is there, for good"


def test_a_second_writer_is_told_who_holds_the_ledger(path: Path) -> None:
    with write_in_a_child(path) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(CannotOpen, match=f"is being written by process {child.pid}"):
            SqliteStore(path)
        child.kill()
        child.stdout.read()
    with SqliteStore(path) as store:
        assert store.head().seq > 1


def test_a_second_writer_in_one_process_is_refused_too(store: SqliteStore) -> None:
    with pytest.raises(CannotOpen, match=f"process {os.getpid()}"):
        SqliteStore(store.path)


def test_a_writer_that_got_past_the_lock_meets_a_conflict(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    head = store.head()
    with SqliteStore(store.path) as other:
        other.append(head.seq, EPOCH + 9_000, ())
        with pytest.raises(Conflict):
            store.append(head.seq, EPOCH + 9_000, ())
        assert store.head() == other.head(), "it knows the true head now, and can step down"
        assert chain.verify(other.rows()) is None


def test_a_reader_sees_a_writer_at_work(store: SqliteStore) -> None:
    with SqliteStore(store.path, readonly=True) as reader:
        assert reader.head() == store.head()
        store.append(store.head().seq, EPOCH + 9_000, ())
        assert reader.head() == store.head()
        with pytest.raises(PermissionError):
            reader.append(reader.head().seq, EPOCH + 9_000, ())
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.save_snapshot(Snapshot(seq=0, hash="0" * 64, at=0, digest="00" * 32, body=b""))


def test_a_reader_that_pauses_does_not_stop_the_writer(store: SqliteStore) -> None:
    with SqliteStore(store.path, readonly=True) as reader:
        entries, leases = reader.entries(), reader.leases(LeaseQuery())
        next(entries)
        next(leases)
        seq = store.append(store.head().seq, EPOCH + 9_000, ()).seq
        assert [entry.seq for entry in entries][-1] <= seq
        assert len(list(leases)) == 1


def test_a_ledger_where_nothing_may_be_written_can_be_read(path: Path, tmp_path: Path) -> None:
    with SqliteStore(path) as store:
        head = a_history().into(store).head()
    script = (
        "import sys; from fairlease.ledger.store.sqlite import SqliteStore\n"
        "with SqliteStore(sys.argv[1], readonly=True) as store: print(store.head().hash)"
    )
    command = [sys.executable, "-c", script, str(path)]
    if os.geteuid() == 0:  # whom no permission stops: a read-only mount of its own does
        shell = f'mount --bind "{tmp_path}" "{tmp_path}" && mount -o remount,ro,bind "{tmp_path}" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", shell, "sh", *command]
    tmp_path.chmod(0o555)
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    tmp_path.chmod(0o755)
    if said.stderr.startswith(("unshare:", "mount:")):
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"no mounts here: {said.stderr}")
    assert said.stdout.strip() == head.hash, said.stderr


def test_a_reader_without_a_ledger_is_told_so(path: Path) -> None:
    with pytest.raises(CannotOpen, match="there is no ledger"):
        SqliteStore(path, readonly=True)
    assert not path.exists(), "reading makes nothing"


def test_a_writer_without_a_folder_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="No such file"):
        SqliteStore(tmp_path / "nowhere" / "ledger.db")


@pytest.mark.parametrize("readonly", [True, False])
def test_a_file_of_another_kind_is_left_alone(path: Path, readonly: bool) -> None:
    path.write_bytes(b"this is no database, it is a letter to a friend" * 100)
    before = path.read_bytes()
    with pytest.raises(CannotOpen, match="not a database"):
        SqliteStore(path, readonly=readonly)
    assert path.read_bytes() == before


@pytest.mark.parametrize("readonly", [True, False])
def test_a_database_of_another_program_is_left_alone(path: Path, readonly: bool) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipe (name TEXT)")
    with pytest.raises(CannotOpen, match="is no ledger of Fairlease"):
        SqliteStore(path, readonly=readonly)


@pytest.mark.parametrize("readonly", [True, False])
def test_a_newer_format_is_named_and_not_touched(store: SqliteStore, readonly: bool) -> None:
    store._db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    store.close()
    with pytest.raises(CannotOpen, match=f"has format {FORMAT + 1}; this Fairlease reads up to {FORMAT}"):
        SqliteStore(store.path, readonly=readonly)
    with closing(sqlite3.connect(store.path)) as db:
        assert db.execute("SELECT count(*) FROM entry").fetchone() == (5,)


@pytest.mark.parametrize("table", RECORD)
def test_no_row_of_the_record_can_be_changed_deleted_or_replaced(store: SqliteStore, table: str) -> None:
    with closing(sqlite3.connect(store.path)) as stranger:
        before = stranger.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - a name from our own schema
        assert before, "there is something to protect"
        (column, *_), marks = (
            [row[1] for row in stranger.execute(f"PRAGMA table_info({table})")],
            "?, " * len(before[0]),
        )
        for statement in (
            f"UPDATE {table} SET {column} = {column}",  # noqa: S608 - the same
            f"DELETE FROM {table}",  # noqa: S608 - the same
            f"INSERT OR REPLACE INTO {table} VALUES ({marks[:-2]})",  # noqa: S608 - the same
        ):
            with pytest.raises(sqlite3.IntegrityError, match=f"{table} is never"):
                stranger.execute(statement, before[0] if "?" in statement else ())
        assert stranger.execute(f"SELECT * FROM {table}").fetchall() == before  # noqa: S608 - the same


def test_an_entry_that_follows_nothing_cannot_be_inserted(store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.path)) as stranger:
        for seq in (6, 9):
            with pytest.raises(sqlite3.IntegrityError, match="follows the one before it"):
                stranger.execute("INSERT INTO entry VALUES (?, 0, x'00', x'00', x'00')", (seq,))


def test_a_full_disk_leaves_nothing_half_written(store: SqliteStore) -> None:
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages + 3}")
    history = History(EPOCH + 9_000)
    for number in range(100):
        history.submits(f"more-{number}").after(1)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        history.into(store)
    written = store.head().seq
    assert written == sum(1 for _ in store.rows())
    for at, events in history.steps[-3:]:
        with pytest.raises(sqlite3.OperationalError, match="full"):
            store.append(written, at, events)
    assert store.head().seq == written
    indexes_agree(store)
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.append(written, EPOCH + 20_000, ()).seq == written + 1, "it goes on when there is room again"
    assert chain.verify(store.rows()) is None


def test_a_ledger_locked_by_another_program_fails_whole_and_recovers(store: SqliteStore) -> None:
    store._db.execute("PRAGMA busy_timeout = 0")
    head = store.head()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            store.append(head.seq, EPOCH + 9_000, ())
        assert store.head() == head
        stranger.execute("ROLLBACK")
    assert store.append(head.seq, EPOCH + 9_000, ()).prev == head.hash


def test_events_that_make_no_sense_are_refused_and_leave_no_trace(store: SqliteStore) -> None:
    head = store.head()
    for nonsense in (
        History().closes("next", "next-1-0"),
        History().opens("nobody", cell("n1", 0)),
        History().opens("next", cell("n9", 3)).closes("next", "next-1-7"),
    ):
        with pytest.raises(ValueError, match=r"not open|never submitted"):
            store.append(head.seq, EPOCH + 9_000, nonsense.after(0).steps[0][1])
        assert store.head() == head
        indexes_agree(store)
    assert not list(store.leases(LeaseQuery(node="n9")))


def test_a_writer_knows_open_leases_again_after_a_restart(path: Path) -> None:
    with SqliteStore(path) as store:
        History().world().submits("train").opens("train", cell("n1", 0), cell("n1", 1)).into(store)
    with SqliteStore(path) as store:
        later = History(EPOCH + 5).closes("train", "train-1-1", reason=Reason.Shrink)
        later.after(5).opens("train", cell("n2", 0, number=2), reason=Reason.Grow).after(5).closes("train").ends(
            "train"
        )
        later.into(store)
        rows = [(row.lease.name, row.lease.owner, row.end) for row in store.leases(LeaseQuery(run=key("train")))]
        ends = [("train-1-0", EPOCH + 15), ("train-1-1", EPOCH + 5), ("train-1-2", EPOCH + 15)]
        assert rows == [(name, "org:ai", end) for name, end in ends]
        assert not list(store.leases(LeaseQuery(open=True)))


def test_a_damaged_snapshot_falls_back_on_the_one_before(store: SqliteStore) -> None:
    saved = []
    for entry in list(store.entries())[:2]:
        body = b"state %d" % entry.seq
        digest = sha256(body).hexdigest()
        saved.append(Snapshot(seq=entry.seq, hash=entry.hash, at=entry.at, digest=digest, body=body))
        store.save_snapshot(saved[-1])
    assert store.latest_snapshot() == saved[1]
    store._db.execute("UPDATE snapshot SET body = x'00' WHERE seq = 2")
    assert store.latest_snapshot() == saved[0]
    store._db.execute("UPDATE snapshot SET hash = zeroblob(32) WHERE seq = 1")
    assert store.latest_snapshot() is None


def test_bodies_lie_on_the_disk_as_the_bytes_that_were_hashed(store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.path)) as stranger:
        rows = stranger.execute("SELECT seq, at, hex(prev), hex(hash), body FROM entry ORDER BY seq").fetchall()
    for seq, at, prev, stated, body in rows:
        assert sha256(f"{prev.lower()}\n{seq}\n{at}\n".encode() + body).hexdigest() == stated.lower()


def test_strangers_can_read_leases_as_plain_words(store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.path)) as stranger:
        rows = stranger.execute(
            "SELECT run, node, gpus, budget, envelope, fund, end - start, closure FROM lease"
        ).fetchall()
    assert rows == [
        ("default/train", "n1", 2, "default/ai", "main", "owned", 1_000, "Completed"),
        ("default/train", "n2", 2, "default/ai", "main", "owned", 2_000, "Completed"),
    ]


@pytest.mark.parametrize(
    "query",
    [
        LeaseQuery(run=key("train")),
        LeaseQuery(node="n1"),
        LeaseQuery(owner="org:ai"),
        LeaseQuery(budget=key("ai"), envelope="main"),
        LeaseQuery(open=True),
        LeaseQuery(since=EPOCH + 500),
        LeaseQuery(node="n1", since=EPOCH, until=EPOCH + 900),
    ],
    ids=str,
)
def test_every_question_about_leases_is_led_by_an_index(store: SqliteStore, query: LeaseQuery) -> None:
    seen: list[str] = []
    store._db.set_trace_callback(seen.append)
    found = list(store.leases(query))
    store._db.set_trace_callback(None)
    assert found or query.open
    asked = next(text for text in seen if text.startswith("SELECT o.serial"))
    plan = [row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {asked}")]
    scans = [step for step in plan if step.startswith("SCAN") and step not in ("SCAN q", "SCAN lease_open")]
    assert not scans, plan


def test_a_copy_made_while_nobody_writes_is_a_whole_ledger(store: SqliteStore, tmp_path: Path) -> None:
    head = store.head()
    store.close()
    copied = shutil.copy(store.path, tmp_path / "copy.db")
    with SqliteStore(copied, readonly=True) as copy:
        assert copy.head() == head
        assert scan(copy.rows()).ok
