"""Long work beside the loop: the audit in a process of its own, exports and logs in a thread. The ledger is opened read-only."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.ledger.store.export import export
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.local.socket.protocol import Fault, fault
from fairlease.local.socket.server import ServerRefusal
from fairlease.runtime.queries.forecasts import forecast_report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from fairlease.ledger.store.protocol import LeaseQuery

AUDIT_S = 3_600.0
LOG_PART = 1 << 20
EXPORT_BYTES_MAX = 64 * 1024 * 1024


async def audit_report(ledger: Path) -> dict[str, Any]:
    """Run the audit as a child, gently, and give its report."""
    command = (sys.executable, "-m", "fairlease.local.daemon.audit_child", str(ledger))
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
        raise ServerRefusal(
            fault(Fault.Broken, f"the audit could not be done: {said[-1] if said else child.returncode}")
        )
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


def export_answer(ledger: Path, what: str, query: LeaseQuery, now: int) -> dict[str, Any]:
    """Leases or charges as CSV text, as `ledger.export` writes them, as long as one answer can carry it."""
    out = _Bounded()
    with SqliteStore(ledger, readonly=True) as store:
        rows = export(what, store.leases(query), now, out)
    return {"csv": out.getvalue().decode(), "rows": rows}


def forecast_answer(ledger: Path, whose: Callable[[str], bool], since: int | None) -> dict[str, Any]:
    """Whether forecasts kept their word, over the whole past."""
    with SqliteStore(ledger, readonly=True) as store:
        return forecast_report(store.entries(), whose, since)


class _Bounded(io.BytesIO):
    """Memory for one answer. A file has no such bound: `fairlease export --db` writes as much as there is."""

    def write(self, part: ReadableBuffer, /) -> int:
        written = super().write(part)
        if self.tell() > EXPORT_BYTES_MAX:
            message = (
                "the export is too large for one answer; ask for less with since and until, or read the file with --db"
            )
            raise ServerRefusal(fault(Fault.TooLarge, message))
        return written
