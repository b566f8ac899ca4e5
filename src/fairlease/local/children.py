"""Long work beside the loop: the audit in a process of its own, exports and logs in a thread. The ledger is opened read-only."""

from __future__ import annotations

import asyncio
import csv
import io
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.ledger.sqlite import SqliteStore
from fairlease.local.protocol import Fault, fault
from fairlease.local.server import Refused
from fairlease.model.amount import format_instant, gpu_hours
from fairlease.model.lease import Role
from fairlease.model.record import split

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairlease.ledger.store import LeaseQuery, LeaseRow

AUDIT_S = 3_600.0
LOG_PART = 1 << 20
EXPORT_BYTES_MAX = 64 * 1024 * 1024

_LEASE_HEAD = (
    "lease", "namespace", "run", "owner", "attempt", "group", "rank", "role", "node", "slots", "gpus", "start", "end", "closure",
    "budget", "envelope", "payer", "class", "reason", "gpuHours",
)  # fmt: skip
_CHARGE_HEAD = ("namespace", "run", "owner", "budget", "envelope", "payer", "class", "leases", "gpuHours")


async def audit_report(ledger: Path) -> dict[str, Any]:
    """Run the audit as a child, gently, and give its report."""
    command = (sys.executable, "-m", "fairlease.local.audit_child", str(ledger))
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(AUDIT_S):
            out, err = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode != 0:
        said = err.decode(errors="replace").strip().splitlines()
        raise Refused(fault(Fault.Broken, f"the audit could not be done: {said[-1] if said else child.returncode}"))
    report: dict[str, Any] = msgspec.json.decode(out)
    return report


def read_part(path: str, offset: int) -> bytes:
    """The next part of a log; nothing where there is none yet."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain read at an offset
            file.seek(offset)
            return file.read(LOG_PART)
    except FileNotFoundError:
        return b""


def export_csv(ledger: Path, what: str, query: LeaseQuery, now: int) -> dict[str, Any]:
    """Leases, or what each payer was charged for each run, as CSV text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head, make = (_LEASE_HEAD, _lease_rows) if what == "leases" else (_CHARGE_HEAD, _charge_rows)
    writer.writerow(head)
    count = 0
    with SqliteStore(ledger, readonly=True) as store:
        for row in make(store.leases(query), now):
            writer.writerow(row)
            count += 1
            if out.tell() > EXPORT_BYTES_MAX:
                raise Refused(
                    fault(Fault.TooLarge, "the export is too large for one answer; ask for less with since and until")
                )
    return {"csv": out.getvalue(), "rows": count}


def _lease_rows(rows: Iterator[LeaseRow], now: int) -> Iterator[tuple[object, ...]]:
    for row in rows:
        lease, payer = row.lease, row.lease.payer
        yield (
            lease.name, *split(lease.run), lease.owner, lease.attempt, lease.group, lease.rank, lease.role.value, lease.node,
            " ".join(map(str, lease.slots)), lease.gpus, format_instant(lease.start),
            "" if row.end is None else format_instant(row.end), row.closure or "", payer.budget, payer.envelope, payer.owner,
            payer.fund.value, lease.reason.value, gpu_hours(_spent(row, now)),
        )  # fmt: skip


def _charge_rows(rows: Iterator[LeaseRow], now: int) -> Iterator[tuple[object, ...]]:
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        lease, payer = row.lease, row.lease.payer
        kind = "spare" if lease.role is Role.SPARE else payer.fund.value
        key = (lease.run, lease.owner, payer.budget, payer.envelope, payer.owner, kind)
        total = sums.setdefault(key, [0, 0])
        total[0] += 1
        total[1] += _spent(row, now)
    for (run, *rest), (leases, spent) in sums.items():
        namespace, _, name = run.partition("/")
        yield (namespace, name, *rest, leases, gpu_hours(spent))


def _spent(row: LeaseRow, now: int) -> int:
    return row.lease.gpus * ((now if row.end is None else row.end) - row.lease.start)
