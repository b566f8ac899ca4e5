"""What people ask of the controller that is no edit of a spec: to rehearse a swap, to free GPUs for maintenance.

An annotation asks: on a Run, for whoever may edit it; on the controller's own namespace, for administrators (`kube.policy`). Each
request has a name and a time of its own. One that is old, or was carried out already, as the ledger tells, is left alone, so that a
controller that comes back does nothing twice. The answer is an Event whose name follows from the request's.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, TypeVar

import msgspec

from fairlease.kube.api.resource import PREFIX
from fairlease.model.amount import MINUTE
from fairlease.model.record import Instant, Record
from fairlease.model.reservation import ByHand

T = TypeVar("T", bound=Record)

DRILL = f"{PREFIX}drill"
RESOLVE, RESOLVE_BY = f"{PREFIX}resolve", f"{PREFIX}resolve-by"
"""What an administrator asks to be freed, and who it is: the API server sees to it that the second is true."""

FRESH_MS = 5 * MINUTE
"""How old a request may be, and how far clocks may be apart."""
DONE = "Done"


class DrillWish(Record, frozen=True, kw_only=True):
    """Whose swap to rehearse; no rank: any."""

    id: str
    at: Instant
    rank: int | None = None


class ResolveWish(Record, frozen=True, kw_only=True):
    """How many GPUs shall be free, of what, and where."""

    id: str
    at: Instant
    flavor: str
    gpus: int
    location: dict[str, str] = {}
    pod: int = 1
    group: int | None = None
    reason: str = ""

    def by_hand(self, by: str) -> ByHand:
        """As the record shows it."""
        return ByHand(
            by=by,
            reason=self.reason,
            gpus=self.gpus,
            gpus_per_pod=self.pod,
            group_gpus=self.group,
            request=self.id,
        )


class Reply(NamedTuple):
    """What came of a request: at which object it is told, to which request it belongs, a word, and a sentence."""

    about: str
    request: str
    reason: str
    message: str


def read_drill(text: str) -> DrillWish | None:
    """A request, or None where there is none that can be read."""
    return _read(text, DrillWish)


def read_resolve(text: str) -> ResolveWish | None:
    """A request, or None where there is none that can be read."""
    found = _read(text, ResolveWish)
    sound = found is not None and found.gpus > 0 and found.pod > 0 and (found.group is None or found.group > 0)
    return found if sound else None


def _read(text: str, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def reply_name(about: str, request: str) -> str:
    """The name of the Event that answers a request."""
    return f"{about[:200].rstrip('-.')}.asked.{hashlib.sha256(request.encode()).hexdigest()[:16]}"
