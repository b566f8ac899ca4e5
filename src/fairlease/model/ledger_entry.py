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
    """Immutable. `at` is in milliseconds since 1970; `hash` is the hash of entry `seq` (ledger/store/chain.py).

    An Entry's `body` is the JSON text of its events, the very bytes that were hashed. A Snapshot's is the folded state behind
    entry `seq`, compressed by zlib, in base64; `digest` is the SHA-256 of the state's bytes. `parts` counts the objects that
    hold the rest of a long body; each of them carries its own number in `part`. `writer` is the process that wrote it.
    """

    seq: int
    """The number of the entry; the first is 1."""
    at: int
    """When it was appended, in milliseconds since 1970."""
    hash: str
    """The hash of entry `seq`: SHA-256 over the hash before it, number, time and body."""
    body: str
    """An Entry: the JSON text of its events, the very bytes that were hashed. A Snapshot: the folded
    state, compressed by zlib, in base64."""
    prev: str = ""
    """The hash of the entry before."""
    role: EntryRole = EntryRole.ENTRY
    """Entry, or a Snapshot of the state behind entry `seq`."""
    digest: str = ""
    """The SHA-256 of a Snapshot's state."""
    part: int = 0
    """The number of this part of a body that is too long for one object; 0 where it is the first."""
    parts: int = 0
    """How many further objects hold the rest of the body."""
    writer: str = ""
    """The process that wrote it."""
