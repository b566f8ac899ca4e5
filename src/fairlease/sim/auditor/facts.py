"""What the entries said so far, for all of the auditor's questions, and what the entry at hand did."""

from __future__ import annotations

from fairlease.model.config import Config
from fairlease.model.lease import Role
from fairlease.model.node import Node
from fairlease.model.record import Key
from fairlease.reason import Reason
from fairlease.sim.auditor.bookkeeper import AuditedRun, Books, Held, Unit
from fairlease.sim.auditor.reservations import Promises

Fault = tuple[str, str]
"""The claim that does not hold, and what was seen."""


class ChangeMoment:
    """What one entry did so far, and how many leases there were before it."""

    def __init__(self, leases: int) -> None:
        self.leases = leases
        self.lost: dict[Key, list[Held]] = {}
        self.vacated: dict[Key, list[Held]] = {}
        self.drilled: dict[Key, list[Held]] = {}
        self.shrunk: dict[Key, set[int]] = {}
        self.resized: set[Key] = set()
        self.drained: set[Key] = set()
        self.told: dict[Key, Reason] = {}

    def note(self, run: AuditedRun, reason: Reason, going: list[Held]) -> None:
        """Leases of a run are closed."""
        if reason is Reason.NodeFailure:
            self.lost.setdefault(run.key, []).extend(each for each in going if each.role is not Role.SPARE)
        elif reason is Reason.Swap:
            ranks = [each for each in going if each.role is not Role.SPARE]
            self.vacated.setdefault(run.key, []).extend(each for each in going if each.role is Role.SPARE)
            self.lost.setdefault(run.key, []).extend(ranks)
            self.drilled.setdefault(run.key, []).extend(ranks)
        elif reason is Reason.Shrink:
            self.shrunk.setdefault(run.key, set()).update(each.group for each in going)


class AuditFacts:
    """Nodes, runs, money and reservations as the entries told of them, up to `at`."""

    def __init__(self) -> None:
        self.config = Config()
        self.books = Books(self.config.commit_quantum)
        self.nodes: dict[str, Node] = {}
        self.peaks: dict[str, int] = {}
        self.failed: set[str] = set()
        self.silent: dict[str, int] = {}
        self.runs: dict[Key, AuditedRun] = {}
        self.overdrawn: dict[Unit, int | None] = {}
        self.promises = Promises()
        self.at = 0
        self.moment = ChangeMoment(0)

    def usable(self, node: Node) -> bool:
        """Whether new work may lie on a node."""
        keys = self.config.labels
        labelled = all(node.labels.get(each) for each in (keys.region, keys.cluster, keys.domain, keys.flavor))
        healthy = node.gpus if node.healthy_gpus is None else min(node.gpus, node.healthy_gpus)
        barred = node.name in self.failed or node.fenced or not node.ready or node.cordoned or node.held
        return labelled and not barred and healthy >= self.peaks[node.name]
