"""Everything an audit must find, as a table: what was done, against which claim, and what the finding says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.builders import BUDGET, EPOCH, OWNER, History, a_budget, a_node, a_payer, a_run, an_envelope, cell

from fairlease.ledger.state import events as ev
from fairlease.model.amount import DAY, HOUR
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope, Lending, PreActivation, Sharing
from fairlease.model.lease import Fund, Role
from fairlease.model.node import LabelKeys
from fairlease.model.record import key
from fairlease.model.run import Funding, Locality, LocationPolicy, Phase, Resources, RunSpec, Runtime
from fairlease.reason import Reason

PAYER, SLOT, CAP, LEASE = "onePayerPerGPUSecond", "noSlotDoubled", "noCapExceededAtAdmission", "noLeaseRewritten"
COVER = "payersInOrderOfCover"
LENT = a_payer("loan", budget=key("lab"), owner="lab", fund=Fund.BORROWED)
SHARED = a_payer("family", budget=key("org"), owner="org", fund=Fund.SHARED)
FOUR = (0, 1, 2, 3)
SHORT = a_run(runtime=Runtime(max_duration=HOUR), funding=Funding(allow_borrow=True, sponsors=("lab",)))
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
    """A world with a lender and no other money, and a run that is willing to borrow."""
    loan = an_envelope("loan", lending=Lending(**terms))
    return History().node(a_node("n1")).budget(a_budget(loan, owner="lab"), "lab").submits("a", BORROWER)


def asked(*owners: str, run: RunSpec, stated: Fund, pays: str, sharing: Sharing = Sharing.FAMILY) -> History:
    """A run that is paid with the money of one of several owners, each of which has one envelope that lends to everybody."""
    history = History().node(a_node("n1"))
    for owner in owners:
        named = owner.replace(":", "-")
        history.budget(a_budget(an_envelope(named, lending=Lending(allow=True), sharing=sharing), owner=owner), named)
    named = pays.replace(":", "-")
    payer = a_payer(named, budget=key(named), owner=pays, fund=stated)
    return history.submits("a", run).after(5).opens("a", cell("n1", 0), payers=(payer,))


def below(owner: str, *parents: str) -> ev.BudgetSet:
    """A Budget without money that names its owner's parents."""
    return ev.BudgetSet(budget=key(f"kin-{owner}".replace(":", "-")), spec=BudgetSpec(owner=owner, parents=parents))


def in_turn(payer: str, *cells: ev.Cell, run: RunSpec | None = None, **own: Any) -> History:  # noqa: ANN401 - any field of Envelope
    """A run that is paid by one envelope, beside its owner's own, its parent's and a lender's."""
    lends = Lending(allow=True)
    history = History().node(a_node("n1", labels={"rack": "r1"})).node(a_node("n2", labels={"rack": "r2"}))
    history.budget(a_budget(an_envelope(**({"concurrency": 4} | own)))).budget(
        a_budget(an_envelope("family", concurrency=4), owner="org"), "org"
    )
    history.budget(a_budget(an_envelope("loan", lending=lends), owner="lab"), "lab")
    history.submits("a", run or BORROWER).after(5)
    first = {"family": SHARED, "loan": LENT}[payer]
    return history.opens("a", *cells, payers=(first, a_payer())[: 1 + max(each.payer for each in cells)])


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
        lambda: running().closes("a").ends("a").after(30 * DAY - 1).submits("a"), LEASE, "default/a was submitted before"
    ),
    "a lease's name is used again by a later run of the same name": Offence(
        lambda: running().closes("a").requeues("a").opens("a", cell("n1", 0), cell("n1", 1), attempt=2).closes("a").ends("a")
        .after(30 * DAY).submits("a").opens("a", cell("n1", 0, number=1), attempt=2),
        LEASE, "a-2-1 was used before",
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
        lambda: running().submits("b", a_run(owner="org:bio")).opens("b", cell("n2", 0)),
        COVER, "has no place in the order of cover of a run of org:bio: org:ai is not of its family",
    ),
    "the run's own money is called borrowed": Offence(
        lambda: running().submits("b", BORROWER).opens("b", cell("n2", 0), payers=(a_payer(fund=Fund.BORROWED),)),
        COVER, "is stated to be borrowed, but to a run of org:ai it is owned",
    ),
    "a lease has no payer": Offence(
        lambda: running().opens("a", cell("n2", 0, payer=1)), PAYER, "lease a-1-1 has no payer"
    ),
    "a swap finds a new payer": Offence(
        lambda: running().budget(a_budget(an_envelope("other")), "b").closes("a", reason=Reason.NodeFailure)
        .opens("a", cell("n2", *FOUR), payers=(a_payer("other", budget=key("b")),), reason=Reason.Swap),
        PAYER, "paid for none of the pods that the swap replaces",
    ),
    "a swap goes on with a payer of other pods": Offence(
        lambda: under(an_envelope(concurrency=4), an_envelope("other", concurrency=4))
        .opens("a", cell("n1", *FOUR), cell("n2", 0, payer=1), payers=(a_payer(), a_payer("other"))).after(5)
        .closes("a", "a-1-0", reason=Reason.NodeFailure).opens("a", cell("n2", 1), payers=(a_payer("other"),), reason=Reason.Swap),
        PAYER, "other of default/ai, payer of default/a, paid for none of the pods",
    ),
    "a swap calls the money of what was lost by another name": Offence(
        lambda: running().closes("a", reason=Reason.NodeFailure)
        .opens("a", cell("n2", *FOUR), payers=(a_payer(fund=Fund.SHARED),), reason=Reason.Swap),
        PAYER, "paid for none of the pods that the swap replaces",
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
    "a run borrows more than it may": Offence(
        lambda: lending(allow=True).submits("b", a_run(funding=Funding(allow_borrow=True, max_borrow_gpus=3, sponsors=("lab",))))
        .opens("b", cell("n1", *FOUR), payers=(LENT,)),
        CAP, "it borrows 4 GPUs; its spec allows 3",
    ),
}  # fmt: skip

