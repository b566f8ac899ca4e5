"""The audit as a process of its own: replaying a long ledger is pure computation, during which the daemon must go on deciding."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.ledger.audit.audit_file import audit_store
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.local.socket.protocol import Fault, fault
from fairlease.local.socket.server import ServerRefusal

if TYPE_CHECKING:
    from pathlib import Path

AUDIT_S = 3_600.0


async def audit_report(ledger: Path) -> dict[str, Any]:
    """Run the audit as a child, gently, and give its report."""
    command = (sys.executable, "-m", "fairlease.local.socket.audit_child", str(ledger))
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


def main(ledger: str) -> None:
    """Audit, with the patience of one who has time."""
    os.nice(10)
    with SqliteStore(ledger, readonly=True) as store:
        report = audit_store(store)
    sys.stdout.buffer.write(msgspec.json.encode(msgspec.to_builtins(report)))


if __name__ == "__main__":
    main(sys.argv[1])
