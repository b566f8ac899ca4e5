"""The audit of a ledger's file: the replay of its entries, and beside it the check of its tables.

The two share nothing but the bytes, so a long ledger is audited by two processes: this one replays, and its child
(`python -m fairlease.ledger.audit.audit_file LEDGER`) checks the tables. The child fixes the moment: it says which entry is the
last that it sees, and the replay goes as far as that. A daemon may go on writing meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from fairlease.ledger.audit.audit import AuditReport, Finding, Progress, scan
from fairlease.ledger.audit.index_check import INDEXES_AGREE, Found, check_indexes
from fairlease.ledger.store.protocol import Head
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_file import Damaged, reading
from fairlease.model.record import Record

_MAPPED = 1 << 36
"""Bytes of the file that the child maps instead of reading them page by page. Where the disk fails, a process that has
mapped a file dies of it; the child may, because then its parent does the work and gets an error that can be told."""

READABLE = "readable"
"""The check that is reported, and fails, where damage keeps all others from being made."""

LONG = 20_000
"""Entries from which on a second process pays: before, it would take longer to start than to do its work."""


def audit_store(store: SqliteStore, progress: Progress | None = None, *, long: int = LONG) -> AuditReport:
    """Audit a file, entries and tables, as of one moment. One that cannot be read to its end fails the audit by that."""
    try:
        report = side_by_side(store, progress) if store.head().seq >= long else None
        return _alone(store, progress) if report is None else report
    except Damaged as error:
        finding = Finding(seq=0, claim=READABLE, objects=(str(store.path),), message=str(error))
        return AuditReport(
            ok=False,
            checks={READABLE: False},
            findings=(finding,),
            findings_total=1,
            entries=0,
            leases=0,
            gpu_ms={},
            head=Head(),
        )


def _alone(store: SqliteStore, progress: Progress | None) -> AuditReport:
    with store.unchanging() as db:
        report = scan(store.rows(), progress)
        with reading(store.path):
            return _joined(report, check_indexes(db, store.rows))


def side_by_side(store: SqliteStore, progress: Progress | None) -> AuditReport | None:
    """None where the child could not do its part, or saw other entries: then one process has to do it all."""
    try:
        child = _start(store.path)
    except OSError:
        return None
    with child:
        assert child.stdout is not None, "it was asked for"
        try:
            head = msgspec.json.decode(child.stdout.readline(), type=Head)
            report = scan(store.rows(upto=head.seq), progress)
            found = msgspec.json.decode(child.stdout.read(), type=Found)
        except msgspec.DecodeError:
            return None
        finally:
            child.kill()
    return _joined(report, found) if report.head == head else None


def _start(ledger: Path) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-P", "-m", __name__, str(ledger))
    return subprocess.Popen(  # noqa: S603 - our own module, and a path that names no program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def _joined(report: AuditReport, found: Found) -> AuditReport:
    """The report with the verdict on the tables; both kept their findings few, so that none crowd out the others."""
    return msgspec.structs.replace(
        report,
        ok=report.ok and not found.total,
        checks=report.checks | {INDEXES_AGREE: not found.total},
        findings=report.findings + found.findings,
        findings_total=report.findings_total + found.total,
    )


def main(ledger: str) -> None:
    """The child: check the tables and say what was found, each answer on a line; stop when nobody waits for it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches parent and child; only one of them should speak.
    parent = os.getppid()

    def keep_on() -> None:
        if os.getppid() != parent:
            sys.exit(1)

    with SqliteStore(ledger, readonly=True) as store, store.unchanging() as db:
        db.execute(f"PRAGMA mmap_size = {_MAPPED}")
        _say(store.head())
        _say(check_indexes(db, store.rows, keep_on))


def _say(answer: Record) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
