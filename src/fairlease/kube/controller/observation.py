"""From what is seen to what the engine is told: objects, compared with the state, become commands.

Nothing here trusts what admission should have seen to: an owner is compared with the namespace's once more, a spec is read once
more, and what cannot be is refused with a reason that becomes a condition. Nothing here raises for what stands in an object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.engine.refusal import Refusal
from fairlease.kube.api.annotation_commands import (
    DONE,
    DRILL,
    FRESH_MS,
    RESOLVE,
    RESOLVE_BY,
    Reply,
    read_drill,
    read_resolve,
)
from fairlease.kube.api.names import OWNER
from fairlease.kube.api.wire_types import KILLED, NEVER_MADE, read
from fairlease.model.amount import SECOND, parse_instant
from fairlease.model.objects import BudgetObject, RunObject
from fairlease.model.owner import at_or_below
from fairlease.model.record import Key, split
from fairlease.model.run import Funding, Phase
from fairlease.reason import Reason
from fairlease.runtime.clock import pause_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fairlease.kube.api.cache import ClusterCache
    from fairlease.kube.api.wire_types import OwnSeen, PodSeen
    from fairlease.kube.projection.gangs import Gangs
    from fairlease.kube.projection.projector import Remarks
    from fairlease.kube.projection.tombstones import Tombstones
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.run import Malleable, RunSpec

_OVER = (Phase.COMPLETED.value, Phase.FAILED.value)

SKEW_MS = 2 * SECOND
"""How far the API server's clock, which knows only seconds, may seem to lie behind ours."""


