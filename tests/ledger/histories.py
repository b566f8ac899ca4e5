"""Random histories that are sound: whatever happens in them, every claim of the ledger holds."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from tests.builders import History, a_budget, a_node, a_payer, a_run, an_envelope, cell

from fairlease.ledger.state import events as ev
from fairlease.model.budget import Lending
from fairlease.model.lease import Fund, Payer, Role
from fairlease.model.record import Key, key, split
from fairlease.model.reservation import Cut, OutcomeSpec, RunRef, Scope
from fairlease.model.run import Funding, Runtime
from fairlease.reason import Reason

GPUS = 4
OWN, EXTRA = a_payer("main"), a_payer("extra")
FAMILY = a_payer("family", budget=key("org"), owner="org", fund=Fund.SHARED)
LENDER = a_payer("loan", budget=key("team/lab"), owner="lab", fund=Fund.BORROWED)
PAYERS = (OWN, EXTRA, FAMILY, LENDER)
PAYER_ON = dict(zip(("n1", "n2", "n3", "n4"), PAYERS, strict=True))
"""Money reaches one node each, so that no payer ever stands where an earlier one could pay."""
NODES = tuple(PAYER_ON)
RUNS = tuple(key(name) for name in ("a", "a-1", "team/a", "b", "c"))


class Sketch:
    """What a history has come to, so that only what may happen does."""

    def __init__(self) -> None:
        self.history = History()
        self.free_riders: set[Key] = set()
        for name in NODES:
            self.history.node(a_node(name, gpus=GPUS, labels={"rack": name}))
        main, extra, family, loan = (
            an_envelope(each.envelope, selector={"rack": name}) for name, each in PAYER_ON.items()
        )
        self.history.budget(a_budget(main, extra))
        self.history.budget(a_budget(family, owner="org"), "org")
        lender = msgspec.structs.replace(loan, lending=Lending(allow=True))
        self.history.budget(a_budget(lender, owner="lab"), "team/lab")
        self.history.after(0)
        self.waiting = list(RUNS)
        self.live: dict[Key, int] = {}
        self.count: dict[Key, int] = {}
        self.open: dict[Key, dict[str, tuple[ev.Cell, Payer]]] = {}
        self.lost: set[tuple[Key, str]] = set()

    def free(self, role: Role) -> list[tuple[str, int]]:
        """Slots that a lease of a role may take: those of spares if it is a tenant's, else those that nobody holds."""
        held = [
            (each.role, (each.node, slot))
            for leases in self.open.values()
            for each, _ in leases.values()
            for slot in each.slots
        ]
        spares = {place for kind, place in held if kind is Role.SPARE}
        taken = {place for kind, place in held if role is not Role.BORROWED or kind is not Role.SPARE}
        places = [(node, slot) for node in NODES for slot in range(GPUS) if (node, slot) not in taken]
        return [place for place in places if role is not Role.BORROWED or place in spares]

    def close(self, run: Key, names: tuple[str, ...], reason: Reason, seed: str | None = None) -> None:
        self.history.closes(run, *names, reason=reason, seed=seed)
        for name in names or tuple(self.open[run]):
            del self.open[run][name]
        held = {payer.envelope for _, payer in self.open[run].values()}
        self.lost -= {(run, envelope) for _, envelope in self.lost if envelope not in held}


@st.composite
def sound_histories(draw: st.DrawFn, most: int = 30) -> History:
    """A history of a few runs on four small nodes."""
    sketch = Sketch()
    for _ in range(draw(st.integers(0, most))):
        choices = [_submit, _open, _open, _close, _cover, _end, _requeue, _name_many, _wait, _wait]
        draw(st.sampled_from(choices))(draw, sketch)
    return sketch.history.after(0)


def _wait(draw: st.DrawFn, sketch: Sketch) -> None:
    sketch.history.after(draw(st.integers(0, 50)))


def _submit(draw: st.DrawFn, sketch: Sketch) -> None:
    if sketch.waiting:
        run = sketch.waiting.pop(draw(st.integers(0, len(sketch.waiting) - 1)))
        spec = a_run(
            opportunistic=draw(st.booleans()),
            funding=Funding(allow_borrow=True, sponsors=("lab",)),
            runtime=Runtime(max_duration=draw(st.sampled_from([None, 10, 100]))),
        )
        sketch.history.submits(run, spec)
        if spec.opportunistic:
            sketch.free_riders.add(run)
        sketch.live[run], sketch.open[run] = 1, {}


