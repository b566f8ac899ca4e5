"""Runs, whether they live or are over: how each was asked for and how it stands, with the recent ones at hand.

The state forgets a run when it ends; the ledger does not. To look one up there means to decode the entries that name it, so those
that ended lately are kept as they were when they ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.protocol import Ending
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.model.record import Key, short, split
from fairlease.report import views
from fairlease.report.reservation_history import forecast_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.store.protocol import Entry, Moment, Store
    from fairlease.model.run import RunSpec
    from fairlease.scheduler import Scheduler

KEPT = 10_000


class SubmittedRun(NamedTuple):
    """How a run was asked for, and how it ended, if it did."""

    run: Key
    spec: RunSpec
    submitted_at: int
    by: str | None
    ending: Ending | None = None

    def told(self, event: ev.AnyEvent) -> SubmittedRun:
        """The same after an event that may have changed what it asks for."""
        if isinstance(event, ev.DesiredSet):
            return self._replace(spec=self.spec.resized(event.gpus))
        if isinstance(event, ev.FundingSet):
            return self._replace(spec=self.spec.funded(event.funding))
        return self


class RunHistory:
    """Looks runs up."""

    def __init__(self, scheduler: Scheduler, ledger: Path | None = None) -> None:
        """`ledger` is the file behind the store, to look back into beside the loop; a store without one is asked itself."""
        self._scheduler = scheduler
        self._ledger = ledger
        self.starting: Callable[[RunState], str] = lambda _: ""
        self._recent: deque[Key] = deque()  # in the order in which they ended, without a gap up to now
        self._whole = False  # whether all that ever ended is among them
        self._ended: OrderedDict[Key, SubmittedRun] = OrderedDict()
        self._living = {
            run.key: SubmittedRun(run.key, run.spec, run.submitted_at, run.by) for run in scheduler.state.runs.values()
        }

    def follow(self, entry: Entry) -> None:
        """An entry was appended."""
        for event in entry.events:
            if isinstance(event, ev.RunSubmitted):
                self._living[event.run] = SubmittedRun(event.run, event.spec, entry.at, event.by)
            elif isinstance(event, ev.DesiredSet | ev.FundingSet):
                self._living[event.run] = self._living[event.run].told(event)
            elif isinstance(event, ev.RunEnded):
                asked = self._living.pop(event.run)
                self._keep(asked._replace(ending=Ending(seq=entry.seq, at=entry.at, ended=event)))
                self._recent.append(event.run)
                if len(self._recent) > KEPT:
                    self._recent.popleft()

    def find(self, run: Key) -> SubmittedRun | None:
        """A run by its name; None where there never was one."""
        return self._living.get(run) or self._ended.get(run) or self._remember(run)

    async def ended(self, limit: int) -> list[Key]:
        """The runs that ended last, the latest first. What ended before this daemon came up is looked up beside the loop."""
        known = len(self._recent)
        if known < limit and not self._whole:
            found = await asyncio.to_thread(self._look_back, limit, known)
            self._whole = known + len(found) < limit
            listed = set(self._recent)  # some may have ended meanwhile
            for asked in found:
                if asked.run not in listed:
                    self._keep(asked)
                    self._recent.appendleft(asked.run)
        return list(islice(reversed(self._recent), limit))

    def status(self, asked: SubmittedRun, now: int) -> dict[str, Any]:
        """How it stands."""
        live = self._scheduler.state.runs.get(asked.run)
        if live is not None:
            told = self.starting(live) if live.starting else None
            return views.run_status(live, now, self._scheduler.state.capacity, told)
        assert asked.ending is not None, "what does not live has ended"
        return views.ended_status(asked.spec, asked.submitted_at, asked.ending)

    def row(self, asked: SubmittedRun, now: int) -> dict[str, Any]:
        """One line of a list; of a run that waits, with the forecast that was last written down."""
        resources = asked.spec.resources
        live = self._scheduler.state.runs.get(asked.run)
        told = None if live is None or live.foreseen is None else forecast_view(*live.foreseen)
        return {
            "name": short(asked.run),
            "namespace": split(asked.run)[0],
            "owner": asked.spec.owner,
            "by": asked.by,
            "gpuType": resources.gpu_type,
            "gpus": resources.total_gpus,
            "status": self.status(asked, now),
            **({} if told is None else {"forecast": told}),
        }

    def _look_back(self, limit: int, skip: int) -> list[SubmittedRun]:
        if self._ledger is None:
            return look_back(self._scheduler.store, limit, skip)
        with SqliteStore(self._ledger, readonly=True) as store:
            return look_back(store, limit, skip)

    def _remember(self, run: Key) -> SubmittedRun | None:
        asked = last_told(run, self._scheduler.store.story(run))
        if asked is not None:
            self._keep(asked)
        return asked

    def _keep(self, asked: SubmittedRun) -> None:
        self._ended[asked.run] = asked
        while len(self._ended) > KEPT:
            self._ended.popitem(last=False)


def look_back(store: Store, limit: int, skip: int) -> list[SubmittedRun]:
    """The runs that ended before the last `skip`, the latest first, up to `limit` in all."""
    found = []
    for ending in store.endings(limit)[skip:]:
        told = [moment for moment in store.story(ending.ended.run) if moment.seq <= ending.seq]
        asked = last_told(ending.ended.run, told)
        assert asked is not None, "what ended was asked for"
        found.append(asked)
    return found


def last_told(run: Key, story: Iterable[Moment]) -> SubmittedRun | None:
    """The last run of a name that a story tells of, with all that became of it."""
    asked: SubmittedRun | None = None
    for moment in story:
        event = moment.event
        if isinstance(event, ev.RunSubmitted):
            asked = SubmittedRun(run, event.spec, moment.at, event.by)
        elif asked is not None:
            asked = asked.told(event)
            if isinstance(event, ev.RunEnded):
                asked = asked._replace(ending=Ending(seq=moment.seq, at=moment.at, ended=event))
    return asked
