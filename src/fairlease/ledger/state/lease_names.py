"""From an event to its leases: the one place where a lease gets its name.

Names carry the run, the attempt and a counter (`train-1-0`), so that none is ever used twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.model.lease import Lease
from fairlease.model.record import split

if TYPE_CHECKING:
    from fairlease.ledger.state.events import LeasesOpened
    from fairlease.model.run import RunSpec


def leases_of(event: LeasesOpened, spec: RunSpec, at: int, serial: int) -> tuple[Lease, ...]:
    """The leases that an event opened at `at`; `serial` is the number of leases ever opened before them."""
    stem = f"{split(event.run)[1]}-{event.attempt}-"
    run, payers = event.run, event.payers
    owner, attempt, reason, opportunistic = spec.owner, event.attempt, event.reason, spec.opportunistic
    made = [
        Lease(
            name=f"{stem}{cell.number}",
            run=run,
            owner=owner,
            attempt=attempt,
            group=cell.group,
            rank=cell.rank,
            node=cell.node,
            slots=cell.slots,
            role=cell.role,
            start=at,
            payer=payers[cell.payer],
            reason=reason,
            serial=index,
            opportunistic=opportunistic,
        )
        for index, cell in enumerate(event.cells, serial)
    ]
    return tuple(made)
