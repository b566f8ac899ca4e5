"""What entries told that the state no longer knows: how runs ended, why leases closed, what was resolved and reserved.

The state holds what is open. What an entry closed has to be written to its object once, and this is kept until it is. After a
restart the entries behind the last snapshot tell it again; what lies further back is looked up in the whole past (`kube.history`),
which is needed only where a controller died a long time before its objects were written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.engine.reservations import Reservations
from fairlease.engine.view import View, lease_object
from fairlease.ledger import event as ev
from fairlease.ledger.derive import closure_of, runs_of
from fairlease.ledger.opening import leases_of
from fairlease.ledger.store import Ending, LeaseQuery, LeaseRow
from fairlease.model.amount import format_instant
from fairlease.model.lease import Lease
from fairlease.model.record import Key, key, split
from fairlease.model.reservation import ReservationState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.ledger.live import Hold
    from fairlease.ledger.state import State
    from fairlease.ledger.store import Entry, Store
    from fairlease.model.reservation import OutcomeSpec
    from fairlease.model.run import RunSpec


class Final(NamedTuple):
    """How a run ended, with what it had asked."""

    spec: RunSpec
    submitted_at: int
    ending: Ending


class Closed(NamedTuple):
    """The status of a closed lease, and the lease, where it is known: its object may never have been written."""

    status: View
    lease: Lease | None


class Resolved(NamedTuple):
    """What a resolution came to, and in which entry."""

    seq: int
    spec: OutcomeSpec


class Touched(NamedTuple):
    """Whose objects an entry changed."""

    runs: set[Key]
    budgets: set[Key]


class Chronicle:
    """Follows the entries; `closed`, `outcomes` and `untold` shrink as they are written."""

    def __init__(self, state: State, entries: Iterable[Entry]) -> None:
        self.final: dict[Key, Final] = {}
        self.closed: dict[Key, dict[str, Closed]] = {}
        self.outcomes: dict[str, Resolved] = {}
        self.untold: dict[Key, int] = {}
        """Runs whose past may not stand in objects yet, and the first entry of which that is so."""
        self.requests: set[str] = set()
        """Requests of administrators that were carried out."""
        self.reservations: dict[Key, Reservations] = {}
        self.turned: dict[Key, View] = {}
        """What became of reservations that were made before the entries begin."""
        self._endings: dict[Key, Ending] = {}
        self._swept: dict[Key, View] = {}
        self._asked: dict[Key, tuple[RunSpec, int]] = {}
        self._open: dict[Key, dict[str, Lease]] = {}
        self._serial = 0
        self._reading = True
        for entry in entries:
            self.follow(entry)
        self._reading = False
        self._agree(state)

    def _agree(self, state: State) -> None:
        """Take over what is open; what was told before the entries began is told by the state alone."""
        self._serial = state.serial
        self._open = {run.key: dict(run.leases) for run in state.runs.values()}
        self._asked = {run.key: (run.spec, run.submitted_at) for run in state.runs.values()}
        for run, made in state.holds.items():
            if made.hold is None:
                continue
            if run not in self.reservations:
                self.reservations[run] = Reservations()
                for event in _told(run, made.hold):
                    self.reservations[run].take(made.hold.made_at, event)
            if made.foreseen is not None:
                self.reservations[run].take(made.foreseen[0], ev.Forecasted(runs=(made.foreseen[1],)))

    def follow(self, entry: Entry) -> Touched:
        """Take in one entry; says whose objects it changed."""
        touched = Touched(set(), set())
        for event in entry.events:
            touched.runs.update(runs_of(event))
            if isinstance(event, ev.RunSubmitted):
                self._asked[event.run] = (event.spec, entry.at)
            elif isinstance(event, ev.DesiredSet | ev.FundingSet):
                self._respecified(event)
            elif isinstance(event, ev.LeasesOpened):
                self._opened(event, entry.at)
                touched.budgets.update(payer.budget for payer in event.payers)
            elif isinstance(event, ev.LeasesClosed):
                touched.budgets.update(self._closed(event, entry.at))
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
        asked = self._asked.get(event.run)
        if asked is not None:
            spec, at = asked
            changed = spec.resized(event.gpus) if isinstance(event, ev.DesiredSet) else spec.funded(event.funding)
            self._asked[event.run] = (changed, at)

    def _resolved(self, event: ev.OutcomeRecorded, seq: int) -> None:
        self.outcomes[event.name] = Resolved(seq, event.outcome)
        if event.outcome.by_hand is not None:
            self.requests.add(event.outcome.by_hand.request)

    def _dated(self, event: ev.ReservationMade | ev.ReservationTurned | ev.Forecasted, at: int) -> None:
        """Take in what becomes of a run's date; one that was made before the entries begin has nothing to be added to."""
        if isinstance(event, ev.Forecasted):
            self._forecasted(event, at)
        elif isinstance(event, ev.ReservationMade) or event.run in self.reservations:
            self.reservations.setdefault(event.run, Reservations()).take(at, event)
        else:
            self.turned[event.run] = {
                "state": event.state.value,
                "reason": event.reason.value,
                "message": event.message,
            }

    def _forecasted(self, event: ev.Forecasted, at: int) -> None:
        for each in event.runs:
            known = self.reservations.get(each.run)
            if known is not None:
                known.take(at, ev.Forecasted(runs=(each,)))

    def _opened(self, event: ev.LeasesOpened, at: int) -> None:
        asked = self._asked.get(event.run)
        if asked is not None:
            opened = leases_of(event, asked[0], at, self._serial)
            self._open.setdefault(event.run, {}).update((lease.name, lease) for lease in opened)
        self._serial += len(event.cells)
        if event.run in self.reservations:
            self.reservations[event.run].take(at, event)

    def _closed(self, event: ev.LeasesClosed, at: int) -> set[Key]:
        held = self._open.get(event.run, {})
        status = {"closed": True, "endTime": format_instant(at), "closureReason": closure_of(event)}
        if not event.names and self._reading:
            self._swept.setdefault(event.run, status)
        budgets, written = set(), {}
        for name in event.names or tuple(held):
            lease = held.pop(name, None)
            if lease is not None:
                budgets.add(lease.payer.budget)
            written[name] = Closed(status, lease)
        if written:  # none, where they were opened before the entries begin: `swept` finds those that look open
            self.closed.setdefault(event.run, {}).update(written)
        return budgets

    def _ended(self, event: ev.RunEnded, entry: Entry) -> None:
        asked = self._asked.pop(event.run, None)
        self._open.pop(event.run, None)
        ending = Ending(seq=entry.seq, at=entry.at, ended=event)
        if asked is None:
            self._endings[event.run] = ending
        else:
            self.final[event.run] = Final(*asked, ending)

    # --- what lies further back ------------------------------------------------------------------------------------------

    def complete(self, run: Key, spec: RunSpec, submitted_at: int) -> bool:
        """Finish what the entries told of a run that was asked for before they begin; says whether they told its end."""
        ending = self._endings.pop(run, None)
        if ending is not None:
            self.final[run] = Final(spec, submitted_at, ending)
        return run in self.final

    def swept(self, run: Key, name: str) -> bool:
        """Whether a lease that was opened before the entries begin was closed by them, together with all others of its run."""
        status = self._swept.get(run)
        if status is not None:
            self.closed.setdefault(run, {})[name] = Closed(status, None)
        return status is not None

    def look_up(self, past: Store, runs: Iterable[Key], leases: Iterable[Key]) -> None:
        """Take what is missing from the whole past: how runs ended, and why leases closed."""
        wanted = set(runs)
        endings = {each.ended.run: each for each in past.endings()} if wanted else {}
        for run in wanted & endings.keys():
            asked = next((each for each in past.story(run) if isinstance(each.event, ev.RunSubmitted)), None)
            if asked is not None and isinstance(asked.event, ev.RunSubmitted):
                self.final[run] = Final(asked.event.spec, asked.at, endings[run])
        lost = {Key(each) for each in leases}
        for row in past.leases(LeaseQuery(open=False)) if lost else ():
            if lease_key(row.lease) in lost:
                self.closed.setdefault(row.lease.run, {})[row.lease.name] = Closed(
                    lease_object(row)["status"], row.lease
                )

    def forget(self, run: Key) -> None:
        """A Run's object is gone: nobody will ask how it ended."""
        self.final.pop(run, None)
        self.reservations.pop(run, None)
        self.turned.pop(run, None)


def _told(run: Key, hold: Hold) -> Iterable[ev.ReservationMade | ev.ReservationTurned]:
    """The events that would tell of a reservation in force."""
    yield ev.ReservationMade(
        run=run,
        name=hold.name,
        earliest_start=hold.earliest_start,
        basis=hold.basis,
        reason=hold.reason,
        message=hold.message,
        domains=hold.domains,
        lien=hold.lien,
        envelopes=hold.envelopes,
        cut_from=hold.cut_from,
    )
    if hold.state is not ReservationState.PENDING:
        yield ev.ReservationTurned(run=run, state=hold.state, reason=hold.reason, message=hold.message)


def lease_key(lease: Lease) -> Key:
    """The key of a lease's object."""
    return key(lease.name, split(lease.run)[0])


def lease_spec(lease: Lease) -> dict[str, Any]:
    """The spec of a lease's object."""
    spec: dict[str, Any] = lease_object(LeaseRow(lease=lease))["spec"]
    return spec