def _open(draw: st.DrawFn, sketch: Sketch) -> None:
    if not sketch.live:
        return
    run = draw(st.sampled_from(sorted(sketch.live)))
    attempt, cells = sketch.live[run], []
    payers = tuple(draw(st.permutations(PAYERS)))[: draw(st.integers(1, 3))]
    for _ in range(draw(st.integers(1, 2))):
        last = Role.BORROWED if run in sketch.free_riders else Role.SPARE
        role = draw(st.sampled_from([Role.ACTIVE, Role.ACTIVE, Role.SPARE, last]))
        node = draw(st.sampled_from([each for each, payer in PAYER_ON.items() if payer in payers]))
        slots = [slot for name, slot in sketch.free(role) if name == node]
        if slots:
            chosen = draw(st.permutations(slots))[: draw(st.integers(1, len(slots)))]
            number = sketch.count.get(run, 0)
            sketch.count[run] = number + 1
            place, group = payers.index(PAYER_ON[node]), draw(st.integers(0, 2))
            made = cell(node, *chosen, payer=place, role=role, group=group, number=number)
            sketch.open[run][f"{split(run)[1]}-{attempt}-{number}"] = (made, payers[place])
            cells.append(made)
    if cells:
        sketch.history.opens(run, *cells, payers=payers, attempt=attempt, reason=draw(st.sampled_from(_REASONS)))


_REASONS = [Reason.Start, Reason.Grow]
_CLOSURES = [Reason.Shrink, Reason.NodeFailure, Reason.Canceled]


def _close(draw: st.DrawFn, sketch: Sketch) -> None:
    holders = sorted(run for run, leases in sketch.open.items() if leases)
    if holders:
        run = draw(st.sampled_from(holders))
        names = draw(st.lists(st.sampled_from(sorted(sketch.open[run])), unique=True))
        drawn = draw(st.booleans())
        reason = Reason.RandomPreempt if drawn else draw(st.sampled_from(_CLOSURES))
        sketch.close(run, tuple(names), reason, "5eed" if drawn else None)


def _cover(draw: st.DrawFn, sketch: Sketch) -> None:
    again = draw(st.booleans())
    if sketch.lost and again:
        run, envelope = draw(st.sampled_from(sorted(sketch.lost)))
        sketch.lost.discard((run, envelope))
        sketch.history.regains_cover(run, envelope)
        return
    mine = {(run, payer.envelope) for run, held in sketch.open.items() for _, payer in held.values()}
    ours = sorted((run, envelope) for run, envelope in mine if envelope in ("main", "extra"))
    if ours:
        run, envelope = draw(st.sampled_from(ours))
        sketch.lost.add((run, envelope))
        sketch.history.loses_cover(run, envelope)


def _end(draw: st.DrawFn, sketch: Sketch) -> None:
    if sketch.live:
        run = draw(st.sampled_from(sorted(sketch.live)))
        sketch.close(run, (), Reason.Completed)
        sketch.history.ends(run)
        del sketch.live[run]


def _requeue(draw: st.DrawFn, sketch: Sketch) -> None:
    if sketch.live:
        run = draw(st.sampled_from(sorted(sketch.live)))
        sketch.close(run, (), Reason.NodeFailure)
        sketch.history.requeues(run)
        sketch.live[run] += 1


def _name_many(draw: st.DrawFn, sketch: Sketch) -> None:
    some = tuple(draw(st.lists(st.sampled_from(RUNS), min_size=1, max_size=3)))
    if draw(st.booleans()):
        sketch.history.says(ev.RunDeferred(runs=some, reason=Reason.NoRoom, message="full", tally={"NoRoom": 1}))
    else:
        cut = Cut(run=some[-1], leases=(), reason=Reason.RandomPreempt, gpus=1)
        outcome = OutcomeSpec(
            claim=RunRef.of(some[0]),
            at=0,
            scope=Scope(flavor="H100"),
            deficit_gpus=1,
            conflict_set=some,
            actions=(cut,),
            previous="",
        )
        sketch.history.says(ev.OutcomeRecorded(name="outcome-1", outcome=outcome))
