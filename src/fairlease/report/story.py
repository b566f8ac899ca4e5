"""Story: what happened, in sentences. One line per event of the ledger, about the object it concerns.

The same lines serve `explain`, the simulator's `events`, the daemon's log and, on Kubernetes, Events. They are told once per
change, never once per try.
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import NamedTuple

from fairlease.ledger.state import events as ev
from fairlease.ledger.state.slots import bar, missing_label, usable_gpus
from fairlease.model.amount import format_instant, gpu_hours
from fairlease.model.lease import Role
from fairlease.model.node import LabelKeys
from fairlease.model.record import Key, short
from fairlease.model.reservation import ReservationState, reservation_name
from fairlease.model.run import Phase
from fairlease.reason import Reason

_CLOSED = {
    Reason.NodeFailure: ": the node failed",
    Reason.Swap: ": spares take over",
    Reason.Shrink: ": whole groups are given up",
    Reason.NotScheduled: ": its pods did not start",
    Reason.ReclaimedBySpare: ": the spare it borrowed is needed",
}

NODES_NAMED = 4
"""Nodes that one line names; the leases name them all."""


class StoryLine(NamedTuple):
    """One sentence about one object."""

    at: int
    object: str
    warning: bool
    reason: str
    message: str

    def view(self) -> dict[str, str]:
        """As the simulator prints it."""
        kind = "Warning" if self.warning else "Normal"
        return {
            "at": format_instant(self.at),
            "object": self.object,
            "type": kind,
            "reason": self.reason,
            "message": self.message,
        }


class Storyteller:
    """Tells entries in order; remembers just enough to say what a change of a node means."""

    def __init__(self) -> None:
        self._labels = LabelKeys()
        self._peaks: dict[str, int] = {}
        self._lines: list[tuple[str, bool, str, str]] = []

    def tell(self, at: int, event: ev.AnyEvent) -> list[StoryLine]:
        """The lines of one event."""
        self._lines = []
        self._tell(event)
        return [StoryLine(at, *line) for line in self._lines]

    def _say(self, about: str, reason: Reason | str, message: str, *, warning: bool = False) -> None:
        name = reason.value if isinstance(reason, Reason) else reason
        self._lines.append((about, warning, name, message))

    @singledispatchmethod
    def _tell(self, event: object) -> None:
        """Events that need no words."""

    @_tell.register
    def _(self, event: ev.Configured) -> None:
        self._labels = event.config.labels

    @_tell.register
    def _(self, event: ev.NodeSet) -> None:
        node, about = event.node, f"Node/{event.node.name}"
        peak = self._peaks[node.name] = max(node.gpus, self._peaks.get(node.name, 0))
        barred = bar(node, self._labels, peak, failed=False)
        words = {
            Reason.NodeFailed: "fenced; nothing is placed on it",
            Reason.MissingLabel: f"skipped: label {missing_label(node, self._labels)} is missing",
            Reason.LostGPUs: f"skipped: {usable_gpus(node)} of {peak} GPUs are left",
            Reason.NotReady: "not ready; nothing new is placed on it",
            Reason.Cordoned: "cordoned; what runs on it goes on"
            if node.cordoned
            else "held while what is past is decided; what runs on it goes on",
        }
        if barred is None:
            self._say(about, "Ready", f"{node.gpus} GPUs")
        else:
            self._say(about, barred, words[barred], warning=barred is not Reason.Cordoned)

    @_tell.register
    def _(self, event: ev.NodeFailed) -> None:
        self._say(f"Node/{event.node}", Reason.NodeFailed, "counts as failed", warning=True)

    @_tell.register
    def _(self, event: ev.NodeRemoved) -> None:
        self._peaks.pop(event.node, None)
        self._say(f"Node/{event.node}", "Removed", "taken out")

    @_tell.register
    def _(self, event: ev.BudgetSet) -> None:
        names = ", ".join(envelope.name for envelope in event.spec.envelopes)
        self._say(f"Budget/{event.budget}", "Written", f"{event.spec.owner}: envelopes {names}")

    @_tell.register
    def _(self, event: ev.BudgetRemoved) -> None:
        self._say(f"Budget/{event.budget}", "Removed", "pays for nothing new")

    @_tell.register
    def _(self, event: ev.EnvelopeTurned) -> None:
        what = f"aggregate cap {event.cap}" if event.cap else f"envelope {event.envelope}"
        words = {
            ev.Turn.OPENED: "window opened",
            ev.Turn.CLOSED: "window closed",
            ev.Turn.EXHAUSTED: "hours are used up",
            ev.Turn.LENT_OUT: "the hours that it lends are used up",
        }
        warning = event.turn is not ev.Turn.OPENED
        reason = event.turn.value[0].upper() + event.turn.value[1:]
        self._say(f"Budget/{event.budget}", reason, f"{what}: {words[event.turn]}", warning=warning)

    @_tell.register
    def _(self, event: ev.RunSubmitted) -> None:
        resources = event.spec.resources
        by = f" by {event.by}" if event.by else ""
        message = f"{event.spec.owner} asks for {resources.total_gpus} × {resources.gpu_type}{by}"
        self._say(_run(event.run), Reason.Submitted, message)

    @_tell.register
    def _(self, event: ev.RunDeferred) -> None:
        for run in event.runs:
            self._say(_run(run), event.reason, event.message, warning=not event.reason.transient)

    @_tell.register
    def _(self, event: ev.LeasesOpened) -> None:
        gpus = sum(len(cell.slots) for cell in event.cells)
        nodes = list(dict.fromkeys(cell.node for cell in event.cells))
        where = ", ".join(nodes[:NODES_NAMED]) + (
            f" and {len(nodes) - NODES_NAMED} more nodes" if len(nodes) > NODES_NAMED else ""
        )
        shares = [
            sum(len(cell.slots) for cell in event.cells if cell.payer == index) for index in range(len(event.payers))
        ]
        paid = ", ".join(
            f"{share} by {short(payer.budget)}/{payer.envelope} ({payer.fund.value})"
            for share, payer in zip(shares, event.payers, strict=True)
        )
        guests = sum(len(cell.slots) for cell in event.cells if cell.role is Role.BORROWED)
        borrowed = f", {guests} of them on others' spares" if guests else ""
        if event.reason is Reason.Swap:
            moved = [cell for cell in event.cells if cell.role is not Role.SPARE]
            ranks = ", ".join(str(cell.rank) for cell in moved[:NODES_NAMED])
            more = f" and {len(moved) - NODES_NAMED} more" if len(moved) > NODES_NAMED else ""
            where = ", ".join(list(dict.fromkeys(cell.node for cell in moved))[:NODES_NAMED])
            told = f"attempt {event.attempt}: rank{'s' * (len(moved) > 1)} {ranks}{more} taken over on {where}"
            kept = [cell.node for cell in event.cells if cell.role is Role.SPARE]
            told += f", in exchange for {', '.join(kept)}" if kept else ""
        else:
            wider = " more" if event.reason is Reason.Grow else ""
            told = f"attempt {event.attempt}: {gpus} GPUs{wider} on {where}{borrowed}"
        self._say(_run(event.run), event.reason, f"{told}; paid {paid}; plan {event.plan[:8]}")

    @_tell.register
    def _(self, event: ev.RunStarted) -> None:
        self._say(_run(event.run), "Started", "all its pods run")

    @_tell.register
    def _(self, event: ev.LeasesClosed) -> None:
        count = (
            "all leases" if not event.names else "1 lease" if len(event.names) == 1 else f"{len(event.names)} leases"
        )
        seed = f", seed {event.seed}" if event.seed else ""
        words = _CLOSED.get(event.reason, "")
        quiet = event.reason in (Reason.Completed, Reason.Swap, Reason.Shrink)
        self._say(_run(event.run), event.reason, f"{count} closed{seed}{words}", warning=not quiet)

    @_tell.register
    def _(self, event: ev.LeasesLeaving) -> None:
        pods = "1 pod was" if len(event.names) == 1 else f"{len(event.names)} pods were"
        message = f"{pods} asked to leave; killed at {format_instant(event.until)}"
        self._say(_run(event.run), "Leaving", f"{event.reason.value}: {message}")

    @_tell.register
    def _(self, event: ev.RunEnding) -> None:
        told = f"{event.message}; " if event.message else ""
        failed = event.phase is Phase.FAILED
        self._say(_run(event.run), event.reason, f"{told}{event.phase.value}, its pods are leaving", warning=failed)

    @_tell.register
    def _(self, event: ev.SwapAwaited) -> None:
        ranks = ", ".join(str(rank) for _, rank, _ in event.spares[:NODES_NAMED])
        self._say(
            _run(event.run), Reason.Swap, f"rank {ranks} starts on a spare when the work that borrows it has left"
        )

    @_tell.register
    def _(self, event: ev.DesiredSet) -> None:
        self._say(_run(event.run), "DesiredSet", f"{event.gpus} GPUs are desired from now on")

    @_tell.register
    def _(self, event: ev.FundingSet) -> None:
        funding = event.funding
        most = "" if funding.max_borrow_gpus is None else f", {funding.max_borrow_gpus} GPUs at most"
        asked = ", ".join(funding.sponsors) if funding.allow_borrow else ""
        self._say(_run(event.run), "FundingSet", f"may borrow from {asked}{most}" if asked else "borrows from nobody")

    @_tell.register
    def _(self, event: ev.GrowthDeferred) -> None:
        self._say(_run(event.run), event.reason, f"does not grow: {event.message}")

    @_tell.register
    def _(self, event: ev.RunRequeued) -> None:
        self._say(_run(event.run), event.reason, f"{event.message}; asks again", warning=True)

    @_tell.register
    def _(self, event: ev.BackoffEnded) -> None:
        self._say(_run(event.run), "BackoffEnded", "the pause after its failure is over")

    @_tell.register
    def _(self, event: ev.RunQuarantined) -> None:
        until = format_instant(event.until)
        self._say(_run(event.run), "InternalError", f"{event.message}; left alone until {until}", warning=True)

    @_tell.register
    def _(self, event: ev.RunEnded) -> None:
        bill = event.bill
        used = gpu_hours(bill.owned + bill.shared + bill.borrowed + bill.overdrawn + bill.spares)
        told = f"{event.message}; " if event.message else ""
        failed = event.phase is Phase.FAILED
        self._say(_run(event.run), event.reason, f"{told}{event.phase.value} after {used} GPU-hours", warning=failed)

    @_tell.register
    def _(self, event: ev.CoverLost) -> None:
        payer = f"{short(event.budget)}/{event.envelope}"
        group = "" if event.group < 0 else f" of group {event.group}"
        ends = "" if event.ends is None else f"; it ends at {format_instant(event.ends)}"
        message = f"{payer} no longer covers the share{group} ({event.reason.value}){ends}"
        self._say(_run(event.run), Reason.Overdrawn, message, warning=True)

    @_tell.register
    def _(self, event: ev.CoverRegained) -> None:
        self._say(_run(event.run), Reason.Covered, f"{short(event.budget)}/{event.envelope} covers it again")

    @_tell.register
    def _(self, event: ev.OutcomeRecorded) -> None:
        outcome = event.outcome
        cut = ", ".join(f"{short(each.run)} ({each.gpus} GPUs, {each.reason.value})" for each in outcome.actions)
        message = f"{outcome.claimant} lacked {outcome.deficit_gpus} GPUs; gave way: {cut}"
        self._say(f"ResolverOutcome/{event.name}", "Resolved", message)

    @_tell.register
    def _(self, event: ev.ReservationMade) -> None:
        first = event.name == reservation_name(event.run, 1)
        moved = not first and event.reason is not Reason.NoRoom and event.reason is not event.basis
        date, why = format_instant(event.earliest_start), f" ({event.reason.value})" if moved else ""
        told = event.message.removeprefix(f"{date}: ")
        where = ", ".join(list(event.lien)[:NODES_NAMED]) + (" and more" if len(event.lien) > NODES_NAMED else "")
        verb = "moved to" if moved else "reserved for"
        place = f"; on {where}" if where else ""
        self._say(_run(event.run), Reason.Reserved, f"{event.name} {verb} {date}{why}: {told}{place}")

    @_tell.register
    def _(self, event: ev.ReservationTurned) -> None:
        told = f": {event.message}" if event.message else ""
        lost = event.state in (ReservationState.BLOCKED, ReservationState.CANCELED, ReservationState.FAILED)
        self._say(_run(event.run), event.reason, f"reservation {event.state.value}{told}", warning=lost)

    @_tell.register
    def _(self, event: ev.Forecasted) -> None:
        for each in event.runs:
            p10, p50, p90 = (format_instant(when) for when in (each.p10, each.p50, each.p90))
            self._say(_run(each.run), "Forecast", f"starts at {p50} ({p10} to {p90}), {each.why}")


def _run(run: Key) -> str:
    return f"Run/{run}"
