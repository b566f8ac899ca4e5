"""The audit as a process of its own: `python -m fairlease.local.daemon.audit_child LEDGER` writes the report as JSON.

Replaying a long ledger takes seconds of pure computation, during which the daemon must go on deciding.
"""

from __future__ import annotations

import os
import sys

import msgspec

from fairlease.ledger.audit.audit_file import audit_store
from fairlease.ledger.store.sqlite import SqliteStore


def main(ledger: str) -> None:
    """Audit, with the patience of one who has time."""
    os.nice(10)
    with SqliteStore(ledger, readonly=True) as store:
        report = audit_store(store)
    sys.stdout.buffer.write(msgspec.json.encode(msgspec.to_builtins(report)))


if __name__ == "__main__":
    main(sys.argv[1])
