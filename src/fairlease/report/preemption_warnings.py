"""Coming: whose work may be cut for a reservation before long, so that it can write a checkpoint (SEMANTICS §6).

At a reservation's notice, and once more shortly before its date, the resolver is rehearsed as of that date (`engine.odds`), and who
stands in its way is told. Nobody can tell whom the lottery will draw, as its seed is not known before; so all whom it may cost
something are told how likely that is, apart from those who are cut in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.preempt.odds import EFFORT_BRIEF, Peril, odds
from fairlease.engine.reserve.release_times import too_late
from fairlease.model.amount import MINUTE, format_instant
from fairlease.model.record import Key, Reason, short
from fairlease.model.reservation import ReservationState
from fairlease.report.notices import Notice, NoticeKind, Risk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.context import Engine
    from fairlease.engine.preempt.odds import Odds
    from fairlease.ledger.state.state import State

LAST_CALL = 2 * MINUTE
"""How long before the date runs are told again, where the notice is long; a quarter of it where it is short."""

SOON = "soon"
"""The word of that second telling."""

COUNTED = 50
"""Of fewer lotteries than these no odds are told: they would say more of the few than of the one that comes."""

NAMED = 5
"""Runs that a sentence names; the record names them all."""


class WarningStage(NamedTuple):
    """One telling of one reservation: from `since` on, until its date."""

    name: str
    claim: Key
    since: int
    due: int
    word: str


def stages(state: State) -> Iterator[WarningStage]:
    """When those who stand in the way of each reservation are to be told."""
    notice = state.config.notice
    if notice is None:
        return
    for run in state.holds.values():
        hold = run.hold
        if hold is None or hold.state is not ReservationState.PENDING or hold.cut_from is None:
            continue
        due, name = hold.earliest_start, run.reservation
        if not too_late(run, due):  # Else nobody is cut on that date: the claim will have failed.
            yield WarningStage(name, run.key, due - notice, due, "notice")
            yield WarningStage(name, run.key, due - min(LAST_CALL, notice // 4), due, SOON)


def coming(engine: Engine, stage: WarningStage, now: int) -> Notice | None:
    """Who may be cut for a reservation, as of its date; None where nobody need be, or cutting would not help."""
    state = engine.state
    claim = state.runs[stage.claim]
    found = odds(engine, claim, EFFORT_BRIEF)
    if found is None:
        return None
    risks = _risks(state, found)
    lacks = "still lacks" if stage.word == SOON else "lacks"  # told twice, it is told apart
    text = (
        f"{short(stage.claim)} {lacks} {found.deficit_gpus} GPUs at {format_instant(stage.due)}; {_words(state, found)}"
    )
    return Notice(
        key=f"{NoticeKind.CUT_COMING.value}/{stage.name}/{stage.word}",
        kind=NoticeKind.CUT_COMING,
        at=now,
        text=text,
        run=stage.claim,
        owner=claim.spec.owner,
        due=stage.due,
        gpus=found.deficit_gpus,
        claim=stage.claim,
        runs=risks,
    )


def _risks(state: State, found: Odds) -> tuple[Risk, ...]:
    """Who is cut in any case, then who may be, the likeliest first; whom no order of draws costs anything is not in danger.

    Where lotteries were counted, who stands in them may be drawn in others, though nobody drew it in these.
    """
    perils = dict(found.perils)
    if found.draws:
        for run in found.chances.keys() - {run for run, _ in perils}:
            gpus = sum(lease.gpus for lease in state.runs[run].leases.values())
            perils[run, Reason.RandomPreempt] = Peril(0.0, gpus, certain=False)
    order = sorted(perils, key=lambda way: (-perils[way].chance, state.runs[way[0]].order, way[1].value))
    return tuple(
        Risk(run=way[0], reason=way[1], gpus=perils[way].gpus, odds=_told(found, perils[way])) for way in order
    )


def _told(found: Odds, peril: Peril) -> float | None:
    """The chance as it is told; None where too few lotteries were counted to tell one."""
    if peril.certain:
        return 1.0
    return None if 0 < found.draws < COUNTED else round(peril.chance, 4)


def _words(state: State, found: Odds) -> str:
    """Those who are certain to be cut apart from those whom the lottery may cost something, or all they have, with their odds."""
    certain, lots = list[str](), list[tuple[float, str]]()
    for run in sorted(found.chances, key=lambda run: state.runs[run].order):
        name, drawn = short(run), found.perils.get((run, Reason.RandomPreempt))
        if not found.certain(run):
            lots.append((found.chances[run], name))
            continue
        certain.append(name)
        if drawn is not None and not drawn.certain:
            lots.append((drawn.chance, f"{name} whole"))
    few = 0 < found.draws < COUNTED
    by_lot = [
        name if few else f"{name} ({chance:.1%})"
        for chance, name in sorted(lots, key=lambda each: 0 if few else -each[0])
        if chance or found.draws
    ]
    told = [f"certain to be cut then, as things stand: {_named(certain)}"] if certain else []
    counted = f" ({found.draws} draws counted)" if found.draws and not few else ""
    return "; ".join([*told, f"may be cut then, as the lot falls{counted}: {_named(by_lot)}"] if by_lot else told)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def ending(state: State) -> dict[Key, int]:
    """When overdrawn work that is drained will end, by run."""
    found: dict[Key, int] = {}
    for unit, ends in state.overdrawn.items():
        if ends is not None:
            run = Key(unit[0])
            found[run] = min(ends, found.get(run, ends))
    return found
