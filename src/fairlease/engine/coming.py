"""Coming: whose work may be cut for a reservation before long, so that it can write a checkpoint (SEMANTICS §6).

At a reservation's notice, and once more shortly before its date, the resolver is rehearsed as of that date, and who would stand in
its way is told. Nobody can tell whom the lottery will draw, as its seed is not known before; so all who stand in it are told that
they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.due_date import due_date, too_late
from fairlease.engine.notice import Kind, Notice, Risk
from fairlease.engine.resolve import resolve
from fairlease.model.amount import MINUTE, format_instant
from fairlease.model.record import Key, Reason, short
from fairlease.model.reservation import ReservationState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.decide import Engine
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State
    from fairlease.model.reservation import OutcomeSpec

LAST_CALL = 2 * MINUTE
"""How long before the date runs are told again, where the notice is long; a quarter of it where it is short."""

SOON = "soon"
"""The word of that second telling."""

NAMED = 5
"""Runs that a sentence names; the record names them all."""


class Stage(NamedTuple):
    """One telling of one reservation: from `since` on, until its date."""

    name: str
    claim: Key
    since: int
    due: int
    word: str


def stages(state: State) -> Iterator[Stage]:
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
            yield Stage(name, run.key, due - notice, due, "notice")
            yield Stage(name, run.key, due - min(LAST_CALL, notice // 4), due, SOON)


def coming(engine: Engine, stage: Stage, now: int) -> Notice | None:
    """Who may be cut for a reservation, as of its date; None where nobody need be, or cutting would not help."""
    state = engine.state
    claim = state.runs[stage.claim]
    with due_date(engine, claim) as day:
        found = None if day is None else resolve(state, engine.family, claim, day.at, 0, due=True)
    if found is None or not found.victims:
        return None
    outcome = found.record.outcome
    risks = tuple(_risks(state, outcome))
    date = format_instant(stage.due)
    names = ", ".join(short(risk.run) for risk in risks[:NAMED])
    more = f" and {len(risks) - NAMED} more" if len(risks) > NAMED else ""
    lot = "" if outcome.lottery is None else ", by lot"
    lacks = "still lacks" if stage.word == SOON else "lacks"  # told twice, it is told apart
    text = f"{short(stage.claim)} {lacks} {outcome.deficit_gpus} GPUs at {date}; may be cut then{lot}: {names}{more}"
    return Notice(
        key=f"{Kind.CUT_COMING.value}/{stage.name}/{stage.word}",
        kind=Kind.CUT_COMING,
        at=now,
        text=text,
        run=stage.claim,
        owner=claim.spec.owner,
        due=stage.due,
        gpus=outcome.deficit_gpus,
        claim=stage.claim,
        runs=risks,
    )


def _risks(state: State, outcome: OutcomeSpec) -> Iterator[Risk]:
    """Everybody in the conflict set; who goes before the lottery goes for certain, as things stand."""
    tokens = {} if outcome.lottery is None else {token.run: token.gpus for token in outcome.lottery.tokens}
    certain: dict[Key, tuple[Reason, int]] = {}
    for action in outcome.actions:
        if action.reason is not Reason.RandomPreempt:
            before = certain.get(action.run, (action.reason, 0))
            certain[action.run] = before[0], before[1] + action.gpus
    for run in outcome.conflict_set:
        if run in tokens:
            odds = 1.0 if len(tokens) == 1 else None
            yield Risk(run=run, reason=Reason.RandomPreempt, gpus=tokens[run], odds=odds)
        elif run in certain:
            reason, gpus = certain[run]
            yield Risk(run=run, reason=reason, gpus=gpus, odds=1.0)
        else:
            yield Risk(run=run, reason=_reason(state.runs[run]), gpus=0)


def _reason(run: RunState) -> Reason:
    """What a run would lose first."""
    if run.spec.opportunistic:
        return Reason.ReclaimOpportunistic
    if run.overdrawn:
        return Reason.ReclaimOverdrawn
    return Reason.DropSpare if run.spare_gpus else Reason.Shrink


def ending(state: State) -> dict[Key, int]:
    """When overdrawn work that is drained will end, by run."""
    found: dict[Key, int] = {}
    for unit, ends in state.overdrawn.items():
        if ends is not None:
            run = Key(unit[0])
            found[run] = min(ends, found.get(run, ends))
    return found