KINSHIP = {
    "a stranger's money is called shared": Offence(
        lambda: asked("lab", run=a_run(), stated=Fund.SHARED, pays="lab"),
        COVER, "lab is not of its family",
    ),
    "a sponsor's money is called shared": Offence(
        lambda: asked("lab", run=BORROWER, stated=Fund.SHARED, pays="lab"),
        COVER, "is stated to be shared, but to a run of org:ai it is borrowed",
    ),
    "the parent's money is called the run's own": Offence(
        lambda: asked("org", run=a_run(), stated=Fund.OWNED, pays="org"),
        COVER, "is stated to be owned, but to a run of org:ai it is shared",
    ),
    "the parent's money is called borrowed": Offence(
        lambda: asked("org", run=BORROWER, stated=Fund.BORROWED, pays="org"),
        COVER, "is stated to be borrowed, but to a run of org:ai it is shared",
    ),
    "a run borrows that must not": Offence(
        lambda: asked("lab", run=a_run(funding=Funding(sponsors=("lab",))), stated=Fund.BORROWED, pays="lab"),
        COVER, "is borrowed, but the run's spec does not allow borrowing",
    ),
    "a run borrows that names no sponsor": Offence(
        lambda: asked("lab", run=a_run(funding=Funding(allow_borrow=True)), stated=Fund.BORROWED, pays="lab"),
        COVER, "is borrowed, but the run's spec names no sponsors",
    ),
    "a run borrows from a stranger that it does not name": Offence(
        lambda: asked("lab", "club", run=BORROWER, stated=Fund.BORROWED, pays="club"),
        COVER, "club is not of its family, nor a sponsor, an ancestor or a cousin",
    ),
    "a run borrows after its funding was set to none": Offence(
        lambda: lending(allow=True).says(ev.FundingSet(run=key("a"), funding=Funding()))
        .opens("a", cell("n1", 0), payers=(LENT,)),
        COVER, "is borrowed, but the run's spec does not allow borrowing",
    ),
    "the family spends what is not shared": Offence(
        lambda: asked("org", run=a_run(), stated=Fund.SHARED, pays="org", sharing=Sharing.NONE),
        COVER, "is not shared with the family, and so not with a run of org:ai",
    ),
    "siblings share although their parent has no Budget": Offence(
        lambda: asked("org:bio", run=a_run(), stated=Fund.SHARED, pays="org:bio"), COVER, "org:bio is not of its family",
    ),
    "a grandparent's money is called shared": Offence(
        lambda: asked("org", "org:ai", run=a_run(owner="org:ai:nlp"), stated=Fund.SHARED, pays="org"),
        COVER, "org is not of its family",
    ),
    "a grandchild's money is called shared": Offence(
        lambda: asked("org", "org:ai:nlp", run=a_run(owner="org"), stated=Fund.SHARED, pays="org:ai:nlp"),
        COVER, "org:ai:nlp is not of its family",
    ),
    "a child of another family pays": Offence(
        lambda: asked("org", "uni:ai", run=a_run(), stated=Fund.SHARED, pays="uni:ai"), COVER, "uni:ai is not of its family",
    ),
    "an owner whose name begins like the parent's pays": Offence(
        lambda: asked("org:a", run=a_run(owner="org:ai:nlp"), stated=Fund.SHARED, pays="org:a"),
        COVER, "org:a is not of its family",
    ),
    "a child of an owner whose name begins like the run's pays": Offence(
        lambda: asked("org:aix:nlp", run=a_run(), stated=Fund.SHARED, pays="org:aix:nlp"),
        COVER, "org:aix:nlp is not of its family",
    ),
    "a parent by path pays for an owner that names another": Offence(
        lambda: asked("org", run=a_run(), stated=Fund.SHARED, pays="org").says(below("org:ai", "uni"))
        .after(5).opens("a", cell("n1", 1), payers=(a_payer("org", budget=key("org"), owner="org", fund=Fund.SHARED),)),
        COVER, "org is not of its family",
    ),
    "a parent in a cycle pays": Offence(
        lambda: History().world().budget(a_budget(an_envelope("family"), owner="org"), "org")
        .says(below("org:ai", "org"), below("org", "uni"), below("uni", "org:ai")).submits("a")
        .opens("a", cell("n1", 0), payers=(SHARED,)),
        COVER, "org is not of its family",
    ),
    "a parent pays for an owner without a Budget that stands above it": Offence(
        lambda: asked("org", run=a_run(), stated=Fund.SHARED, pays="org")
        .says(below("org", "org:ai:x"), below("org:ai:x", "org:ai")).after(5)
        .opens("a", cell("n1", 1), payers=(a_payer("org", budget=key("org"), owner="org", fund=Fund.SHARED),)),
        COVER, "org is not of its family",
    ),
    "an envelope of another flavor pays": Offence(
        lambda: running().submits("b", RunSpec(owner=OWNER, resources=Resources(gpu_type="A100", total_gpus=1)))
        .opens("b", cell("n2", 0)),
        COVER, "pays for H100, but the run asks for A100",
    ),
    "a run lies outside the location that it requires": Offence(
        lambda: running().submits(
            "b", a_run(locality=Locality(location={"region": "us"}, location_policy=LocationPolicy.REQUIRE))
        ).opens("b", cell("n2", 0)),
        COVER, "node n2 lies outside the location that it requires",
    ),
}  # fmt: skip

