"""Lookout: what a backend has to tell without being asked. It raises notices; who hears of them, and how, is not its affair.

Notices come from the entries of the ledger as they are appended, and from looks at the state: at reservations that come, at money
that runs low. It remembers what it has looked at, so that nothing is thought through twice; what it forgets with a restart is told
again under the same key.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.model.amount import format_instant
from fairlease.model.record import short
from fairlease.report import notices as nt
from fairlease.report.budget_warnings import alarms
from fairlease.report.preemption_warnings import WarningStage, coming, ending, stages

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.ledger.store.protocol import Entry
    from fairlease.model.record import Key
    from fairlease.scheduler import Decider

LOOK_EVERY_S = 1.0
IDLE_S = 60.0


class Picture(NamedTuple):
    """What a run that is to be cut is shown, for as long as that is so."""

    due: int
    claim: Key | None
    text: str

    def told(self, run: Key) -> dict[str, Any]:
        """As JSON."""
        told = {"kind": nt.NoticeKind.CUT_COMING.value, "run": short(run), "due": format_instant(self.due)}
        if self.claim is not None:
            told["claim"] = short(self.claim)
        return told | {"text": self.text}


class AlertRules:
    """Looks at one state. `now` is the ledger's time, `owner_of` knows the owners of runs that are over too."""

    def __init__(self, decider: Decider, now: Callable[[], int], owner_of: Callable[[Key], str]) -> None:
        self._decider, self._now, self._owner_of = decider, now, owner_of
        self._told: set[str] = set()
        self._looked: set[tuple[str, str]] = set()
        self._dangers: dict[str, nt.Notice] = {}
        self._look_at_s = 0.0
        self._alarm_at: int | None = 0

    def follow(self, entry: Entry) -> list[nt.Notice]:
        """What an entry that was appended has to tell."""
        self._alarm_at = 0
        return nt.of_entry(self._decider.engine, entry, self._owner_of)

    # --- what comes ------------------------------------------------------------------------------------------------------

    def next_stage(self, waits: list[float]) -> WarningStage | None:
        """A reservation of which it is time to tell, the last of its stages that has come; `waits`: seconds until others are."""
        now, found, names = self._now(), dict[str, WarningStage](), set[str]()
        for stage in stages(self._decider.state):
            names.add(stage.name)
            if stage.since <= now:
                found[stage.name] = stage
            else:
                waits.append((stage.since - now) / 1000)
        self._dangers = {name: each for name, each in self._dangers.items() if name in names}
        self._looked = {each for each in self._looked if each[0] in names}
        fresh = [stage for stage in found.values() if (stage.name, stage.word) not in self._looked]
        return min(fresh, key=lambda stage: stage.due, default=None)

    def look_ahead(self, stage: WarningStage) -> nt.Notice | None:
        """Who may be cut for it: a rehearsal of the resolver, one at a time."""
        self._looked.add((stage.name, stage.word))
        found = coming(self._decider.engine, stage, self._now())
        self._dangers.pop(stage.name, None)
        if found is not None:
            self._dangers[stage.name] = found
        return found

    def look_at_money(self) -> tuple[list[nt.Notice], float]:
        """Look where something changed or a threshold is reached, not oftener than once a second; and seconds until the next."""
        now, soon_s = self._now(), self._look_at_s - time.monotonic()
        if self._alarm_at is None or self._alarm_at > now:
            return [], IDLE_S if self._alarm_at is None else (self._alarm_at - now) / 1000
        if soon_s > 0:
            return [], soon_s
        self._look_at_s = time.monotonic() + LOOK_EVERY_S
        found = alarms(self._decider.state, now)
        self._alarm_at = found.again_at
        fresh = [each for each in found.notices if each.key not in self._told]
        self._told = {each.key for each in found.notices}  # what comes again has its old key
        return fresh, IDLE_S if found.again_at is None else max(0.0, (found.again_at - now) / 1000)

    # --- what is shown ---------------------------------------------------------------------------------------------------

    def pictures(self) -> dict[Key, Picture]:
        """What each run that may be cut before long is shown: the first that comes."""
        shown = {
            run: Picture(due, None, "its money no longer covers it") for run, due in ending(self._decider.state).items()
        }
        for danger in sorted(self._dangers.values(), key=lambda each: each.due or 0, reverse=True):
            for run in danger.concerns:
                if danger.due is not None and (run not in shown or danger.due < shown[run].due):
                    shown[run] = Picture(danger.due, danger.claim, danger.text)
        return shown
