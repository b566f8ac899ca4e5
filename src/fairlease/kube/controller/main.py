"""The controller: follows the cluster at all times, and decides while it leads.

A second one beside it follows too, so that it can take over at once: it only has to read the ledger. Who loses leadership, or an
append to another, throws its state away and stands in line again. Between two instructions it may be killed: what was not appended
never happened, and what was is projected by whoever comes next.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from fairlease import __version__
from fairlease.kube.api.cache import ClusterCache
from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.election import Election
from fairlease.kube.api.http import Unreachable
from fairlease.kube.controller.loop import LeaderLoop
from fairlease.kube.ledger.archive import Archive
from fairlease.kube.ledger.journal import Journal
from fairlease.ledger.state.state import State
from fairlease.ledger.store.protocol import Conflict
from fairlease.runtime.http_endpoints import Page, Pages
from fairlease.runtime.metrics import CLUSTER, Metrics
from fairlease.scheduler import calm_collector

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from fairlease.kube.api.connection import Api
    from fairlease.kube.settings import ClusterSettings

ELECTION = "fairlease-controller"
ANYWHERE = "0.0.0.0"  # noqa: S104 - kubelets and scrapers ask from outside the pod
ELECTION_S = (12.0, 8.0, 1.0)
"""Lease, renewal, retry: who dies is followed within 15 s at the latest, and that includes reading the ledger."""

STOP_S = 20.0
AGAIN_S = 2.0
STUCK_S = 60.0
"""Seconds that an append may wait for the API server before we say that we are not ready."""


class Controller:
    """One process: standing by, or leading."""

    def __init__(self, api: Api, settings: ClusterSettings, log: FilteringBoundLogger) -> None:
        identity = settings.identity or f"{socket.gethostname()}-{os.getpid()}"
        self.settings = msgspec.structs.replace(settings, identity=identity)
        self.log = log
        self._api = api
        self.sight = ClusterCache(api, settings.namespace)
        self.metrics = Metrics(State(), CLUSTER)
        lease_s, renew_s, retry_s = ELECTION_S
        self._election = Election(
            api, settings.namespace, ELECTION, identity, lease_s=lease_s, renew_s=renew_s, retry_s=retry_s
        )
        self._archive = None if settings.archive is None else Archive(settings.archive)
        self._term: LeaderLoop | None = None
        self._journal: Journal | None = None
        self._stopping = asyncio.Event()
        self._pages = Pages({"/metrics": self._scrape, "/healthz": self._healthy, "/readyz": self._ready})

    async def run(self) -> None:
        """Live until told to stop. OSError where the port for metrics is taken."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if self.settings.metrics_port:
            await self._pages.start(ANYWHERE, self.settings.metrics_port)
        self.log.info("up", version=__version__, identity=self.settings.identity, server=self._api.access.server)
        following = [asyncio.create_task(each.run()) for each in self.sight.informers]
        leading = asyncio.create_task(self._lead_again_and_again())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({*following, leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                await self._finish(leading)
            for each in done - {stopping}:
                await each  # a task that ends by itself has failed: say with what
        finally:
            for each in (*following, leading, stopping):
                each.cancel()
            await asyncio.gather(*following, leading, stopping, return_exceptions=True)
            self._pages.close()
            self.log.info("down")

    async def _finish(self, leading: asyncio.Task[None]) -> None:
        """Stop deciding, finish the append that is under way, and let another lead."""
        if self._term is None:
            leading.cancel()
        else:
            self._term.stop()
        await asyncio.wait({leading}, timeout=STOP_S)

    # --- leading ---------------------------------------------------------------------------------------------------------

    async def _lead_again_and_again(self) -> None:
        await self.sight.synced()
        calm_collector()
        while not self._stopping.is_set():
            await self._election.acquire()
            self.log.info("leads", identity=self.settings.identity)
            try:
                await self._lead()
            except Conflict as error:
                self.log.warning("another controller appended to the ledger; stepping down", error=str(error))
            except (ApiError, Unreachable) as error:
                self.log.warning("the ledger cannot be opened or written", error=str(error))
            finally:
                self._term = self._journal = None
                await self._election.release()
            self.log.info("leads no more")
            if not self._stopping.is_set():
                await asyncio.sleep(AGAIN_S)

    async def _lead(self) -> None:
        """Open the ledger and decide, for as long as the election is ours."""
        holding = asyncio.create_task(self._election.hold())
        deciding = asyncio.create_task(self._decide())
        try:
            await asyncio.wait({holding, deciding}, return_when=asyncio.FIRST_COMPLETED)
            if not deciding.done():
                self.log.warning("leadership was lost", holder=self._election.holder)
        finally:
            for each in (holding, deciding):
                if not each.done():
                    each.cancel()
            await asyncio.gather(holding, deciding, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            deciding.result()

    async def _decide(self) -> None:
        self.sight.refresh()
        self._journal = journal = await Journal.open(self._api, archive=self._archive)
        await self.sight.synced()
        self._term = term = LeaderLoop(
            self._api, journal, self.sight, self.settings, self.metrics, self.log, self._archive
        )
        head = term.decider.head
        if journal.rebuilt:
            self.log.warning("another version took the snapshots; the entries were folded instead")
        self.log.info("decides", seq=head.seq, hash=head.hash)
        if self._stopping.is_set():
            return
        await term.run()

    # --- pages -----------------------------------------------------------------------------------------------------------

    def _healthy(self) -> Page:
        return Page(b"ok\n")

    def _ready(self) -> Page:
        """Ready: all is seen, and, where we lead, decisions are made and appended."""
        unseen = [each.resource.plural for each in self.sight.informers if not each.synced.is_set()]
        wrong = [f"not seen yet: {', '.join(unseen)}"] if unseen else []
        wrong += [f"{each.resource.plural}: {each.problem}" for each in self.sight.informers if each.problem]
        if self._waits_s() > STUCK_S:
            wrong.append(f"an append has been waiting for {self._waits_s():.0f} s")
        if wrong:
            return Page("\n".join([*wrong, ""]).encode(), "503 Service Unavailable")
        return Page(b"leading\n" if self._term is not None else b"standing by\n")

    def _waits_s(self) -> float:
        since = None if self._journal is None else self._journal.waiting_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def _scrape(self) -> Page:
        gauges, term, sight = self.metrics.gauges, self._term, self.sight
        gauges["leading"].set(term is not None)
        gauges["held"].set(self.settings.hold or sight.held)
        gauges["ledger_waiting_seconds"].set(self._waits_s())
        gauges["writes_waiting"].set(0 if term is None else term.projector.writer.waiting)
        gauges["unwritten_objects"].clear()
        for target in () if term is None else term.projector.writer.failed:
            gauges["unwritten_objects"].labels(target.kind).inc()
        for each in sight.informers:
            kind = each.resource.plural
            gauges["objects_seen"].labels(kind).set(len(each.objects))
            gauges["objects_unreadable"].labels(kind).set(len(each.unreadable))
            gauges["watches_broken"].labels(kind).set(each.problem is not None)
        ignored = self.metrics.counters["node_events_ignored_total"]
        ignored.inc(sight.ignored)
        sight.ignored = 0
        return self.metrics.scrape(None if term is None else term.decider, 0 if term is None else term.now())
