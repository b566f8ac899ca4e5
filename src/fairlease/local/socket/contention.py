"""Contention: the verbs about who waits until when, who gave way to whom, and what an administrator frees by hand.

Reservations in force are read from the state; what is over is looked up in the ledger, beside the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.local.socket import requests as rq
from fairlease.model.record import Key, short, split
from fairlease.model.reservation import ByHand
from fairlease.reason import Reason
from fairlease.report import views
from fairlease.report.reservation_history import ReservationHistory, in_force
from fairlease.runtime.queries.drain import REASON_MAX, consequences

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fairlease.engine.refusal import Refusal
    from fairlease.ledger.store.protocol import Entry
    from fairlease.local.daemon.daemon import Daemon
    from fairlease.local.socket.access import Caller

Result = dict[str, Any]


class Contention:
    """Those verbs of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._scheduler = daemon.scheduler

    async def reservations(self, _: Caller, args: rq.ReservationsArgs) -> Result:
        """Reservations in force, the earliest date first; with `all` those that are over too, in the order of their making."""
        now, limit = self._daemon.now(), rq.bounded(args.limit)
        run = None if args.run is None else self._known(args.run)
        state = self._scheduler.state
        if not args.all:
            waiting = [each for each in state.runs.values() if each.hold is not None and run in (None, each.key)]
            waiting = [each for each in waiting if args.namespace in (None, split(each.key)[0])]
            waiting.sort(key=lambda each: (each.hold.earliest_start if each.hold else 0, each.order))
            return {"reservations": [in_force(each, now) for each in waiting[:limit]]}
        found = ReservationHistory()
        if run is not None:
            events = [(moment.at, moment.event) for moment in self._scheduler.store.story(run)]
        else:
            events = await asyncio.to_thread(_reserved, self._daemon.settings.ledger)
        for at, event in events:
            found.take(at, event)
        objects = [each for each in found.objects(now) if args.namespace in (None, each["spec"]["runRef"]["namespace"])]
        return {"reservations": objects[-limit:]}

    async def outcomes(self, _: Caller, args: rq.Outcomes) -> Result:
        """Resolutions in their order: one, a run's, or the last of all."""
        limit = rq.bounded(args.limit)
        if args.run is not None:
            run = self._known(args.run)
            told = [each.event for each in self._scheduler.store.story(run)]
            return {"outcomes": _outcomes(told)[-limit:]}
        ledger = self._daemon.settings.ledger
        found = _outcomes(await asyncio.to_thread(_resolved, ledger, limit, args.name or ""))
        if args.name is not None:
            found = [each for each in found if each["name"] == args.name]
            if not found:
                raise rq.refused(Reason.NotFound, f"there is no outcome {args.name[:80]}")
        return {"outcomes": found[-limit:]}

    def _known(self, name: str) -> Key:
        """The run that somebody named."""
        run, state = rq.name_key(name), self._scheduler.state
        if run not in state.runs and run not in state.ended and not self._scheduler.store.story(run):
            raise rq.refused(Reason.NotFound, f"there is no run {short(run)}")
        return run

    async def resolve(self, caller: Caller, args: rq.ResolveArgs) -> Result:
        """Free GPUs by hand; a dry run is the same decision, undone."""
        rq.check(self._daemon.access.may_govern(caller, "resolve a scope by hand"))
        if len(args.reason) > REASON_MAX:
            raise rq.refused(Reason.InvalidRequest, f"reason: longer than {REASON_MAX} characters", remedy="be brief")
        asked = ByHand(by=caller.name, reason=args.reason, gpus=args.gpus, gpus_per_pod=args.pod, group_gpus=args.group)
        command = cmd.Resolve(args.flavor, args.location, asked)
        if args.dry_run:
            with self._scheduler.what_if(self._daemon.now(), command) as decision:
                answers, events = decision.answers, decision.events
        else:
            if (heard := self._daemon.beacon.hear()) is not None:
                await heard
            answers, events = await self._done(command)
        for refusal in answers:
            rq.check(refusal)
        return {"dryRun": args.dry_run, **consequences(events, asked)}

    async def _done(self, command: cmd.Resolve) -> tuple[tuple[Refusal | None, ...], tuple[ev.AnyEvent, ...]]:
        before = self._scheduler.head.seq

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            nonlocal before
            before = self._scheduler.head.seq
            return [command]

        answers = await self._daemon.do(build)
        events = [event for entry in self._scheduler.store.entries(before) for event in entry.events]
        return tuple(answers), tuple(events)


def _outcomes(events: Iterable[ev.AnyEvent]) -> list[Result]:
    return [views.outcome_object(each.name, each.outcome) for each in events if isinstance(each, ev.OutcomeRecorded)]


# --- beside the loop -----------------------------------------------------------------------------------------------------


def _resolved(ledger: Path, limit: int, name: str) -> list[ev.AnyEvent]:
    with SqliteStore(ledger, readonly=True) as store:
        text = f'"name":"{name}"' if name else ""
        return [event for entry in store.entries_with(ev.OutcomeRecorded, limit, text) for event in entry.events]


def _reserved(ledger: Path) -> list[tuple[int, ev.AnyEvent]]:
    """Every event about reservations, in order: those that are over can only be told by all that came before."""
    with SqliteStore(ledger, readonly=True) as store:
        entries: dict[int, Entry] = {}
        for kind in (ev.ReservationMade, ev.ReservationTurned, ev.Forecasted):
            entries |= {entry.seq: entry for entry in store.entries_with(kind, -1)}
        return [(entries[seq].at, event) for seq in sorted(entries) for event in entries[seq].events]
