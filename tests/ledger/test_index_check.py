"""The index of a file says what its entries say, and whoever makes it say something else is found."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.builders import History, cell
from tests.ledger.histories import sound_histories

from fairlease.ledger.audit.audit import CHECKS, AuditReport
from fairlease.ledger.audit.audit_file import audit_store, side_by_side
from fairlease.ledger.audit.index_check import FINDINGS_KEPT, INDEXES_AGREE
from fairlease.ledger.audit.index_proof import proven
from fairlease.ledger.store.protocol import Snapshot
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_file import RECORD
from fairlease.model.amount import HOUR
from fairlease.model.lease import Role


def a_history() -> History:
    """Entries: 1 the world, 2 two leases, 3 one of them closes, 4 the other and its run end, 5 a run that lives on."""
    history = History().world().submits("train").opens("train", cell("n1", 0, 1), cell("n2", 0, role=Role.SPARE))
    history.after(HOUR).closes("train", "train-1-0").after(HOUR).closes("train").ends("train").after(HOUR)
    return history.submits("next").opens("next", cell("n1", 0, 1)).after(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "ledger.db"
    with SqliteStore(made) as store:
        a_history().into(store)
    return made


def audited(path: Path) -> AuditReport:
    with SqliteStore(path, readonly=True) as store:
        return audit_store(store)


def proved_at_once(path: Path) -> bool:
    with SqliteStore(path, readonly=True) as store, store.unchanging() as db:
        return proven(db)


def forge(path: Path, *statements: str) -> None:
    """Change rows without a trace: the triggers are put back as they were."""
    with closing(sqlite3.connect(path)) as db, db:
        triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            assert db.execute(statement).rowcount > 0, statement
        for _, text in triggers:
            db.execute(text)


def test_a_sound_file_agrees_with_its_entries(path: Path) -> None:
    report = audited(path)
    assert report.findings == ()
    assert report.checks == dict.fromkeys((*CHECKS, INDEXES_AGREE), True)


@settings(max_examples=40, deadline=None)
@given(history=sound_histories())
def test_any_sound_history_agrees(tmp_path_factory: pytest.TempPathFactory, history: History) -> None:
    with SqliteStore(tmp_path_factory.mktemp("ledger") / "ledger.db") as store:
        history.into(store)
        assert audit_store(store).findings == ()
        with store.unchanging() as db:
            assert proven(db), "what is sound is proved at once, without the slow comparison"


COLUMNS = {
    "run": "(SELECT id FROM name WHERE text = 'default/next')", "owner": "owner + 1", "opportunistic": "1",
    "attempt": "2", "number": "7", "grp": "3", "rank": "5", "node": "(SELECT id FROM name WHERE text = 'n2')",
    "gpus": "1", "slots": "x'0203'", "role": "'Borrowed'", "start": "start + 1", "payer": "payer + 1", "reason": "'Grow'",
}  # fmt: skip
FORGED = {
    **{
        f"the {column} of a lease": (
            f"UPDATE lease_opened SET {column} = {value} WHERE serial = 0", 2, "train-1-0 has another",  # noqa: S608 - the words are ours
        )
        for column, value in COLUMNS.items()
    },
    "a lease that is gone": ("DELETE FROM lease_opened WHERE serial = 1", 2, "train-1-1 (serial 1) is missing"),
    "a lease too many": (
        f"INSERT INTO lease_opened SELECT 9, {', '.join(COLUMNS)} FROM lease_opened WHERE serial = 0",  # noqa: S608 - the words are ours
        5, "serial 9 that no entry opened",
    ),
    "the time of an end": ("UPDATE lease_closed SET at = at - 1 WHERE serial = 0", 3, "train-1-0 ended with"),
    "the reason of an end": ("UPDATE lease_closed SET closure = 'Canceled' WHERE serial = 1", 4, "says Canceled at"),
    "an end that is gone": ("DELETE FROM lease_closed WHERE serial = 0", 3, "train-1-0 was closed, but"),
    "an end too many": ("INSERT INTO lease_closed VALUES (2, 5, 'Completed')", 5, "next-1-0 ended with Completed"),
    "an end of no lease": ("INSERT INTO lease_closed VALUES (8, 5, 'Completed')", 5, "lease_closed has serial 8"),
    "an open lease that is not listed": ("DELETE FROM lease_open WHERE serial = 2", 5, "or as neither"),
    "a closed lease listed as open": ("INSERT INTO lease_open VALUES (0)", 2, "as open and as closed"),
    "an open lease that is none": ("INSERT INTO lease_open VALUES (8)", 5, "lease_open has serial 8"),
    "the envelope of a payer": ("UPDATE payer SET envelope = 'other'", 2, "default/ai main org:ai owned is missing"),
    "the budget of a payer": ("UPDATE payer SET budget = 'default/b'", 2, "default/ai main org:ai owned is missing"),
    "the owner of a payer": ("UPDATE payer SET owner = 'org:b'", 2, "default/ai main org:ai owned is missing"),
    "the fund of a payer": ("UPDATE payer SET fund = 'shared'", 2, "default/ai main org:ai owned is missing"),
    "a payer too many": ("INSERT INTO payer VALUES (9, 'default/b', 'e', 'o', 'owned')", 5, "which no entry names"),
    "a name": ("UPDATE name SET text = 'n9' WHERE text = 'n1'", 2, "the name n1 is missing"),
    "a name too many": ("INSERT INTO name VALUES (99, 'default/ghost')", 5, "has default/ghost, which no entry names"),
    "a story that is gone": ("DELETE FROM story WHERE seq = 3", 3, "entry 3 names default/train, but"),
    "a story too many": (
        "INSERT INTO story SELECT run, 5, NULL, NULL FROM story WHERE seq = 3", 5, "lets entry 5 name default/train",
    ),
    "the leases of a story": ("UPDATE story SET last = 0 WHERE seq = 2", 2, "gives default/train other leases"),
    "the entry of a story": ("UPDATE story SET seq = 7 WHERE seq = 3", 7, "knows entry 7, which is not there"),
    "an end of a run that is gone": ("DELETE FROM ended", 4, "default/train ended, but"),
    "the entry of an end": ("UPDATE ended SET seq = 3", 4, "another row for the end of default/train"),
    "the run of an end": ("UPDATE ended SET run = run + 1", 4, "another row for the end of default/train"),
    "an end of a run too many": ("INSERT INTO ended SELECT 1, run, 5 FROM ended", 5, "that no entry tells of"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_row_is_found(what: str, path: Path) -> None:
    statement, seq, says = FORGED[what]
    forge(path, statement)
    report = audited(path)
    assert not proved_at_once(path)
    assert not report.ok
    assert [name for name, held in report.checks.items() if not held] == [INDEXES_AGREE]
    assert any(each.seq == seq and says in each.message for each in report.findings), report.findings
    assert {each.claim for each in report.findings} == {INDEXES_AGREE}
    assert report.findings_total == len(report.findings)


def test_names_that_changed_places_are_found(path: Path) -> None:
    swap = "UPDATE name SET text = '{}' WHERE text = '{}'"
    forge(path, swap.format("x", "n1"), swap.format("n1", "n2"), swap.format("n2", "x"))
    first, second, *_ = (each.message for each in audited(path).findings)
    assert "train-1-0 has another node" in first
    assert "train-1-1 has another node" in second


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_entries_that_were_cut_off_at_the_end_are_found(kept: int, path: Path) -> None:
    forge(path, f"DELETE FROM entry WHERE seq > {kept}")  # noqa: S608 - a number of ours
    report = audited(path)
    assert report.head.seq == kept
    assert report.checks["chain"]
    assert not report.checks[INDEXES_AGREE]
    assert any("cut short" in each.message and each.seq == 5 for each in report.findings), report.findings


def test_a_snapshot_behind_the_last_entry_is_found(path: Path) -> None:
    with SqliteStore(path) as store:
        head = store.head()
        digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        store.save_snapshot(Snapshot(seq=head.seq, hash=head.hash, at=head.at, digest=digest, body=b"{}"))
    assert audited(path).ok
    forge(path, "UPDATE snapshot SET seq = 6")
    assert [(each.seq, each.claim) for each in audited(path).findings] == [(6, INDEXES_AGREE)]
    forge(path, "UPDATE snapshot SET seq = 3")
    assert ["another hash" in each.message for each in audited(path).findings] == [True]
    forge(path, "UPDATE snapshot SET seq = 5, body = x'00'")
    assert ["its digest" in each.message for each in audited(path).findings] == [True]


TRIGGERS = ["entry_follows", *(f"{table}_{what}" for table in RECORD for what in ("kept", "stays", "once"))]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_trigger_that_is_gone_is_found(trigger: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"DROP TRIGGER {trigger}")
    assert [each.message for each in audited(path).findings] == [f"the trigger {trigger} is missing"]


def test_a_trigger_that_was_weakened_or_added_is_found(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TRIGGER payer_kept")
        db.execute("CREATE TRIGGER payer_kept BEFORE UPDATE ON payer BEGIN SELECT 1; END")
        db.execute("CREATE TRIGGER mine AFTER INSERT ON name BEGIN SELECT 1; END")
    assert [each.message for each in audited(path).findings] == [
        "the trigger payer_kept is not as Fairlease makes it", "the trigger mine is not Fairlease's",
    ]  # fmt: skip


def test_a_table_that_is_gone_is_a_finding_and_not_the_end(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE story")
    messages = [each.message for each in audited(path).findings]
    assert "the table story is missing" in messages
    assert messages[-1] == "the index cannot be read: no such table: story"


def test_a_flood_of_forged_rows_is_cut(path: Path) -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)"
    forge(path, f"INSERT INTO name {many} SELECT i + 1000, 'ghost-' || i FROM n")  # noqa: S608 - the words are ours
    report = audited(path)
    assert len(report.findings) == FINDINGS_KEPT
    assert report.findings_total > FINDINGS_KEPT


def test_a_writer_may_go_on_while_its_file_is_audited(path: Path) -> None:
    with SqliteStore(path) as writer, SqliteStore(path, readonly=True) as reader:
        with reader.unchanging():
            before = reader.head()
            writer.append(before.seq, before.at, ())
            assert reader.head() == before
        assert reader.head().seq == before.seq + 1


def test_a_file_that_numbers_its_names_in_another_way_agrees_too(path: Path) -> None:
    assert proved_at_once(path)
    shifted = [
        ("name", "id"),
        ("story", "run"),
        ("ended", "run"),
        *(("lease_opened", each) for each in ("run", "owner", "node")),
    ]
    forge(path, *(f"UPDATE {table} SET {column} = {column} + 1000" for table, column in shifted))  # noqa: S608 - the words are ours
    assert not proved_at_once(path)
    assert audited(path).findings == ()


@pytest.mark.parametrize("what", [None, "the gpus of a lease", "the entry of a story"])
def test_two_processes_find_what_one_finds(what: str | None, path: Path) -> None:
    if what is not None:
        forge(path, FORGED[what][0])
    with SqliteStore(path, readonly=True) as store:
        assert side_by_side(store, None) == audit_store(store)
        assert audit_store(store, long=1) == audit_store(store)


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/python"])
def test_an_audit_whose_second_process_fails_is_done_by_one(
    program: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with SqliteStore(path, readonly=True) as store:
        assert side_by_side(store, None) is None
        assert audit_store(store, long=1).checks[INDEXES_AGREE]