TURNS = {
    "the family pays while own money could": Offence(
        lambda: in_turn("family", cell("n1", 0)),
        COVER, "family of default/org pays for a pod of default/a on n1, for which envelope main of default/ai",
    ),
    "a lender pays while own money could": Offence(
        lambda: in_turn("loan", cell("n1", 0)),
        COVER, "loan of default/lab pays for a pod of default/a on n1, for which envelope main",
    ),
    "a lender pays while the family could": Offence(
        lambda: in_turn("loan", cell("n1", *FOUR, payer=1), cell("n2", *FOUR)),
        COVER, "loan of default/lab pays for a pod of default/a on n2, for which envelope family of default/org",
    ),
    "own money pays for a spare too few": Offence(
        lambda: in_turn("family", cell("n1", 0, 1, payer=1), cell("n2", 0, 1, role=Role.SPARE)), COVER, "had room",
    ),
    "growth is paid by the family while own money could": Offence(
        lambda: in_turn("family", cell("n1", *FOUR, payer=1)).after(5).closes("a").after(5)
        .opens("a", cell("n1", 0), payers=(SHARED,), reason=Reason.Grow),
        COVER, "main of default/ai, earlier in the order of cover, had room",
    ),
    "own hours suffice for the pod": Offence(
        lambda: in_turn("loan", cell("n1", 0), run=SHORT, max_gpu_hours=HOUR), COVER, "envelope main of default/ai",
    ),
    "the earlier of two envelopes of one Budget is passed over": Offence(
        lambda: under(an_envelope("a"), an_envelope("b")).opens("a", cell("n1", 0), payers=(a_payer("b"),)),
        COVER, "envelope a of default/ai, earlier",
    ),
    "Budgets are ordered by namespace before name": Offence(
        lambda: under(an_envelope("none", concurrency=1)).budget(a_budget(an_envelope("x")), "b/a")
        .budget(a_budget(an_envelope("x")), "a-b/z").opens("a", cell("n1", *FOUR), payers=(a_payer("x", budget=key("b/a")),)),
        COVER, "envelope x of a-b/z, earlier",
    ),
    "the second sponsor lends while the first could": Offence(
        lambda: asked(
            "lab", "club", run=a_run(funding=Funding(allow_borrow=True, sponsors=("lab", "club"))),
            stated=Fund.BORROWED, pays="club",
        ),
        COVER, "envelope lab of default/lab, earlier",
    ),
    "one cap over both payers keeps neither from paying": Offence(
        lambda: under(
            an_envelope("x"), an_envelope("y"),
            caps=(AggregateCap(name="both", flavor="H100", envelopes=("x", "y"), max_concurrency=4),),
        ).opens("a", cell("n1", *FOUR), payers=(a_payer("y"),)),
        COVER, "envelope x of default/ai, earlier",
    ),
}  # fmt: skip

