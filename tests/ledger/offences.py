"""Everything an audit must find, as a table: what was done, against which claim, and what the finding says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.builders import BUDGET, EPOCH, History, a_budget, a_node, a_payer, a_run, an_envelope, cell

from fairlease.ledger.state import events as ev
from fairlease.model.amount import HOUR
from fairlease.model.budget import AggregateCap, Envelope, Lending, PreActivation, Sharing
from fairlease.model.lease import Fund, Role
from fairlease.model.node import LabelKeys
from fairlease.model.record import key
from fairlease.model.run import Funding, Phase, Runtime
from fairlease.reason import Reason

PAYER, SLOT, CAP, LEASE = "onePayerPerGPUSecond", "noSlotDoubled", "noCapExceededAtAdmission", "noLeaseRewritten"
LENT = a_payer("loan", budget=key("lab"), owner="lab", fund=Fund.BORROWED)
SHARED = a_payer("family", budget=key("org"), owner="org", fund=Fund.SHARED)
FOUR = (0, 1, 2, 3)
BORROWER = a_run(funding=Funding(allow_borrow=True, sponsors=("lab",)))


class Offence(NamedTuple):
    history: Callable[[], History]
    claim: str
    says: str


def running(run: str = "a") -> History:
    """One run on four GPUs of n1, an hour old."""
    return History().world().submits(run).opens(run, cell("n1", *FOUR)).after(HOUR)


def under(*envelopes: Envelope, caps: tuple[AggregateCap, ...] = (), **settings: Any) -> History:  # noqa: ANN401 - any field of Config
    """A world whose Budget has other envelopes."""
    history = History().node(a_node("n1")).node(a_node("n2"))
    return history.budget(a_budget(*envelopes, caps=caps)).config(**settings).submits("a")


def lending(**terms: Any) -> History:  # noqa: ANN401 - any field of Lending
    """A world with a lender, and a run that is willing to borrow."""
    loan = an_envelope("loan", lending=Lending(**terms))
    return History().world().budget(a_budget(loan, owner="lab"), "lab").submits("a", BORROWER)


LEASES = {
    "a lease's name is used twice while it is open": Offence(
        lambda: running().opens("a", cell("n2", 0, number=0), reason=Reason.Grow), LEASE, "a-1-0 was used before"
    ),
    "a lease's name is used again after it closed": Offence(
        lambda: running().closes("a", "a-1-0").opens("a", cell("n1", 0, number=0)), LEASE, "a-1-0 was used before"
    ),
    "an old attempt comes back": Offence(
        lambda: running().closes("a").requeues("a").opens("a", cell("n1", 0), attempt=2).opens("a", cell("n1", 1)),
        LEASE, "attempt 1 of default/a came after 2",
    ),
    "a lease is closed twice": Offence(
        lambda: running().closes("a", "a-1-0").after(5).closes("a", "a-1-0"), LEASE, "a-1-0 is closed, but it was closed before"
    ),
    "a lease is closed that nobody opened": Offence(
        lambda: running().closes("a", "a-1-7"), LEASE, "a-1-7 is closed, but it was never opened"
    ),
    "leases of a run are closed that nobody submitted": Offence(
        lambda: running().closes("ghost"), LEASE, "run default/ghost was never submitted"
    ),
    "leases open for a run that nobody submitted": Offence(
        lambda: running().opens("ghost", cell("n2", 0)), LEASE, "run default/ghost was never submitted"
    ),
    "leases open for a run that has ended": Offence(
        lambda: running().closes("a").ends("a").after(5).opens("a", cell("n1", 0, number=9)), LEASE, "default/a has ended"
    ),
    "a run ends with leases open": Offence(lambda: running().ends("a"), LEASE, "default/a ended with 1 leases open"),
    "a run ends twice": Offence(
        lambda: running().closes("a").ends("a").after(5).ends("a"), LEASE, "a run ended, but run default/a has ended"
    ),
    "a run's name is used again": Offence(
        lambda: running().closes("a").ends("a").after(5).submits("a"), LEASE, "default/a was submitted before"
    ),
}  # fmt: skip

SLOTS = {
    "two Active leases hold one slot": Offence(
        lambda: running().submits("b").opens("b", cell("n1", 3, 4)), SLOT, "takes slots [3] of n1"
    ),
    "an Active lease lies on a Spare": Offence(
        lambda: running().opens("a", cell("n2", 0, role=Role.SPARE)).submits("b").opens("b", cell("n2", 0)), SLOT, "slots [0] of n2"
    ),
    "two tenants share one spare": Offence(
        lambda: running().opens("a", cell("n2", 0, role=Role.SPARE))
        .opens("a", cell("n2", 0, role=Role.BORROWED), cell("n2", 0, role=Role.BORROWED)),
        SLOT, "slots [0] of n2",
    ),
    "a spare is laid under a tenant": Offence(
        lambda: running().opens("a", cell("n2", 0, role=Role.BORROWED)).opens("a", cell("n2", 0, role=Role.SPARE)),
        SLOT, "slots [0] of n2",
    ),
    "a tenant lies on an Active lease": Offence(
        lambda: running().submits("b").opens("b", cell("n1", 0, role=Role.BORROWED)), SLOT, "slots [0] of n1"
    ),
    "a tenant lies where no spare is": Offence(
        lambda: running().submits("b", a_run(opportunistic=True)).opens("b", cell("n2", 0, role=Role.BORROWED)),
        SLOT, "slots of n2 that are no spare's",
    ),
    "a run with a claim to its GPUs borrows a spare": Offence(
        lambda: running().opens("a", cell("n2", 0, role=Role.SPARE)).submits("b").opens("b", cell("n2", 0, role=Role.BORROWED)),
        SLOT, "or is not opportunistic",
    ),
    "one lease names a slot twice": Offence(
        lambda: running().opens("a", cell("n2", 1, 1), reason=Reason.Grow), SLOT, "names a slot of n2 twice"
    ),
    "a slot lies beyond the node's GPUs": Offence(
        lambda: running().opens("a", cell("n2", 7, 8), reason=Reason.Grow), SLOT, "takes slots [8], but n2 has 8 GPUs"
    ),
    "a slot has a number that no machine has": Offence(
        lambda: running().opens("a", cell("n2", -1, 10**15), reason=Reason.Grow), SLOT, "n2 has 8 GPUs"
    ),
    "a lease lies on a node that nobody has seen": Offence(
        lambda: running().opens("a", cell("n9", 0), reason=Reason.Grow), SLOT, "n9, which is not there"
    ),
    "a lease opens on a node that failed": Offence(
        lambda: running().says(ev.NodeFailed(node="n2")).after(5).opens("a", cell("n2", 0), reason=Reason.Grow),
        SLOT, "n2, which is not there",
    ),
    "a lease stays open on a node that failed": Offence(
        lambda: running().says(ev.NodeFailed(node="n1")), SLOT, "n1 is gone, but leases on it are open"
    ),
}  # fmt: skip

PAYERS = {
    "the payer's Budget does not exist": Offence(
        lambda: running().opens("a", cell("n2", 0), payers=(a_payer(budget=key("none")),)), PAYER, "does not exist"
    ),
    "the payer's envelope does not exist": Offence(
        lambda: running().opens("a", cell("n2", 0), payers=(a_payer("none"),)), PAYER, "does not exist"
    ),
    "the payer's Budget was removed": Offence(
        lambda: running().says(ev.BudgetRemoved(budget=BUDGET)).opens("a", cell("n2", 0)), PAYER, "does not exist"
    ),
    "the payer belongs to another owner": Offence(
        lambda: running().opens("a", cell("n2", 0), payers=(a_payer(owner="org:bio"),)), PAYER, "belongs to org:ai, not to org:bio"
    ),
    "another's money is called the run's own": Offence(
        lambda: running().submits("b", a_run(owner="org:bio")).opens("b", cell("n2", 0)), PAYER, "is not owned to a run of org:bio"
    ),
    "the run's own money is called borrowed": Offence(
        lambda: running().submits("b", BORROWER).opens("b", cell("n2", 0), payers=(a_payer(fund=Fund.BORROWED),)),
        PAYER, "is not borrowed to a run of org:ai",
    ),
    "a lease has no payer": Offence(
        lambda: running().opens("a", cell("n2", 0, payer=1)), PAYER, "lease a-1-1 has no payer"
    ),
    "a swap finds a new payer": Offence(
        lambda: running().budget(a_budget(an_envelope("other")), "b")
        .opens("a", cell("n2", 0), payers=(a_payer("other", budget=key("b")),), reason=Reason.Swap),
        PAYER, "paid for nothing of this run before the swap",
    ),
    "a bill forgets a millisecond": Offence(
        lambda: running().closes("a").ends("a", ev.Bill(owned=4 * HOUR - 4)), PAYER,
        f"states {4 * HOUR - 4} GPU-ms owned; its leases give {4 * HOUR}",
    ),
    "a bill counts a spare as work": Offence(
        lambda: running().opens("a", cell("n2", 0, role=Role.SPARE)).after(9).closes("a").ends("a", ev.Bill(owned=4 * HOUR + 45)),
        PAYER, "states 0 GPU-ms spares; its leases give 9",
    ),
    "a bill hides what was overdrawn": Offence(
        lambda: running().loses_cover("a").after(10).regains_cover("a").after(5).closes("a")
        .ends("a", ev.Bill(owned=4 * HOUR + 60)),
        PAYER, "states 0 GPU-ms overdrawn; its leases give 40",
    ),
    "a bill names the wrong sponsor": Offence(
        lambda: lending(allow=True).opens("a", cell("n1", 0), payers=(LENT,)).after(7).closes("a")
        .ends("a", ev.Bill(borrowed=7, sponsors={"org:bio": 7})),
        PAYER, "states 0 GPU-ms from sponsor lab; its leases give 7",
    ),
}  # fmt: skip

TERMS = {
    "a swap opens where nothing was lost": Offence(
        lambda: running().opens("a", cell("n2", 0), reason=Reason.Swap), CAP, "group 0 lost no such pod with its node"
    ),
    "a swap opens more than was lost": Offence(
        lambda: running().closes("a", reason=Reason.NodeFailure).opens("a", cell("n2", 0, 1, 2, 3, 4), reason=Reason.Swap),
        CAP, "lost no such pod",
    ),
    "a swap opens in another group": Offence(
        lambda: running().closes("a", reason=Reason.NodeFailure).opens("a", cell("n2", 0, group=1), reason=Reason.Swap),
        CAP, "group 1 lost no such pod",
    ),
    "the flavor is another": Offence(
        lambda: running().node(a_node("n3", labels={"gpu.flavor": "A100"})).opens("a", cell("n3", 0)), CAP, "n3 is A100"
    ),
    "the flavor is read from the label that is configured": Offence(
        lambda: running().config(labels=LabelKeys(flavor="product")).opens("a", cell("n1", 5)), CAP, "n1 is None"
    ),
    "the selector does not match": Offence(
        lambda: running().node(a_node("n3", labels={"cluster": "x"})).opens("a", cell("n3", 0)), CAP, "does not match node n3"
    ),
    "the selector no longer matches a node that moved": Offence(
        lambda: running().node(a_node("n1", labels={"cluster": "x"})).opens("a", cell("n1", 5)), CAP, "does not match node n1"
    ),
    "the window has not opened": Offence(
        lambda: under(an_envelope(start=EPOCH + 1)).opens("a", cell("n1", 0)),
        CAP, "window of envelope main of default/ai was not open",
    ),
    "the window has closed": Offence(
        lambda: under(an_envelope(end=EPOCH)).opens("a", cell("n1", 0)), CAP, "was not open"
    ),
    "concurrency is exceeded": Offence(
        lambda: under(an_envelope(concurrency=4)).opens("a", cell("n1", *FOUR), cell("n2", 0)),
        CAP, "holds 5 GPUs; its concurrency is 4",
    ),
    "concurrency is exceeded by a spare": Offence(
        lambda: under(an_envelope(concurrency=4)).opens("a", cell("n1", *FOUR), cell("n2", 0, role=Role.SPARE)), CAP, "holds 5 GPUs"
    ),
    "concurrency is exceeded by growth": Offence(
        lambda: under(an_envelope(concurrency=4)).opens("a", cell("n1", *FOUR)).after(5)
        .opens("a", cell("n2", 0), reason=Reason.Grow),
        CAP, "holds 5 GPUs",
    ),
    "concurrency was lowered below what runs": Offence(
        lambda: running().budget(a_budget(an_envelope(concurrency=3))).submits("b").opens("b", cell("n2", 0)), CAP, "holds 5 GPUs"
    ),
    "hours are exceeded by what a deadline commits": Offence(
        lambda: under(an_envelope(max_gpu_hours=8 * HOUR - 1)).submits("b", a_run(runtime=Runtime(max_duration=2 * HOUR)))
        .opens("b", cell("n1", *FOUR)),
        CAP, f"{8 * HOUR} GPU-ms consumed and committed; the cap is {8 * HOUR - 1}",
    ),
    "hours are exceeded by what was consumed": Offence(
        lambda: under(an_envelope(max_gpu_hours=5 * HOUR), commit_quantum=HOUR).opens("a", cell("n1", *FOUR)).after(HOUR)
        .closes("a", "a-1-0").opens("a", cell("n1", 0), cell("n1", 1)),
        CAP, f"{6 * HOUR} GPU-ms",
    ),
    "hours are exceeded by opportunistic work": Offence(
        lambda: under(an_envelope(max_gpu_hours=HOUR), commit_quantum=HOUR).submits("b", a_run(opportunistic=True))
        .opens("b", cell("n1", 0, 1)),
        CAP, f"{2 * HOUR} GPU-ms",
    ),
    "hours of an earlier window count in a wider one": Offence(
        lambda: under(an_envelope(), commit_quantum=HOUR).opens("a", cell("n1", *FOUR)).after(2 * HOUR).closes("a").after(HOUR)
        .budget(a_budget(an_envelope(start=EPOCH + HOUR, max_gpu_hours=5 * HOUR - 1))).opens("a", cell("n1", 0)),
        CAP, f"{5 * HOUR} GPU-ms",
    ),
    "a second attempt commits its time anew": Offence(
        lambda: under(an_envelope(max_gpu_hours=3 * HOUR - 1)).submits("b", a_run(runtime=Runtime(max_duration=2 * HOUR)))
        .opens("b", cell("n1", 0)).after(HOUR).closes("b").requeues("b").opens("b", cell("n1", 0), attempt=2),
        CAP, f"{3 * HOUR} GPU-ms",
    ),
    "an aggregate cap on GPUs is exceeded": Offence(
        lambda: under(
            an_envelope("x"), an_envelope("y"),
            caps=(AggregateCap(name="both", flavor="H100", envelopes=("x", "y"), max_concurrency=4),),
        ).opens("a", cell("n1", *FOUR), cell("n2", 0, payer=1), payers=(a_payer("x"), a_payer("y"))),
        CAP, "aggregate cap both of default/ai: 5 GPUs of 4",
    ),
    "an aggregate cap on hours is exceeded": Offence(
        lambda: under(
            an_envelope("x"), an_envelope("y"),
            caps=(AggregateCap(name="both", flavor="H100", envelopes=("x", "y"), max_gpu_hours=4 * HOUR),),
            commit_quantum=HOUR,
        ).opens("a", cell("n1", *FOUR), cell("n2", 0, payer=1), payers=(a_payer("x"), a_payer("y"))),
        CAP, f"aggregate cap both of default/ai has {5 * HOUR} GPU-ms",
    ),
    "money is lent that is not for lending": Offence(
        lambda: lending(allow=False).opens("a", cell("n1", 0), payers=(LENT,)), CAP, "loan of default/lab does not lend"
    ),
    "money is lent to somebody the lender does not name": Offence(
        lambda: lending(allow=True, to=("friend:*",)).opens("a", cell("n1", 0), payers=(LENT,)), CAP, "does not lend to"
    ),
    "more GPUs are lent than the lender allows": Offence(
        lambda: lending(allow=True, max_concurrency=3).opens("a", cell("n1", *FOUR), payers=(LENT,)),
        CAP, "lends 4 GPUs; it lends 3",
    ),
    "more hours are lent than the lender allows": Offence(
        lambda: lending(allow=True, max_gpu_hours=HOUR - 1).opens("a", cell("n1", *FOUR), payers=(LENT,)),
        CAP, f"the lent part of envelope loan of default/lab has {HOUR} GPU-ms",
    ),
    "a run borrows that must not": Offence(
        lambda: lending(allow=True).submits("b").opens("b", cell("n1", 0), payers=(LENT,)),
        CAP, "borrowed money, which its spec does not allow",
    ),
    "a run borrows more than it may": Offence(
        lambda: lending(allow=True).submits("b", a_run(funding=Funding(allow_borrow=True, max_borrow_gpus=3, sponsors=("lab",))))
        .opens("b", cell("n1", *FOUR), payers=(LENT,)),
        CAP, "it borrows 4 GPUs; its spec allows 3",
    ),
    "the family spends what is not shared": Offence(
        lambda: running().budget(a_budget(an_envelope("family", sharing=Sharing.NONE), owner="org"), "org")
        .opens("a", cell("n2", 0), payers=(SHARED,)),
        CAP, "family of default/org is not shared",
    ),
}  # fmt: skip

OFFENCES = LEASES | SLOTS | PAYERS | TERMS

SOUND: dict[str, Callable[[], History]] = {
    "a run completes": lambda: running().closes("a").ends("a"),
    "a tenant lies on a spare": lambda: running().opens("a", cell("n2", 0, role=Role.SPARE))
    .submits("b", a_run(opportunistic=True)).opens("b", cell("n2", 0, role=Role.BORROWED)).after(5).closes("b").ends("b"),
    "a tenant goes on when its spare has ended": lambda: running().opens("a", cell("n2", 0, role=Role.SPARE))
    .submits("b", a_run(opportunistic=True)).opens("b", cell("n2", 0, role=Role.BORROWED)).after(5).closes("a", "a-1-1")
    .after(5).closes("b").opens("a", cell("n2", 0), reason=Reason.Grow),
    "a slot is used again": lambda: running().closes("a").submits("b").opens("b", cell("n1", *FOUR)),
    "a node fails and its leases go with it": lambda: running().says(ev.NodeFailed(node="n1"))
    .closes("a", reason=Reason.NodeFailure).ends("a", phase=Phase.FAILED).after(5).node(a_node("n1")).submits("b")
    .opens("b", cell("n1", 0)),
    "a swap goes on with money whose Budget was removed": lambda: running().opens("a", cell("n2", 0, role=Role.SPARE))
    .says(ev.BudgetRemoved(budget=BUDGET), ev.NodeFailed(node="n1")).closes("a", reason=Reason.NodeFailure)
    .opens("a", cell("n2", 0), reason=Reason.Swap),
    "a swap is no admission": lambda: running().opens("a", cell("n2", 0, role=Role.SPARE))
    .budget(a_budget(an_envelope(concurrency=1))).closes("a", reason=Reason.NodeFailure)
    .opens("a", cell("n2", 0, 1), reason=Reason.Swap),
    "opportunistic work takes no concurrency": lambda: under(an_envelope(concurrency=4)).opens("a", cell("n1", *FOUR))
    .submits("b", a_run(opportunistic=True)).opens("b", cell("n2", *FOUR)),
    "a window that has not opened allows admission": lambda: under(
        an_envelope(start=EPOCH + 1, pre_activation=PreActivation(allow_admission=True))
    ).opens("a", cell("n1", 0)),
    "hours are used to the last": lambda: under(an_envelope(max_gpu_hours=8 * HOUR))
    .submits("b", a_run(runtime=Runtime(max_duration=2 * HOUR))).opens("b", cell("n1", *FOUR)),
    "a run past its deadline commits nothing": lambda: under(an_envelope(max_gpu_hours=7 * HOUR), commit_quantum=HOUR)
    .submits("b", a_run(runtime=Runtime(max_duration=HOUR))).opens("b", cell("n1", 0, 1)).after(3 * HOUR)
    .opens("a", cell("n2", 0)),
    "hours before the window do not count": lambda: under(an_envelope(), commit_quantum=HOUR).opens("a", cell("n1", *FOUR))
    .after(2 * HOUR).closes("a").after(HOUR).budget(a_budget(an_envelope(start=EPOCH + HOUR, max_gpu_hours=5 * HOUR)))
    .opens("a", cell("n1", 0)),
    "overdrawn time is billed apart": lambda: running().loses_cover("a").after(10).regains_cover("a").after(5).closes("a")
    .ends("a"),
    "only the group that lost its cover is overdrawn": lambda: running().opens("a", cell("n2", 0, group=1), reason=Reason.Grow)
    .after(5).loses_cover("a", group=1).after(5).closes("a").ends("a"),
    "a unit that was cut is covered when it comes again": lambda: running().loses_cover("a").after(5).closes("a").requeues("a")
    .after(5).opens("a", cell("n1", 0), attempt=2).after(5).closes("a").ends("a"),
    "a loan is on the lender's and the borrower's books": lambda: lending(allow=True, max_concurrency=4, max_gpu_hours=HOUR)
    .opens("a", cell("n1", *FOUR), payers=(LENT,)).after(7).closes("a").ends("a"),
}  # fmt: skip
