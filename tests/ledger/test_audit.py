"""The audit: it finds every offence in the table, in the right entry, and nothing in what is sound."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from tests.builders import EPOCH, History, a_node, cell
from tests.ledger.histories import sound_histories
from tests.ledger.offences import OFFENCES, SOUND, running

from fairlease.ledger.audit.audit import CHECKS, FINDINGS_KEPT, audit, scan
from fairlease.ledger.store import chain
from fairlease.ledger.store.export import charged
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.model.amount import HOUR


def forge(path: Path, rows: Iterable[chain.Row]) -> None:
    """What somebody with the file and a shell can do: drop the triggers and write other entries."""
    with closing(sqlite3.connect(path)) as db, db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DELETE FROM entry")
        for seq, at, prev, stated, body in rows:
            db.execute(
                "INSERT INTO entry (seq, at, prev, hash, body) VALUES (?, ?, ?, ?, ?)", (seq, at, prev, stated, body)
            )


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    """A sound ledger, which tests then forge."""
    path = tmp_path / "ledger.db"
    with SqliteStore(path) as store:
        running().closes("a").ends("a").into(store)
    return path


@pytest.mark.parametrize("offence", OFFENCES)
def test_an_offence_is_found_even_under_a_flawless_chain(offence: str, forged: Path) -> None:
    made, claim, says = OFFENCES[offence]
    history = made()
    forge(forged, history.rows())
    with SqliteStore(forged, readonly=True) as store:
        report = scan(store.rows())
    assert not report.ok
    assert not report.checks[claim], report.findings
    assert report.checks["chain"]
    matching = [finding for finding in report.findings if finding.claim == claim and says in finding.message]
    assert matching, report.findings
    assert matching[0].seq == len(history.steps), "the last entry is the one that offends"
    assert matching[0].objects
    assert audit(history.entries()) == report


@pytest.mark.parametrize("case", SOUND)
def test_what_is_sound_is_not_complained_about(case: str) -> None:
    report = audit(SOUND[case]().entries())
    assert report.findings == ()
    assert report.ok
    assert report.checks == dict.fromkeys(CHECKS, True)


TAMPERING = {
    "a letter of a body": (
        "UPDATE entry SET body = CAST(replace(body, 'org:ai', 'org:bi') AS BLOB) WHERE seq = 2", 2, "bytes of entry 2",
    ),
    "a body that is no longer JSON": ("UPDATE entry SET body = x'5b7b' WHERE seq = 2", 2, "cannot be read"),
    "a body that is no longer text": ("UPDATE entry SET body = x'5b22ff225d' WHERE seq = 2", 2, "cannot be read"),
    "a hash": ("UPDATE entry SET hash = zeroblob(32) WHERE seq = 2", 2, "do not give the hash"),
    "a hash cut short": ("UPDATE entry SET hash = x'00' WHERE seq = 2", 2, "do not give the hash"),
    "the name of the predecessor": ("UPDATE entry SET prev = zeroblob(32) WHERE seq = 2", 2, "does not name the hash"),
    "a number": ("UPDATE entry SET seq = 7 WHERE seq = 3", 7, "the entry behind 2 has number 7"),
    "a time": ("UPDATE entry SET at = at + 1 WHERE seq = 2", 2, "do not give the hash"),
    "a time that runs backwards": ("UPDATE entry SET at = 5 WHERE seq = 3", 3, "before its predecessor"),
    "a time beyond all clocks": ("UPDATE entry SET at = 9223372036854775807 WHERE seq = 3", 3, "no clock"),
    "an entry that is gone": ("DELETE FROM entry WHERE seq = 2", 3, "the entry behind 1 has number 3"),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERING)
def test_tampering_with_the_file_is_found(what: str, forged: Path) -> None:
    statement, seq, says = TAMPERING[what]
    with SqliteStore(forged, readonly=True) as store:
        forge(forged, list(store.rows()))
    with closing(sqlite3.connect(forged)) as db, db:
        assert db.execute(statement).rowcount == 1
    with SqliteStore(forged, readonly=True) as store:
        report = scan(store.rows())
    assert not report.ok
    assert not report.checks["chain"]
    assert (seq, True) in [(finding.seq, says in finding.message) for finding in report.findings], report.findings


def test_time_that_runs_backwards_is_found_under_renewed_hashes() -> None:
    rows = running().closes("a").after(5).submits("b").rows()
    seq, at, prev, _, body = rows[2]
    renewed = bytes.fromhex(chain.entry_hash(prev.hex(), seq, at - HOUR - 1, body))
    rows[2] = (seq, at - HOUR - 1, prev, renewed, body)
    report = scan(rows[:3])
    assert [finding.message for finding in report.findings] == [
        f"entry 3 lies at {EPOCH - 1}, before its predecessor at {EPOCH}"
    ]


@settings(max_examples=80, deadline=None)
@given(sound_histories())
def test_any_sound_history_is_proved_and_charged_to_the_millisecond(history: History) -> None:
    store = history.into(MemoryStore())
    report = scan(store.rows())
    assert report.findings == ()
    rows = list(store.leases(LeaseQuery()))
    assert (report.entries, report.leases, report.head) == (store.head().seq, len(rows), store.head())
    sums: dict[str, dict[str, int]] = {budget: dict.fromkeys(names, 0) for budget, names in report.gpu_ms.items()}
    for row in rows:
        payer = row.lease.payer
        sums[payer.budget][payer.envelope] += charged(row, store.head().at)
    assert report.gpu_ms == sums


def test_a_flood_of_findings_is_counted_and_cut() -> None:
    history = running()
    for _ in range(FINDINGS_KEPT + 50):
        history.closes("a", "a-1-7").after(1)
    report = audit(history.entries())
    assert len(report.findings) == FINDINGS_KEPT
    assert report.findings_total == FINDINGS_KEPT + 50


def test_progress_is_told_and_ends_with_all_entries() -> None:
    told: list[int] = []
    history = History().world()
    for _ in range(10_000):
        history.node(a_node()).after(1)
    report = audit(history.entries(), told.append)
    assert told == sorted(told)
    assert len(told) > 2
    assert told[-1] == report.entries == 10_001


def test_an_empty_ledger_holds_every_claim() -> None:
    report = audit([])
    assert report.ok
    assert (report.entries, report.leases, report.gpu_ms) == (0, 0, {})


def test_a_report_can_be_written_as_json() -> None:
    report = audit(running().opens("a", cell("n1", 0)).entries())
    again = msgspec.json.decode(msgspec.json.encode(report), type=type(report))
    assert again == report
    assert not again.ok
    assert again.gpu_ms == {"default/ai": {"main": 4 * HOUR}}
