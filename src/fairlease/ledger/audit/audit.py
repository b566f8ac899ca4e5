"""The audit: replays a whole ledger in books of its own and proves what Fairlease promises (SEMANTICS §9).

    chain                      no entry was changed, dropped, inserted or reordered, and time never ran backwards
    onePayerPerGPUSecond       every lease has one payer that exists, and every bill is what its leases give
    payersInOrderOfCover       every payer has the place in the run's order of cover (SEMANTICS §3) that its fund states, by
                               kinship as of that entry; and none paid for a pod (Start, Grow) for which one that comes
                               before it had room, on that very node, after the whole opening
    noSlotDoubled              no two open leases held one slot of one node, save a Borrowed lease on a Spare
    noCapExceededAtAdmission   whenever leases opened (Start, Grow), every term of every payer held
    noLeaseRewritten           every lease opened once, under a run that lived, and closed once, before its run ended

It trusts the bytes and nothing else: not the live state, not the stores' indexes. Where a file has indexes, one more
check (`ledger.audit.index_check`, `indexesAgree`) compares them with the entries; `ledger.audit.audit_file` does both. Who cuts off
entries at the end and what the indexes hold of them leaves no trace; compare the report's `head` with a hash that was
noted elsewhere.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256

import msgspec

from fairlease.ledger.audit.replay import (
    IN_ORDER,
    NO_CAP_EXCEEDED,
    NO_LEASE_REWRITTEN,
    NO_SLOT_DOUBLED,
    ONE_PAYER,
    Replay,
)
from fairlease.ledger.state.events import decode
from fairlease.ledger.store.chain import Row, row_of
from fairlease.ledger.store.protocol import GENESIS, Entry, Head
from fairlease.model.record import Record

CHAIN = "chain"
CHECKS = (CHAIN, ONE_PAYER, IN_ORDER, NO_SLOT_DOUBLED, NO_CAP_EXCEEDED, NO_LEASE_REWRITTEN)
FINDINGS_KEPT = 100
"""More would not be read, and a ledger may hold a million; the report counts them all."""

_PROGRESS_EVERY = 4_096

Progress = Callable[[int], None]
"""Is told now and then how many entries were played."""


class Finding(Record, frozen=True, kw_only=True):
    """One thing that is wrong: in which entry, against which claim, with which objects, and in words."""

    seq: int
    claim: str
    objects: tuple[str, ...]
    message: str


class AuditReport(Record, frozen=True, kw_only=True):
    """What an audit found. `gpu_ms` is what each envelope (by budget, then name) was charged up to the last entry."""

    ok: bool
    checks: dict[str, bool]
    findings: tuple[Finding, ...]
    findings_total: int
    entries: int
    leases: int
    gpu_ms: dict[str, dict[str, int]]
    head: Head


def audit(entries: Iterable[Entry], progress: Progress | None = None) -> AuditReport:
    """Audit entries that were read already. Their bytes are what encoding gives; use `scan` where bytes are stored."""
    return scan(map(row_of, entries), progress)


class _Findings:
    """Keeps the first findings and counts all."""

    def __init__(self) -> None:
        self.seq = 0
        self.total = 0
        self.kept: list[Finding] = []
        self.checks = dict.fromkeys(CHECKS, True)

    def add(self, claim: str, objects: tuple[str, ...], message: str) -> None:
        self.total += 1
        self.checks[claim] = False
        if len(self.kept) < FINDINGS_KEPT:
            self.kept.append(Finding(seq=self.seq, claim=claim, objects=objects, message=message))

    def chain(self, message: str) -> None:
        self.add(CHAIN, (f"entry {self.seq}",), message)


def scan(rows: Iterable[Row], progress: Progress | None = None) -> AuditReport:
    """Audit entries as they lie in a store, byte by byte."""
    findings = _Findings()
    replay = Replay(findings.add)
    plays = replay.plays
    last_seq, last_at, last_hash, count = 0, 0, bytes.fromhex(GENESIS), 0
    with collector_asleep():
        for seq, at, prev, stated, body in rows:
            findings.seq = seq
            if prev != last_hash or seq != last_seq + 1 or at < last_at:
                _unlinked(findings, (last_seq, last_at, last_hash), (seq, at, prev))
            if sha256(b"%b\n%d\n%d\n%b" % (prev.hex().encode(), seq, at, body)).digest() != stated:
                findings.chain(f"the bytes of entry {seq} do not give the hash that it states")
            last_seq, last_at, last_hash = seq, at, stated
            if at > replay.at:  # noqa: PLR1730 - a call of `max` costs more, a million times
                replay.at = at
            try:
                for event in decode(body):
                    plays[type(event)](event)
            except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
                findings.chain(_senseless(seq, error))
            if replay.gone:
                replay.settle_nodes()
            count += 1
            if progress is not None and count % _PROGRESS_EVERY == 0:
                progress(count)
    if progress is not None:
        progress(count)
    head = Head(seq=last_seq, hash=last_hash.hex(), at=last_at)
    return _report(findings, replay, count, head)


def _unlinked(findings: _Findings, last: tuple[int, int, bytes], row: tuple[int, int, bytes]) -> None:
    """Say how an entry does not follow the one before it. The audit goes on from what the entry says."""
    (last_seq, last_at, last_hash), (seq, at, prev) = last, row
    if seq != last_seq + 1:
        findings.chain(f"the entry behind {last_seq} has number {seq}")
    if prev != last_hash:
        findings.chain(f"entry {seq} does not name the hash of the entry before it")
    if at < last_at:
        findings.chain(f"entry {seq} lies at {at}, before its predecessor at {last_at}")


def _senseless(seq: int, error: Exception) -> str:
    """Bytes that make no sense are a finding, not the end of the audit."""
    if isinstance(error, OverflowError):
        return f"entry {seq} leads to numbers that no clock and no machine can give"
    return f"entry {seq} cannot be read: {error}"


def _report(findings: _Findings, replay: Replay, entries: int, head: Head) -> AuditReport:
    gpu_ms: dict[str, dict[str, int]] = {}
    for (budget, envelope), account in sorted(replay.accounts.items()):
        gpu_ms.setdefault(budget, {})[envelope] = account.all.spent_by(replay.at)
    return AuditReport(
        ok=findings.total == 0,
        checks=findings.checks,
        findings=tuple(findings.kept),
        findings_total=findings.total,
        entries=entries,
        leases=replay.leases,
        gpu_ms=gpu_ms,
        head=head,
    )


@contextmanager
def collector_asleep() -> Iterator[None]:
    """A replay makes millions of records and no cycles: looking for those would take a third of the time."""
    was_awake = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_awake:
            gc.enable()