class Observer:
    """Turns marks into commands; `remarks` gets what is to be told of what cannot be one."""

    def __init__(
        self,
        state: State,
        sight: ClusterCache,
        chronicle: Tombstones,
        remarks: Remarks,
        now: Callable[[], int],
        backoff_ms: int,
    ) -> None:
        self._state, self._sight, self._chronicle, self._now = state, sight, chronicle, now
        self._backoff_ms, self._remarks = backoff_ms, remarks
        self.held = False
        self._asked: dict[str, str] = {}
        self._widths: dict[Key, str] = {}
        """The last width that was refused, of each run: that is told once."""

    # --- nodes and Budgets -----------------------------------------------------------------------------------------------

    def nodes(self, names: Iterable[str]) -> Iterator[cmd.AnyCommand]:
        """Nodes that are there, changed, or went."""
        known = self._state.capacity.nodes
        for name in sorted(names):
            seen = self._sight.nodes.objects.get(name)
            if seen is None:
                if name in known:
                    yield cmd.RemoveNode(node=name)
            elif seen.gpus or name in known:
                dead = not seen.ready and not self._alive_on(name)
                yield cmd.SetNode(node=seen.node(pods_dead=dead, held=self.held))

    def _alive_on(self, node: str) -> bool:
        return any(not pod.over for pod in self._sight.pods_of_node.get(node, {}).values())

    def lost_nodes(self) -> set[str]:
        """Nodes that the ledger knows and nobody sees."""
        return self._state.capacity.nodes.keys() - self._sight.nodes.objects.keys()

    def budgets(self, keys: Iterable[Key]) -> Iterator[cmd.AnyCommand]:
        """Budgets that were written, changed or deleted."""
        for each in sorted(keys):
            seen = self._sight.budgets.objects.get(each)
            found = None if seen is None else self._budget(each, seen)
            if isinstance(found, BudgetObject):
                self._remarks.refused_budgets.pop(each, None)
                yield cmd.SetBudget(budget=each, spec=found.spec)
                continue
            if found is None:
                self._remarks.refused_budgets.pop(each, None)
            else:
                self._remarks.refused_budgets[each] = found
            if each in self._state.budgets:
                yield cmd.RemoveBudget(budget=each)

    def _budget(self, name: Key, seen: OwnSeen) -> BudgetObject | Refusal:
        found = read(seen, "Budget")
        if isinstance(found, Refusal):
            return found
        assert isinstance(found, BudgetObject), "a Budget was asked for"
        return self._may_not(name, found.spec.owner) or found

    # --- runs ------------------------------------------------------------------------------------------------------------

    def runs(self, keys: Iterable[Key]) -> Iterator[cmd.AnyCommand]:
        """Runs that were submitted, changed or deleted; those that came together in the order in which they were made."""
        for each in sorted(keys, key=self._order):
            try:
                yield from self._run(each, self._sight.runs.objects.get(each))
            except (TypeError, ValueError, AttributeError, RecursionError) as error:
                message = f"it is of a shape that cannot be read: {error}"
                self._remarks.refused[each] = Refusal(Reason.InvalidRequest, message, {})

    def _order(self, name: Key) -> tuple[str, Key]:
        seen = self._sight.runs.objects.get(name)
        return ("" if seen is None else seen.metadata.creation_timestamp, name)

    def _run(self, name: Key, seen: OwnSeen | None) -> Iterator[cmd.AnyCommand]:
        live = self._state.runs.get(name)
        if seen is None or seen.metadata.deletion_timestamp is not None:
            self._remarks.refused.pop(name, None)
            if live is not None:
                yield cmd.Cancel(run=name)
            return
        if live is not None:
            if self._another(seen, live.submitted_at):
                yield cmd.Cancel(run=name)
                self._remarks.refused[name] = _used(name)
            else:
                yield from self._edited(live, seen)
                yield from self._drilled(live, seen)
            return
        if self._state.name_taken(name, self._now()):
            self._after_the_end(name, seen)
            return
        if seen.status.get("submittedAt") is not None and seen.status.get("phase") in _OVER:
            return  # its name is free again, but not for itself: this object is of the run that ended
        found = self._request(name, seen)
        if isinstance(found, Refusal):
            self._remarks.refused[name] = found
        else:
            self._remarks.refused.pop(name, None)
            yield cmd.Submit(run=name, spec=found)

    def lost_runs(self) -> set[Key]:
        """Runs that live in the ledger and have no object any more."""
        return {each for each in self._state.runs if each not in self._sight.runs.objects}

    def _another(self, seen: OwnSeen, submitted_at: int) -> bool:
        """Whether an object is not the one that was submitted then, but a later one of the same name."""
        told = seen.status.get("submittedAt")
        if isinstance(told, str):
            return instant(told) != submitted_at
        return instant(seen.metadata.creation_timestamp) > submitted_at + SKEW_MS

    def _after_the_end(self, name: Key, seen: OwnSeen) -> None:
        """A name is used once. An object without a status may be of the run that ended, or of one that came too late."""
        if seen.status.get("submittedAt") is not None:
            return
        final = self._chronicle.final.get(name)
        if final is None:
            self._remarks.unknown.add(name)
        elif instant(seen.metadata.creation_timestamp) > final.ending.at + SKEW_MS:
            self._remarks.refused[name] = _used(name)

    def _edited(self, live: RunState, seen: OwnSeen) -> Iterator[cmd.AnyCommand]:
        """A spec that was edited: the width that it would like to have may change, and whom it may borrow from; nothing else."""
        self._remarks.notes.pop(live.key, None)
        if seen.status.get("observedGeneration") == seen.metadata.generation:
            return
        found = read(seen, "Run")
        if isinstance(found, RunObject):
            wanted, has = found.spec.malleable, live.spec.malleable
            if wanted is not None and has is not None and _desired(wanted) != _desired(has):
                yield cmd.Resize(run=live.key, desired=_desired(wanted))
            else:
                self._widths.pop(live.key, None)
            if found.spec.funding != live.spec.funding:
                yield cmd.SetFunding(run=live.key, funding=found.spec.funding)
            if _lasting(found.spec) == _lasting(live.spec):
                return
        self._remarks.notes[live.key] = "the spec was edited after the run was submitted; what was submitted stands"

    def answered(self, command: cmd.AnyCommand, answer: Refusal | None) -> None:
        """What the engine said to a command: a width that cannot be is told at the run, and who asked for something is told."""
        if isinstance(command, cmd.Resize) and answer is not None:
            self._remarks.notes[command.run] = answer.message
            request = f"{command.desired} GPUs"
            if self._widths.get(command.run) != request:
                self._widths[command.run] = request
                self._reply(command.run, f"{request} at {self._now()}", answer)
        elif isinstance(command, cmd.Drill):
            self._reply(command.run, self._asked.get(command.run, ""), answer)
        elif isinstance(command, cmd.Resolve):
            self._reply(self._sight.namespace, command.asked.request, answer)

    # --- requests --------------------------------------------------------------------------------------------------------

    def _drilled(self, live: RunState, seen: OwnSeen) -> Iterator[cmd.AnyCommand]:
        """A swap that somebody wants to see, unless it is old, or was made already: a controller may have died since."""
        wish = read_drill(seen.metadata.annotations.get(DRILL, ""))
        if wish is None or self._old(live.key, wish.id, wish.at):
            return
        if any(lease.reason is Reason.Swap and lease.start >= wish.at for lease in live.leases.values()):
            self._reply(live.key, wish.id, None)
        else:
            yield cmd.Drill(run=live.key, rank=wish.rank)

    def asks_lately(self) -> bool:
        """Whether an administrator asked for something to be freed that may or may not have been."""
        wish = read_resolve(self._own_marks().get(RESOLVE, ""))
        return wish is not None and abs(self._now() - wish.at) <= FRESH_MS

    def _own_marks(self) -> Mapping[str, str]:
        own = self._sight.namespaces.objects.get(self._sight.namespace)
        return {} if own is None else own.metadata.annotations

    def resolutions(self) -> Iterator[cmd.AnyCommand]:
        """What an administrator wants to be freed."""
        marks = self._own_marks()
        wish = read_resolve(marks.get(RESOLVE, ""))
        if wish is None or self._old(self._sight.namespace, wish.id, wish.at):
            return
        if wish.id in self._chronicle.requests:
            self._reply(self._sight.namespace, wish.id, None)
        else:
            asked = wish.by_hand(marks.get(RESOLVE_BY, ""))
            yield cmd.Resolve(flavor=wish.flavor, location=wish.location, asked=asked)

    def _old(self, about: str, request: str, at: int) -> bool:
        """Whether a request was seen before, or comes too late."""
        seen = self._asked.get(about) == request
        self._asked[about] = request
        return seen or abs(self._now() - at) > FRESH_MS

    def _reply(self, about: str, request: str, answer: Refusal | None) -> None:
        reason, message = (DONE, "as it was asked") if answer is None else (answer.reason.value, answer.message)
        self._remarks.replies.append(Reply(about, request, reason, message))

    def _request(self, name: Key, seen: OwnSeen) -> RunSpec | Refusal:
        found = read(seen, "Run")
        if isinstance(found, Refusal):
            return found
        assert isinstance(found, RunObject), "a Run was asked for"
        refusal = self._may_not(name, found.spec.owner)
        if refusal is not None:
            return refusal
        template = (found.spec.template or {}).get("spec") or {}
        if not template.get("containers"):
            message = "spec.template: missing; on Kubernetes the work of a run is a pod template with containers"
            return Refusal(Reason.InvalidRequest, message, {})
        return found.spec

    def _may_not(self, name: Key, owner: str) -> Refusal | None:
        """Why a namespace may not spend in the name of an owner; None where it may."""
        namespace, _ = split(name)
        seen = self._sight.namespaces.objects.get(namespace)
        bound = "" if seen is None else seen.metadata.annotations.get(OWNER, "")
        if not bound:
            return Refusal(Reason.Forbidden, f"the namespace {namespace} is bound to no owner", {})
        if at_or_below(owner, bound):
            return None
        return Refusal(Reason.Forbidden, f"the namespace {namespace} is bound to {bound}, and not to {owner}", {})

    # --- pods ------------------------------------------------------------------------------------------------------------

    def reports(self, keys: Iterable[Key], gangs: Gangs) -> Iterator[cmd.AnyCommand]:
        """What the pods of running attempts say, and what becomes of pods that are missing."""
        for each in sorted(keys):
            run = self._state.runs.get(each)
            if run is not None and run.phase is Phase.RUNNING:
                command = self._report(run, gangs)
                if command is not None:
                    yield command

    def _report(self, run: RunState, gangs: Gangs) -> cmd.AnyCommand | None:
        """The end of an attempt, where its pods tell one: all succeeded, or one failed or is gone."""
        pods = self._sight.pods_of_run.get(run.key, {})
        refused, taken = gangs.refused(run), gangs.taken(run)
        if refused is not None:
            return self._failed(run, refused, NEVER_MADE)
        active = [lease for lease in run.held if lease.rank >= 0]
        succeeded = 0
        for lease in active:
            pod = pods.get(lease.name)
            code = self._ended_with(lease, pod, gone=lease.name in taken)
            if code is not None and code != 0:
                return self._failed(run, lease, code)
            succeeded += code == 0
        if active and succeeded == len(active):
            return cmd.WorkEnded(run=run.key, attempt=run.attempt, exit_code=0)
        return None

    def _failed(self, run: RunState, lease: Lease, code: int) -> cmd.PodFailed:
        rest = pause_ms(self._backoff_ms, run.failures)
        return cmd.PodFailed(run=run.key, attempt=run.attempt, rank=lease.rank, exit_code=code, retry_after=rest)

    def _ended_with(self, lease: Lease, pod: PodSeen | None, *, gone: bool) -> int | None:
        """The exit code of a pod's work; None while it works. What happens with its node is the node's failure, not its own."""
        if pod is not None and pod.succeeded:
            return 0
        if self._sight.not_ready(lease.node):
            return None
        if pod is None:
            return KILLED if gone else None
        return pod.failure


def _desired(elastic: Malleable) -> int:
    """The width that a run would like to have; who leaves it out wants the widest that it can have."""
    return elastic.grid[-1] if elastic.desired_total_gpus is None else elastic.desired


def _lasting(spec: RunSpec) -> RunSpec:
    """What of a spec stands for good (the API server's rule on edits of Runs)."""
    elastic = None if spec.malleable is None else replace(spec.malleable, desired_total_gpus=None)
    return replace(spec, funding=Funding(), malleable=elastic)


def _used(name: Key) -> Refusal:
    return Refusal(Reason.AlreadyExists, f"a run {name} was there before, and the ledger remembers it", {})


def instant(text: str) -> int:
    """An RFC 3339 time in milliseconds; 0 where it is none."""
    try:
        return parse_instant(text)
    except ValueError:
        return 0
