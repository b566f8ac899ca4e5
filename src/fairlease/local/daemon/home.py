"""A home and its ledger: one is begun anew only where nothing tells of an earlier one, or where somebody says so.

Whoever begins a new ledger ends all work that runs here: no lease of it is known. So a home without its ledger, with one that ends
before the anchor, or with a damaged one is refused, before any process is looked at.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairlease.ledger.store.anchor import Anchor
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_file import Damaged, LedgerLost
from fairlease.scheduler import fold

if TYPE_CHECKING:
    from pathlib import Path

    from fairlease.local.daemon.config import Settings

UP = '"event": "up"'
"""What a daemon logs once it has opened its ledger; a log without it tells only of attempts."""

BESIDE = ("", "-wal", "-shm", ".anchor")
"""What the names of a ledger's files end with. The lock stays: whoever holds it holds it for the next ledger, too."""


def check_traces(settings: Settings) -> None:
    """Raise `LedgerLost` where a daemon lived in this home before, and its ledger is gone."""
    if settings.ledger.exists():
        return
    trace = next(iter(_traces(settings)), None)
    if trace is not None:
        raise LedgerLost(f"{settings.ledger} is gone: {trace} tells of an earlier daemon")


def _traces(settings: Settings) -> list[Path]:
    home = settings.home
    folders = [home / name for name in ("pods", "logs") if any((home / name).glob("*"))]
    files = [path for path in (Anchor(settings.ledger).path, settings.outbox) if path.exists()]
    return [*files, *folders, *([settings.log] if _tells_of_a_daemon(settings.log) else [])]


def _tells_of_a_daemon(log: Path) -> bool:
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return any(UP in line for line in lines)
    except OSError:
        return False


def set_aside(settings: Settings) -> None:
    """Rename what is left of a ledger that cannot be used, so that a new one can be begun.

    Raises ValueError where it can be used: a flag that was left in a script begins no other.
    """
    ledger = settings.ledger
    try:
        check_traces(settings)
        if not ledger.exists():
            return
        with SqliteStore(ledger) as store:
            fold(store)
    except (LedgerLost, Damaged):
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for end in BESIDE:
            if (path := ledger.with_name(ledger.name + end)).exists():
                path.rename(ledger.with_name(f"{ledger.name}.lost-{stamp}{end}"))
    else:
        raise ValueError(f"{ledger} is whole; a new ledger is begun only where it is lost or damaged")
