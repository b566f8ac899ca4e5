"""The audit's own fold of the ledger: every event is played again, in the simplest books that can prove the claims.

It shares nothing with the live state. A run is forgotten when it ends, but for its name, and a lease when it closes, so
that memory follows what is open. After a finding the fold goes on as well as it can, to find what else is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from fairlease.ledger.audit import admission
from fairlease.ledger.audit.accounts import (
    BORROWED,
    CLASSES,
    OVERDRAWN,
    OWNED,
    SHARED,
    SPARES,
    AuditAccount,
    AuditNode,
    AuditRun,
    Lease,
    LostPods,
    Money,
    Vacated,
    bits,
)
from fairlease.ledger.audit.admission import PassedPod, affords, exceeded, within
from fairlease.ledger.audit.kinship import CoverOrder, Kinship
from fairlease.ledger.state import events as ev
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.lease import Fund, Payer, Role
from fairlease.model.node import matches
from fairlease.model.run import LocationPolicy
from fairlease.reason import Reason

ONE_PAYER = "onePayerPerGPUSecond"
NO_SLOT_DOUBLED = "noSlotDoubled"
IN_ORDER = "payersInOrderOfCover"
NO_CAP_EXCEEDED = "noCapExceededAtAdmission"
NO_LEASE_REWRITTEN = "noLeaseRewritten"

Finder = Callable[[str, tuple[str, ...], str], None]
"""Takes down what is wrong: the claim, the objects, a sentence."""

# In Python 3.11 a member of an enum is found far more slowly through its class than as a global.
ACTIVE, TENANT, SWAP, LOST = Role.ACTIVE, Role.BORROWED, Reason.Swap, Reason.NodeFailure
NEVER_SEEN = (-(1 << 62), 0)
OWN_MONEY, LENT_MONEY, REQUIRED = Fund.OWNED, Fund.BORROWED, LocationPolicy.REQUIRE
PREEMPTED = frozenset((
    Reason.Shrink, Reason.DropSpare, Reason.RandomPreempt, Reason.ReclaimOpportunistic, Reason.ReclaimOverdrawn,
))  # fmt: skip


def _ignored(event: ev.AnyEvent) -> None:
    """An event that moves neither slots nor money."""


def _lease_name(run: str, attempt: int, number: int) -> str:
    return f"{run.partition('/')[2]}-{attempt}-{number}"


class Replay:
    """The books. `at` is the time of the entry that is being played; its caller sets it."""

    def __init__(self, found: Finder) -> None:
        self.found = found
        self.at = 0
        self.leases = 0
        self.accounts: dict[tuple[str, str], AuditAccount] = {}
        self.gone: list[AuditNode] = []
        self._config = Config()
        self._nodes: dict[str, AuditNode] = {}
        self._budgets: dict[str, BudgetSpec] = {}
        self._runs: dict[str, AuditRun] = {}
        # Apart from those that live, which are few, and stay in the processor's cache: when each ended, and the first number that
        # none of its leases has reached.
        self._gone_runs: dict[str, tuple[int, int]] = {}
        self._masks: dict[tuple[int, ...], int] = {}
        self._kinship = Kinship(self._account)
        self.plays: dict[type, Callable[[Any], None]] = {
            ev.Configured: self._configured, ev.NodeSet: self._node_set, ev.NodeFailed: self._node_gone,
            ev.NodeRemoved: self._node_gone, ev.BudgetSet: self._budget_set, ev.BudgetRemoved: self._budget_removed,
            ev.RunSubmitted: self._submitted, ev.FundingSet: self._funded, ev.LeasesOpened: self._opened,
            ev.LeasesClosed: self._closed, ev.LeasesLeaving: self._leaving, ev.RunEnding: self._ending,
            ev.SwapAwaited: self._awaited,
            ev.RunEnded: self._ended, ev.CoverLost: self._cover_lost, ev.CoverRegained: self._cover_regained,
        }  # fmt: skip
        self.plays |= {kind: _ignored for kind in get_args(ev.AnyEvent) if kind not in self.plays}

    # --- nodes, budgets, settings ----------------------------------------------------------------------------------

    def _configured(self, event: ev.Configured) -> None:
        self._config = event.config
        for account in self.accounts.values():
            account.fits = set()

    def _node_set(self, event: ev.NodeSet) -> None:
        name, labels = event.node.name, event.node.labels
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = AuditNode(name)
        if labels != node.labels:
            node.labels, node.place = labels, object()
        node.usable = event.node.gpus

    def _node_gone(self, event: ev.NodeFailed | ev.NodeRemoved) -> None:
        node = self._nodes.get(event.node)
        if node is not None:
            node.usable = 0
            self.gone.append(node)

    def settle_nodes(self) -> None:
        """At the end of an entry nothing may be open on a node that went in it."""
        for node in self.gone:
            if node.usable == 0 and node.held():
                self.found(NO_SLOT_DOUBLED, (node.name,), f"node {node.name} is gone, but leases on it are open")
        self.gone.clear()

    def _account(self, budget: str, envelope: str) -> AuditAccount:
        account = self.accounts.get((budget, envelope))
        if account is None:
            account = self.accounts[budget, envelope] = AuditAccount(budget, envelope)
        return account

    def _budget_set(self, event: ev.BudgetSet) -> None:
        self._withdraw(event.budget)
        spec = self._budgets[event.budget] = event.spec
        self._kinship.put(event.budget, spec)
        for terms in spec.envelopes:
            self._account(event.budget, terms.name).set_terms(spec.owner, terms)
        for cap in spec.aggregate_caps:
            members = [self._account(event.budget, name) for name in cap.envelopes]
            for member in members:
                member.cap(cap, members)

    def _budget_removed(self, event: ev.BudgetRemoved) -> None:
        self._withdraw(event.budget)
        self._kinship.put(event.budget, None)

    def _withdraw(self, budget: str) -> None:
        spec = self._budgets.pop(budget, None)
        for terms in () if spec is None else spec.envelopes:
            self._account(budget, terms.name).set_terms("", None)

    # --- runs ------------------------------------------------------------------------------------------------------

    def _submitted(self, event: ev.RunSubmitted) -> None:
        name, spec = event.run, event.spec
        ended, reached = self._gone_runs.get(name, NEVER_SEEN)
        if name in self._runs or ended + max(1, self._config.name_retention) > self.at:
            self.found(NO_LEASE_REWRITTEN, (name,), f"the name {name} was submitted before, and is taken still")
        limit, where = spec.runtime.max_duration, spec.locality
        required = where.location if where.location_policy is REQUIRED else {}
        run = AuditRun(spec.owner, spec.resources.gpu_type, spec.funding, limit, not spec.opportunistic, required)
        self._runs[name] = run
        run.first = reached
        if spec.funding.allow_borrow:
            run.fund(spec.funding)

    def _funded(self, event: ev.FundingSet) -> None:
        run = self._runs.get(event.run)
        if run is None:
            return self._dead(event.run, "funding was set")
        run.fund(event.funding)
        return None

    def _dead(self, name: str, what: str) -> None:
        why = "has ended" if name in self._gone_runs else "was never submitted"
        self.found(NO_LEASE_REWRITTEN, (name,), f"{what}, but run {name} {why}")

    def _ended(self, event: ev.RunEnded) -> None:
        name, bill = event.run, event.bill
        run = self._runs.get(name)
        if run is None:
            return self._dead(name, "a run ended")
        if run.open:
            self._left_open(name, run, "ended")
        told = [bill.owned, bill.shared, bill.borrowed, bill.overdrawn, bill.spares]
        if told != run.bill or bill.sponsors or run.sponsors:
            self._compare(name, run, told, bill.sponsors)
        del self._runs[name]
        self._gone_runs[name] = self.at, run.reached()
        return None

    def _left_open(self, name: str, run: AuditRun, what: str) -> None:
        """Say so, and close them, so that one omission is found once."""
        leases = tuple(_lease_name(name, run.attempt, number) for number in run.held())
        self.found(NO_LEASE_REWRITTEN, (name, *leases), f"{name} {what} with {len(leases)} leases open")
        for number, lease in run.leases.items():
            if lease is not None:
                self._close(run, number, lease)

    def _compare(self, name: str, run: AuditRun, told: list[int], sponsors: dict[str, int]) -> None:
        for kind, stated, due in zip(CLASSES, told, run.bill, strict=True):
            if stated != due:
                text = f"the bill of {name} states {stated} GPU-ms {kind}; its leases give {due}"
                self.found(ONE_PAYER, (name,), text)
        lent = run.sponsors or {}
        for owner in sorted(sponsors.keys() | lent.keys()):
            stated, due = sponsors.get(owner, 0), lent.get(owner, 0)
            if stated != due:
                text = f"the bill of {name} states {stated} GPU-ms from sponsor {owner}; its leases give {due}"
                self.found(ONE_PAYER, (name, owner), text)

    def _cover_lost(self, event: ev.CoverLost) -> None:
        run = self._runs.get(event.run)
        if run is None:
            return self._dead(event.run, "cover was lost")
        account = self._account(event.budget, event.envelope)
        run.lost = (run.lost or set()) | {(account, event.group)}
        return self._reclassify(run, account)

    def _cover_regained(self, event: ev.CoverRegained) -> None:
        run = self._runs.get(event.run)
        if run is None:
            return self._dead(event.run, "cover was regained")
        account = self._account(event.budget, event.envelope)
        run.lost = (run.lost or set()) - {(account, event.group)}
        return self._reclassify(run, account)

    def _reclassify(self, run: AuditRun, account: AuditAccount) -> None:
        """Settle what leases of another class now owe in the old one. Spares stay spares."""
        for number, lease in run.leases.items():
            if lease is None or lease[5] is not account or lease[2] == SPARES or number in run.leaving:
                continue
            since, gpus, before, fund, group, _, owner, deadline, node, mask, role = lease
            kind = OVERDRAWN if run.overdrawn(account, group) else fund
            if kind != before:
                spent = gpus * (self.at - since)
                run.bill[before] += spent
                if fund == BORROWED:
                    run.owe(owner, spent)
                run.leases[number] = (self.at, gpus, kind, fund, group, account, owner, deadline, node, mask, role)

    # --- leases ----------------------------------------------------------------------------------------------------

    def _opened(self, event: ev.LeasesOpened) -> None:
        name, attempt = event.run, event.attempt
        run = self._runs.get(name)
        if run is None:
            return self._dead(name, "leases were opened")
        if attempt != run.attempt:
            if run.attempt:
                self._again(name, run, attempt)
            run.begin(attempt, self.at)
        asked = run.owner, run.flavor, run.lenders
        order = self._kinship.orders.get(asked) or self._kinship.order(*asked)
        payers = []
        for payer in event.payers:
            payers.append(self._payer(run, event, payer, order))  # noqa: PERF401 - in Python 3.11 a comprehension is one call more
        for cell in event.cells:
            self._open(event, run, cell, payers)
        self.leases += len(event.cells)
        return None if event.reason is SWAP else self._admit(event, run, payers, order)

    def _take_over(self, name: str, run: AuditRun, cell: ev.Cell) -> None:
        """A swap is asked no terms, as it only moves what was lost in the same entry: so no more may open than was lost.

        A spare opens for a swap where a drill has one change places with a rank.
        """
        at, lost, _ = run.fallen
        left = lost.get((cell.group, cell.role), 0) - len(cell.slots) if at == self.at else -1
        if left < 0:
            lease = _lease_name(name, run.attempt, cell.number)
            text = f"lease {lease} opened for a swap, but group {cell.group} lost no such pod with its node"
            self.found(NO_CAP_EXCEEDED, (name, lease), text)
        lost[cell.group, cell.role] = left

    def _again(self, name: str, run: AuditRun, attempt: int) -> None:
        """Another attempt begins: it must be a later one, and the last one must be over."""
        if attempt < run.attempt:
            self.found(NO_LEASE_REWRITTEN, (name,), f"attempt {attempt} of {name} came after {run.attempt}")
        if run.open:
            self._left_open(name, run, f"began attempt {attempt}")

    def _payer(self, run: AuditRun, event: ev.LeasesOpened, payer: Payer, order: CoverOrder) -> Money:
        owner, fund = payer.owner, payer.fund
        account = self.accounts.get((payer.budget, payer.envelope)) or self._account(payer.budget, payer.envelope)
        money = (account, OWNED if fund is OWN_MONEY else BORROWED if fund is LENT_MONEY else SHARED, owner)
        if event.reason is SWAP:
            # A swap goes on with the money of what was lost, whatever has become of its Budget and of kinship since.
            if run.fallen.at != self.at or money not in run.fallen.payers:
                self._bad_payer(event, payer, "paid for none of the pods that the swap replaces")
        elif account.terms is None:
            self._bad_payer(event, payer, "does not exist")
        elif account.owner != owner:
            self._bad_payer(event, payer, f"belongs to {account.owner}, not to {owner}")
        elif order.funds.get(account) != money[1]:
            self._bad_payer(event, payer, self._misread(run, account, payer, order), IN_ORDER)
        return money

    def _bad_payer(self, event: ev.LeasesOpened, payer: Payer, why: str, claim: str = ONE_PAYER) -> None:
        objects = (event.run, payer.budget, payer.envelope)
        self.found(claim, objects, f"envelope {payer.envelope} of {payer.budget}, payer of {event.run}, {why}")

    def _misread(self, run: AuditRun, account: AuditAccount, payer: Payer, order: CoverOrder) -> str:
        """Why an envelope may not pay for a run in the relation that is stated."""
        whose, terms = f"a run of {run.owner}", account.terms
        if account in order.funds:
            return f"is stated to be {payer.fund.value}, but to {whose} it is {CLASSES[order.funds[account]]}"
        if terms is not None and terms.flavor != run.flavor:
            return f"pays for {terms.flavor}, but the run asks for {run.flavor}"
        if payer.owner in self._kinship.kin(run.owner):
            return f"is not shared with the family, and so not with {whose}"
        if payer.fund is LENT_MONEY and not run.lenders:
            lacks = "does not allow borrowing" if not run.funding.allow_borrow else "names no sponsors"
            return f"is borrowed, but the run's spec {lacks}"
        named = "nor a sponsor, an ancestor or a cousin that it may borrow from" if run.lenders else ""
        return (
            f"has no place in the order of cover of {whose}: {payer.owner} is not of its family{named and ', ' + named}"
        )

    def _open(self, event: ev.LeasesOpened, run: AuditRun, cell: ev.Cell, payers: list[Money]) -> None:
        """Take the slots and put the lease on the books of its payer."""
        number, slots, role, place = cell.number, cell.slots, cell.role, cell.payer
        if number in run.leases or number < run.first or not 0 <= place < len(payers):
            return self._misnamed(event, run, cell)
        account, fund, owner = payers[place]
        now, gpus, deadline, kind = self.at, len(slots), run.deadline, fund
        mask = self._masks.get(slots) or self._bits(slots)
        node = self._nodes.get(cell.node) or self._node(cell.node)
        if role is ACTIVE:
            taken = mask & (node.active | node.tenant | node.spare)
            node.active |= mask
        elif role is TENANT:
            taken = mask & (node.active | node.tenant)
            if mask & ~node.spare or run.counted:
                self._no_tenant(event, cell)
            node.tenant |= mask
        else:
            taken = mask & (node.active | node.tenant | node.spare)
            node.spare |= mask
            kind = SPARES
        if taken or mask >> node.usable or mask.bit_count() != gpus:
            self._bad_slots(_lease_name(event.run, run.attempt, number), node, taken, slots)
        if run.lost and kind != SPARES and run.overdrawn(account, cell.group):
            kind = OVERDRAWN
        counted = gpus if run.counted else 0
        account.all.change(now, gpus, counted, deadline)
        if fund == BORROWED:
            run.borrowed += gpus
            account.lent.change(now, gpus, counted, deadline)
        run.leases[number] = (now, gpus, kind, fund, cell.group, account, owner, deadline, node, mask, role)
        run.open += 1
        if event.reason is SWAP:
            self._take_over(event.run, run, cell)
        else:
            if node.place not in account.fits:
                self._fit(event, account, node)
            if run.location and not matches(node.labels, run.location):
                text = f"when {event.run} was admitted: node {node.name} lies outside the location that it requires"
                self.found(IN_ORDER, (event.run, node.name), text)
        return None

    def _misnamed(self, event: ev.LeasesOpened, run: AuditRun, cell: ev.Cell) -> None:
        """A lease that cannot be put on any books."""
        lease = _lease_name(event.run, run.attempt, cell.number)
        if cell.number in run.leases or cell.number < run.first:
            text = f"the name of lease {lease} was used before"
            self.found(NO_LEASE_REWRITTEN, (event.run, lease), text)
        else:
            self.found(ONE_PAYER, (event.run, lease), f"lease {lease} has no payer")

    def _no_tenant(self, event: ev.LeasesOpened, cell: ev.Cell) -> None:
        lease = _lease_name(event.run, event.attempt, cell.number)
        text = f"lease {lease} borrows slots of {cell.node} that are no spare's, or is not opportunistic"
        self.found(NO_SLOT_DOUBLED, (lease, cell.node), text)

    def _node(self, name: str) -> AuditNode:
        """A node that nobody has seen; it has no GPUs, and so is found out."""
        return self._nodes.setdefault(name, AuditNode(name))

    def _bits(self, slots: tuple[int, ...]) -> int:
        return self._masks.setdefault(slots, bits(slots))

    def _bad_slots(self, lease: str, node: AuditNode, doubled: int, slots: tuple[int, ...]) -> None:
        objects = (lease, node.name)
        if doubled:
            held = [slot for slot in range(doubled.bit_length()) if doubled >> slot & 1]
            self.found(NO_SLOT_DOUBLED, objects, f"lease {lease} takes slots {held} of {node.name}, held by another")
        if len(set(slots)) != len(slots):
            self.found(NO_SLOT_DOUBLED, objects, f"lease {lease} names a slot of {node.name} twice: {list(slots)}")
        beyond = [slot for slot in slots if not 0 <= slot < node.usable]
        if beyond and node.usable:
            has = f"{node.name} has {node.usable} GPUs"
            self.found(NO_SLOT_DOUBLED, objects, f"lease {lease} takes slots {beyond}, but {has}")
        elif beyond:
            self.found(NO_SLOT_DOUBLED, objects, f"lease {lease} lies on node {node.name}, which is not there")

    def _fit(self, event: ev.LeasesOpened, account: AuditAccount, node: AuditNode) -> None:
        if not self._fits(account, node):
            self._over(event, account, admission.misplaced(account, node, self._config.labels.flavor))

    def _fits(self, account: AuditAccount, node: AuditNode) -> bool:
        """Whether an envelope's money may be spent on a node; mostly it may, and then that is remembered."""
        fits = node.place in account.fits or not admission.misplaced(account, node, self._config.labels.flavor)
        if fits:
            account.fits.add(node.place)
        return fits

    def _admit(self, event: ev.LeasesOpened, run: AuditRun, payers: list[Money], order: CoverOrder) -> None:
        """Ask the terms of each payer, now that the leases are on its books."""
        now, quantum, counted = self.at, self._config.commit_quantum, run.counted
        for index, (account, fund, _) in enumerate(payers):
            if order.places.get(account):
                self._in_turn(event, run, payers, index, order)
            if fund == OWNED and within(account, now, quantum, counted):
                continue
            sentences = exceeded(account, now, quantum, counted)
            if fund == BORROWED:
                sentences += admission.lent_too_much(account, run.owner, now, quantum, counted)
                sentences += admission.borrowed_too_much(run)
            if sentences:
                self._over(event, account, sentences)

    def _in_turn(
        self, event: ev.LeasesOpened, run: AuditRun, payers: list[Money], index: int, order: CoverOrder
    ) -> None:
        """No payer may stand where one that comes before it could have paid for a pod of its, on that very node."""
        now, quantum, payer, limit = self.at, self._config.commit_quantum, payers[index][0], run.max_duration
        sizes: dict[int, list[str]] = {}
        for cell in event.cells:
            if cell.payer == index and cell.node in self._nodes:
                sizes.setdefault(len(cell.slots), []).append(cell.node)
        # Growth is asked as if it ran for the whole limit, all of it, though it promises only what is left of that.
        over = 0 if limit is None or run.deadline is None else now + limit - run.deadline
        over *= sum(len(cell.slots) for cell in event.cells)
        for gpus, names in sizes.items():
            pod = PassedPod(gpus, gpus * (quantum if limit is None else limit) + over, run.owner, run.counted, payer)
            for earlier in order.row[: order.places[payer]]:
                if not affords(earlier, pod, now, quantum, lends=order.funds[earlier] == BORROWED):
                    continue
                name = next((each for each in dict.fromkeys(names) if self._fits(earlier, self._nodes[each])), None)
                if name is not None:
                    text = f"envelope {payer.envelope} of {payer.budget} pays for a pod of {event.run} on {name}"
                    which = f"envelope {earlier.envelope} of {earlier.budget}"
                    objects = (event.run, payer.budget, payer.envelope, earlier.budget, earlier.envelope)
                    self.found(IN_ORDER, objects, f"{text}, for which {which}, earlier in the order of cover, had room")
                    return

    def _over(self, event: ev.LeasesOpened, account: AuditAccount, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            objects = (event.run, account.budget, account.envelope)
            self.found(NO_CAP_EXCEEDED, objects, f"when {event.run} was admitted: {sentence}")

    def _closed(self, event: ev.LeasesClosed) -> None:
        run = self._runs.get(event.run)
        if run is None:
            return self._dead(event.run, "leases were closed")
        if run.leaving:
            self._as_asked(event, run)
        if event.reason is LOST or event.reason is SWAP:
            self._note_loss(event, run)
        elif event.reason in PREEMPTED:
            self._note_preempted(event, run)
        if event.names:
            for name in event.names:
                self._close_named(event.run, run, name)
        else:
            for number, lease in run.leases.items():
                if lease is not None:
                    self._close(run, number, lease)
        self._forget_units(run)
        return None

    def _forget_units(self, run: AuditRun) -> None:
        """A unit without work is no more; what opens there later is new."""
        if run.lost:
            held = [lease for number, lease in run.leases.items() if lease is not None and number not in run.leaving]
            run.lost &= {(lease[5], group) for lease in held for group in (-1, lease[4])}

    def _leaving(self, event: ev.LeasesLeaving) -> None:
        """Leases are asked to leave: they stay on the books, in the class that they are in, and promise no more than the grace."""
        run, name = self._runs.get(event.run), event.run
        if run is None:
            return self._dead(name, "leases were asked to leave")
        for each in event.names:
            digits = each.rpartition("-")[2]
            number = int(digits) if digits.isdecimal() else -1
            lease = run.leases.get(number)
            if lease is None or each != _lease_name(name, run.attempt, number):
                self.found(NO_LEASE_REWRITTEN, (name, each), f"lease {each} is asked to leave, but it is not open")
                continue
            if number in run.leaving:
                self.found(NO_LEASE_REWRITTEN, (name, each), f"lease {each} is asked to leave a second time")
                continue
            since, gpus, kind, fund, group, account, owner, deadline, *rest = lease
            for usage in (account.all, account.lent)[: 1 + (fund == BORROWED)]:
                usage.change(self.at, -gpus, 0, deadline)
                usage.change(self.at, gpus, 0, event.until)
            run.leases[number] = (since, gpus, kind, fund, group, account, owner, event.until, *rest)  # type: ignore[assignment]  # a lease with another deadline
            run.leaving[number] = (event.reason, event.seed)
        self._forget_units(run)
        return None

    def _as_asked(self, event: ev.LeasesClosed, run: AuditRun) -> None:
        """What was asked to leave closes for that, or with its node."""
        for number in self._numbers(event, run):
            asked = run.leaving.pop(number, None)
            if asked is not None and event.reason is not LOST and asked != (event.reason, event.seed):
                lease = _lease_name(event.run, run.attempt, number)
                text = f"lease {lease} was asked to leave for {asked[0].value}, but closed for {event.reason.value}"
                self.found(NO_LEASE_REWRITTEN, (event.run, lease), text)

    def _ending(self, event: ev.RunEnding) -> None:
        run = self._runs.get(event.run)
        if run is None:
            return self._dead(event.run, "a run was to end")
        if run.open > len(run.leaving):
            text = f"{event.run} is over, but {run.open - len(run.leaving)} of its leases were not asked to leave"
            self.found(NO_LEASE_REWRITTEN, (event.run,), text)
        return None

    def _awaited(self, event: ev.SwapAwaited) -> None:
        """Lost pods are to be swapped later, each when the tenant of a spare is gone."""
        run = self._runs.get(event.run)
        if run is None:
            return self._dead(event.run, "a swap was awaited")
        for spare, *_ in event.spares:
            number = int(spare.rpartition("-")[2])
            lease = run.leases.get(number)
            if lease is None or run.fallen.at != self.at:
                self.found(NO_CAP_EXCEEDED, (event.run, spare), f"{spare} is to take over, but nothing was lost")
                continue
            run.owed[spare] = LostPods(self.at, {(lease[4], ACTIVE): lease[1]}, set(run.fallen.payers))
            run.fallen.gpus[lease[4], ACTIVE] = run.fallen.gpus.get((lease[4], ACTIVE), 0) - lease[1]
        return None

    def _note_loss(self, event: ev.LeasesClosed, run: AuditRun) -> None:
        """What each group loses with a node or in a drill, by role: that much may be swapped at this moment."""
        loss = run.fallen if run.fallen.at == self.at else LostPods(self.at, {}, set())
        for lease in self._named(event, run):
            _, gpus, _, fund, group, account, owner, _, _, _, role = lease
            loss.payers.add((account, fund, owner))
            if event.reason is SWAP or role is ACTIVE:
                loss.gpus[group, role] = loss.gpus.get((group, role), 0) + gpus
        for owed in [run.owed.pop(name) for name in event.names if name in run.owed] if run.owed else ():
            loss.payers.update(owed.payers)
            for unit, gpus in owed.gpus.items():
                loss.gpus[unit] = loss.gpus.get(unit, 0) + gpus
        run.fallen = loss

    def _note_preempted(self, event: ev.LeasesClosed, run: AuditRun) -> None:
        """What leases give back that are preempted; see `affords`."""
        now, quantum = self.at, self._config.commit_quantum
        for _, gpus, _, fund, _, account, _, deadline, *_ in self._named(event, run):
            counted, promised = (
                gpus if run.counted else 0,
                gpus * (quantum if deadline is None else max(deadline - now, 0)),
            )
            lent = (counted, promised) if fund == BORROWED else (0, 0)
            account.vacate(Vacated(now, counted, promised, *lent))

    def _named(self, event: ev.LeasesClosed, run: AuditRun) -> list[Lease]:
        """The open leases that an event closes."""
        return [lease for lease in map(run.leases.get, self._numbers(event, run)) if lease is not None]

    @staticmethod
    def _numbers(event: ev.LeasesClosed, run: AuditRun) -> list[int]:
        digits = [name.rpartition("-")[2] for name in event.names]
        return [int(each) for each in digits if each.isdecimal()] if digits else run.held()

    def _close_named(self, run_name: str, run: AuditRun, name: str) -> None:
        """Close a lease of the present attempt; one of another attempt, or of none, is not there to be closed."""
        digits = name.rpartition("-")[2]
        number = int(digits) if digits.isdecimal() else -1
        lease = run.leases.get(number)
        if number not in run.leases or name != _lease_name(run_name, run.attempt, number):
            text = f"lease {name} is closed, but it was never opened, or not in attempt {run.attempt}"
            self.found(NO_LEASE_REWRITTEN, (run_name, name), text)
        elif lease is None:
            self.found(NO_LEASE_REWRITTEN, (run_name, name), f"lease {name} is closed, but it was closed before")
        else:
            self._close(run, number, lease)

    def _close(self, run: AuditRun, number: int, lease: Lease) -> None:
        since, gpus, kind, fund, _, account, owner, deadline, node, mask, role = lease
        now, counted = self.at, gpus if run.counted else 0
        run.leases[number] = None
        run.open -= 1
        run.bill[kind] += gpus * (now - since)
        if role is ACTIVE:
            node.active &= ~mask
        elif role is TENANT:
            node.tenant &= ~mask
        else:
            node.spare &= ~mask
        account.all.change(now, -gpus, -counted, deadline)
        if fund == BORROWED:
            run.borrowed -= gpus
            account.lent.change(now, -gpus, -counted, deadline)
            if kind != SPARES:
                run.owe(owner, gpus * (now - since))
