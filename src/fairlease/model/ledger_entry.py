"""LedgerEntry as the API shows it (SEMANTICS §10): the ledger on Kubernetes, one immutable object for each entry.

Creating the object named after the next number *is* the append. What is too large for one object comes in parts, which are
created first: the object without a part number is created last, and with it the entry is there. Snapshots lie beside the
entries, in the same kind, because nobody but the controller may write it (docs/design/0007).
"""

from __future__ import annotations

import enum

from fairlease.model.record import Record


class EntryRole(enum.Enum):
    """What an object of the ledger holds."""

    ENTRY = "Entry"
    SNAPSHOT = "Snapshot"


class LedgerEntrySpec(Record, frozen=True, kw_only=True):
    """Immutable. `at` is in milliseconds since 1970; `hash` is the hash of entry `seq` (ledger/chain.py).

    An Entry's `body` is the JSON text of its events, the very bytes that were hashed. A Snapshot's is the folded state behind
    entry `seq`, compressed by zlib, in base64; `digest` is the SHA-256 of the state's bytes. `parts` counts the objects that
    hold the rest of a long body; each of them carries its own number in `part`. `writer` is the process that wrote it.
    """

    seq: int
    at: int
    hash: str
    body: str
    prev: str = ""
    role: EntryRole = EntryRole.ENTRY
    digest: str = ""
    part: int = 0
    parts: int = 0
    writer: str = ""