OFFENCES = LEASES | SLOTS | PAYERS | TERMS | KINSHIP | TURNS

SOUND: dict[str, Callable[[], History]] = {
    "a run completes": lambda: running().closes("a").ends("a"),
    "a run's name is used again when it is forgotten": lambda: running().closes("a").ends("a").after(30 * DAY).submits("a")
    .opens("a", cell("n1", *FOUR, number=1_000_000)).after(5).closes("a").ends("a", ev.Bill(owned=20)),
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
    "the parent pays": lambda: asked("org", run=a_run(), stated=Fund.SHARED, pays="org"),
    "a sibling under a head pays": lambda: History().node(a_node("n1")).says(below("org", "world"))
    .budget(a_budget(an_envelope("bio"), owner="org:bio"), "bio").submits("a")
    .opens("a", cell("n1", 0), payers=(a_payer("bio", budget=key("bio"), owner="org:bio", fund=Fund.SHARED),)),
    "a child pays": lambda: asked("org:ai", run=a_run(owner="org"), stated=Fund.SHARED, pays="org:ai"),
    "a grandparent lends": lambda: asked("org", run=a_run(
        owner="org:ai:nlp", funding=Funding(allow_borrow=True, sponsors=("lab",))
    ), stated=Fund.BORROWED, pays="org"),
    "a cousin lends": lambda: History().node(a_node("n1"))
    .says(below("org", "world"), below("org:ai", "org"), below("org:bio", "org"))
    .budget(a_budget(an_envelope("dna", lending=Lending(allow=True)), owner="org:bio:dna"), "dna")
    .submits("a", a_run(owner="org:ai:nlp", funding=Funding(allow_borrow=True, sponsors=("lab",))))
    .opens("a", cell("n1", 0), payers=(a_payer("dna", budget=key("dna"), owner="org:bio:dna", fund=Fund.BORROWED),)),
    "a relative that does not share is a sponsor all the same": lambda: asked("org", run=a_run(
        funding=Funding(allow_borrow=True, sponsors=("org",))
    ), stated=Fund.BORROWED, pays="org", sharing=Sharing.NONE),
    "own money pays first": lambda: in_turn("family", cell("n1", *FOUR, payer=1), cell("n2", *FOUR)),
    "own money has no room for a whole pod": lambda: in_turn("family", cell("n1", *FOUR), concurrency=3),
    "own money does not reach the node": lambda: in_turn("family", cell("n2", 0), selector={"rack": "r1"}),
    "own money is not open yet": lambda: in_turn("family", cell("n2", 0), start=EPOCH + HOUR),
    "own hours do not suffice for the whole limit": lambda: in_turn("family", cell("n1", 0), run=SHORT, max_gpu_hours=HOUR - 1),
    "what a preemption gives back was not there to be planned with": lambda: in_turn("family", cell("n1", *FOUR, payer=1))
    .submits("b").after(5).closes("a", reason=Reason.RandomPreempt, seed="5eed").opens("b", cell("n1", *FOUR), payers=(SHARED,)),
    "a swap keeps a lender that has stopped lending": lambda: lending(allow=True).node(a_node("n2"))
    .opens("a", cell("n1", 0), cell("n2", 0, role=Role.SPARE), payers=(LENT,)).after(5)
    .budget(a_budget(an_envelope("loan"), owner="lab"), "lab").says(ev.NodeFailed(node="n1"))
    .closes("a", "a-1-0", reason=Reason.NodeFailure).closes("a", "a-1-1", reason=Reason.Swap)
    .opens("a", cell("n2", 0), payers=(LENT,), reason=Reason.Swap).after(5).closes("a").ends("a"),
}  # fmt: skip
