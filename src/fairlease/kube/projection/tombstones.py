"""What entries told that the state no longer knows: how runs ended, why leases closed, what was resolved and reserved.

The state holds what is open. What an entry closed has to be written to its object once, and this is kept until it is. After a
restart the last snapshot and the entries behind it tell it again; what lies further back is looked up in the whole past
(`kube.history`), which is needed only where a controller died a long time before its objects were written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.ledger.state import events as ev
from fairlease.ledger.state.lease_names import leases_of
from fairlease.ledger.store.derived_rows import closure_of, runs_of
from fairlease.ledger.store.protocol import Ending, LeaseQuery, LeaseRow
from fairlease.model.amount import format_instant
from fairlease.model.lease import Lease, Role
from fairlease.model.record import Key, key, split
from fairlease.model.reservation import ReservationState
from fairlease.report.reservation_history import ReservationHistory
from fairlease.report.views import View, lease_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlease.ledger.state.runs import Hold
    from fairlease.ledger.state.state import State
    from fairlease.ledger.store.protocol import Entry, Store
    from fairlease.model.reservation import OutcomeSpec
    from fairlease.model.run import RunSpec


class Final(NamedTuple):
    """How a run ended, with what it had asked."""

    spec: RunSpec
    submitted_at: int
    ending: Ending


class Closed(NamedTuple):
    """The status of a closed lease, and the lease: its object may never have been written."""

    status: View
    lease: Lease


class Resolved(NamedTuple):
    """What a resolution came to, and in which entry."""

    seq: int
    spec: OutcomeSpec


class Touched(NamedTuple):
    """Whose objects an entry changed; and the nodes where work moved in on a spare, or out: its placeholder goes, or comes back."""

    runs: set[Key]
    budgets: set[Key]
    hosts: set[str]

    def take(self, leases: Iterable[Lease]) -> None:
        """These were opened, or closed."""
        for lease in leases:
            self.budgets.add(lease.payer.budget)
            if lease.role is Role.BORROWED:
                self.hosts.add(lease.node)


class Tombstones:
    """Follows the entries behind a state; `closed`, `outcomes` and `untold` shrink as they are written."""

    def __init__(self, base: State, entries: Iterable[Entry]) -> None:
        self.final: dict[Key, Final] = {}
        self.closed: dict[Key, dict[str, Closed]] = {}
        self.outcomes: dict[str, Resolved] = {}
        self.untold: dict[Key, int] = {}
        """Runs whose past may not stand in objects yet, and the first entry of which that is so."""
        self.requests: set[str] = set()
        """Requests of administrators that were carried out."""
        self.reservations: dict[Key, ReservationHistory] = {}
        self._serial = base.serial
        self._open = {run.key: dict(run.leases) for run in base.runs.values()}
        self._asked = {run.key: (run.spec, run.submitted_at) for run in base.runs.values()}
        self._take_dates(base)
        for entry in entries:
            self.follow(entry)

    def _take_dates(self, base: State) -> None:
        """Reservations in force that were made before the entries begin."""
        for run, made in base.holds.items():
            if made.hold is None:
                continue
            self.reservations[run] = ReservationHistory()
            for event in _told(run, made.hold):
                self.reservations[run].take(made.hold.made_at, event)
            if made.foreseen is not None:
                self.reservations[run].take(made.foreseen[0], ev.Forecasted(runs=(made.foreseen[1],)))

    def follow(self, entry: Entry) -> Touched:
        """Take in one entry; says whose objects it changed."""
        touched = Touched(set(), set(), set())
        for event in entry.events:
            touched.runs.update(runs_of(event))
            if isinstance(event, ev.RunSubmitted):
                self._asked[event.run] = (event.spec, entry.at)
            elif isinstance(event, ev.DesiredSet | ev.FundingSet):
                self._respecified(event)
            elif isinstance(event, ev.LeasesOpened):
                touched.take(self._opened(event, entry.at))
            elif isinstance(event, ev.LeasesClosed):
                touched.take(self._closed(event, entry.at))
            elif isinstance(event, ev.RunEnded):
                self._ended(event, entry)
            elif isinstance(
                event, ev.BudgetSet | ev.BudgetRemoved | ev.EnvelopeTurned | ev.CoverLost | ev.CoverRegained
            ):
                touched.budgets.add(event.budget)
            elif isinstance(event, ev.OutcomeRecorded):
                self._resolved(event, entry.seq)
            elif isinstance(event, ev.ReservationMade | ev.ReservationTurned | ev.Forecasted):
                self._dated(event, entry.at)
        for run in touched.runs:
            self.untold.setdefault(run, entry.seq)
        return touched

    def told(self, run: Key) -> None:
        """All that is over of a run stands in its objects."""
        if run not in self.closed:
            self.untold.pop(run, None)

    def told_before(self) -> int | None:
        """The first entry of which something may not stand in objects yet; None where all does.

        What ended before it need never be told again, not even to whoever leads next.
        """
        waiting = [*self.untold.values(), *(each.seq for each in self.outcomes.values())]
        return min(waiting, default=None)

    def _respecified(self, event: ev.DesiredSet | ev.FundingSet) -> None:
        spec, at = self._asked[event.run]
        changed = spec.resized(event.gpus) if isinstance(event, ev.DesiredSet) else spec.funded(event.funding)
        self._asked[event.run] = (changed, at)

    def _resolved(self, event: ev.OutcomeRecorded, seq: int) -> None:
        self.outcomes[event.name] = Resolved(seq, event.outcome)
        if event.outcome.by_hand is not None:
            self.requests.add(event.outcome.by_hand.request)

    def _dated(self, event: ev.ReservationMade | ev.ReservationTurned | ev.Forecasted, at: int) -> None:
        """Take in what becomes of a run's date."""
        if isinstance(event, ev.Forecasted):
            self._forecasted(event, at)
        else:
            self.reservations.setdefault(event.run, ReservationHistory()).take(at, event)

    def _forecasted(self, event: ev.Forecasted, at: int) -> None:
        for each in event.runs:
            known = self.reservations.get(each.run)
            if known is not None:
                known.take(at, ev.Forecasted(runs=(each,)))

    def _opened(self, event: ev.LeasesOpened, at: int) -> Sequence[Lease]:
        opened = leases_of(event, self._asked[event.run][0], at, self._serial)
        self._open.setdefault(event.run, {}).update((lease.name, lease) for lease in opened)
        self._serial += len(event.cells)
        if event.run in self.reservations:
            self.reservations[event.run].take(at, event)
        return opened

    def _closed(self, event: ev.LeasesClosed, at: int) -> Sequence[Lease]:
        held = self._open.get(event.run, {})
        status = {"closed": True, "endTime": format_instant(at), "closureReason": closure_of(event)}
        leases = [held.pop(name) for name in event.names or tuple(held)]
        if leases:
            written = self.closed.setdefault(event.run, {})
            written.update((lease.name, Closed(status, lease)) for lease in leases)
        return leases

    def _ended(self, event: ev.RunEnded, entry: Entry) -> None:
        self._open.pop(event.run, None)
        self.final[event.run] = Final(*self._asked.pop(event.run), Ending(seq=entry.seq, at=entry.at, ended=event))

    # --- what lies further back ------------------------------------------------------------------------------------------

    def look_up(self, past: Store, runs: Iterable[Key], leases: Iterable[Key]) -> None:
        """Take what is missing from the whole past: how runs ended, and why leases closed."""
        wanted = set(runs)
        endings = {each.ended.run: each for each in reversed(past.endings())} if wanted else {}
        for run in wanted & endings.keys():
            told = [each for each in past.story(run) if isinstance(each.event, ev.RunSubmitted)]
            asked = next((each for each in reversed(told) if each.seq <= endings[run].seq), None)
            if asked is not None and isinstance(asked.event, ev.RunSubmitted):
                self.final[run] = Final(asked.event.spec, asked.at, endings[run])
        lost = {Key(each) for each in leases}
        for row in past.leases(LeaseQuery(open=False)) if lost else ():
            if lease_key(row.lease) in lost:
                self.closed.setdefault(row.lease.run, {})[row.lease.name] = Closed(
                    lease_object(row)["status"], row.lease
                )

    def recall(self, events: Iterable[ev.AnyEvent]) -> None:
        """What was freed by hand before the snapshot that all began with: it is not freed again."""
        outcomes = (event.outcome for event in events if isinstance(event, ev.OutcomeRecorded))
        self.requests.update(each.by_hand.request for each in outcomes if each.by_hand is not None)

    def forget(self, run: Key) -> None:
        """A Run's object is gone, and all that is over of it is told: nobody will ask how it ended."""
        self.final.pop(run, None)
        self.reservations.pop(run, None)


def _told(run: Key, hold: Hold) -> Iterable[ev.ReservationMade | ev.ReservationTurned]:
    """The events that would tell of a reservation in force."""
    yield hold.made(run)
    if hold.state is not ReservationState.PENDING:
        yield ev.ReservationTurned(run=run, state=hold.state, reason=hold.reason, message=hold.message)


def lease_key(lease: Lease) -> Key:
    """The key of a lease's object."""
    return key(lease.name, split(lease.run)[0])


def lease_spec(lease: Lease) -> dict[str, Any]:
    """The spec of a lease's object."""
    spec: dict[str, Any] = lease_object(LeaseRow(lease=lease))["spec"]
    return spec
