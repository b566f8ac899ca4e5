"""Every refusal and cause: one enum with stable codes, in order of precedence.

A domain outcome is a value with a `Reason`, never free text. `code` never changes once released; `transient` says whether
waiting may be enough; `remedy` says what would change the answer, `alone` what is left of that where waiting for others does
not help: which of the two is true is known where the answer is given (`engine.refusal`), and nowhere else. The names are API: they
stand in conditions, leases and metrics.
"""

from __future__ import annotations

import enum
from typing import Self


class Reason(enum.Enum):
    """Why something is as it is. The value is the name that users see."""

    code: int
    transient: bool
    remedy: str
    alone: str

    def __new__(cls, value: str, code: int, transient: bool, remedy: str, alone: str = "") -> Self:  # noqa: FBT001 - a row of a table, read by column
        """Keep the name as the value and hang the other columns on it."""
        member = object.__new__(cls)
        member._value_ = value
        member.code = code
        member.transient = transient
        member.remedy = remedy
        member.alone = alone or remedy
        return member

    @property
    def plain_remedy(self) -> str:
        """What would change it where nothing but the reason is known: nothing where the reason alone does not tell.

        Whoever is refused for such a reason has it in the message.
        """
        return self.remedy if self.alone == self.remedy else ""

    # Cover, from the envelope that passed the least to the one that passed the most (SEMANTICS §3).
    InvalidRequest = "InvalidRequest", 100, False, "correct it, and ask again"
    NoEnvelope = "NoEnvelope", 101, False, "ask for a Budget with an envelope of this flavor, or name sponsors"
    SelectorMismatch = "SelectorMismatch", 102, False, "widen the envelope's selector or the run's location"
    WindowClosed = (
        "WindowClosed",
        103,
        True,
        "wait for the envelope's window to open, or have it moved",
        "have the envelope's window moved",
    )
    ACLDenied = "ACLDenied", 104, False, "ask the sponsor to allow lending to this owner"
    BorrowLimit = "BorrowLimit", 105, False, "raise funding.maxBorrowGPUs or ask for fewer GPUs"
    LendingCapExceeded = (
        "LendingCapExceeded",
        106,
        True,
        "wait for loans to end, or have the lending cap raised",
        "ask for fewer GPUs or smaller pods, or have the lending cap raised",
    )
    ConcurrencyCapExceeded = (
        "ConcurrencyCapExceeded",
        107,
        True,
        "wait for runs on this money to end, or have the concurrency raised",
        "ask for fewer GPUs or smaller pods, borrow, or have the concurrency raised",
    )
    IntegralCapExceeded = (
        "IntegralCapExceeded",
        108,
        True,
        "ask for less time or fewer GPUs, or have maxGPUHours raised",
    )
    AggregateCapExceeded = (
        "AggregateCapExceeded",
        109,
        True,
        "wait for runs under the aggregate cap to end, or have it raised",
        "ask for fewer GPUs or smaller pods, borrow, or have the aggregate cap raised",
    )

    # Pack and order.
    NoRoom = "NoRoom", 200, True, "wait for GPUs to be free"
    NeverFits = "NeverFits", 201, False, "ask for fewer GPUs, smaller pods or groups, or another location"
    Reserved = "Reserved", 202, True, "wait for the reservation to fall due"
    Following = "Following", 203, True, "wait for the runs it follows to complete"
    BackOff = "BackOff", 204, True, "mend what failed, or wait: it is tried again after a pause that doubles each time"
    InternalError = "InternalError", 205, True, "report it with the scheduler's log; it is tried again after a pause"

    # How a run is, when nothing is wrong.
    Covered = "Covered", 300, False, "nothing to change"
    Bound = "Bound", 301, False, "nothing to change"
    Submitted = "Submitted", 302, True, "wait for the first decision"
    Starting = "Starting", 303, True, "wait for its pods to run"

    # How leases open and close, and how runs end.
    Start = "Start", 400, False, "nothing to change"
    Grow = "Grow", 401, False, "nothing to change"
    Swap = "Swap", 402, False, "nothing to change"
    Completed = "Completed", 410, False, "nothing to change"
    Fail = "Fail", 411, False, "look at the logs of the rank that failed"
    NodeFailure = "NodeFailure", 412, True, "set runtime.onPreempt to Requeue, or ask for enough spares"
    Shrink = "Shrink", 413, True, "nothing to change"
    DropSpare = "DropSpare", 414, True, "nothing to change"
    RandomPreempt = "RandomPreempt", 415, True, "set runtime.onPreempt to Requeue and checkpoint"
    ReclaimedBySpare = "ReclaimedBySpare", 416, True, "set runtime.onPreempt to Requeue, or run on funded GPUs"
    ReclaimOpportunistic = "ReclaimOpportunistic", 417, True, "set runtime.onPreempt to Requeue, or run on funded GPUs"
    ReclaimOverdrawn = "ReclaimOverdrawn", 418, True, "have the envelope raised, or wait for money"
    BudgetExhausted = "BudgetExhausted", 419, True, "have the envelope raised, or wait for its next window"
    Canceled = "Canceled", 420, False, "submit it again under another name"
    TimeLimit = "TimeLimit", 421, False, "raise runtime.maxDuration"
    LatestStartPassed = "LatestStartPassed", 422, False, "submit it again with a later runtime.latestStart"
    UpstreamFailed = "UpstreamFailed", 423, False, "mend the run it follows and submit both again"
    NotScheduled = "NotScheduled", 424, True, "mend what keeps its pods from starting; it is tried again after a pause"

    # Budgets and nodes.
    Overdrawn = "Overdrawn", 500, True, "have the envelope raised, or wait for its window"
    ParentCycle = "ParentCycle", 501, False, "remove one of the parents that close the cycle"
    LendingCapNear = "LendingCapNear", 502, True, "have the lending cap raised before it is full"
    ReciprocalLoans = "ReciprocalLoans", 503, True, "let each pay for its own, or put both into one family"
    MissingLabel = "MissingLabel", 510, False, "label the node"
    LostGPUs = "LostGPUs", 511, False, "repair the node, or remove it and add it again"
    Cordoned = "Cordoned", 512, True, "uncordon the node"
    NotReady = "NotReady", 513, True, "wait for the node to be ready again"
    NodeFailed = "NodeFailed", 514, True, "wait for the node to return"

    # Answers to requests.
    AlreadyExists = (
        "AlreadyExists",
        600,
        False,
        "choose another name: one is taken until nameRetention (30d) after its run ended",
    )
    NotFound = "NotFound", 601, False, "look at the list for the right name"
    Terminal = "Terminal", 602, False, "nothing to do: it has ended"
    Forbidden = "Forbidden", 603, False, "ask an administrator to bind you to this owner"
    NoSpare = (
        "NoSpare",
        604,
        False,
        "ask for spares with sparesPerGroup; those that were used come back with the next attempt",
    )

    # What one domain of GPUs answers to a group that looks for room, and one envelope to a run that looks for money.
    Chosen = "Chosen", 700, False, "nothing to change"
    NotNeeded = "NotNeeded", 701, False, "nothing to change"
    OutOfScope = "OutOfScope", 702, False, "widen the location, or the selectors of the money"
    Fragmented = "Fragmented", 703, True, "wait, or use smaller pods: the free GPUs lie on too many nodes"
    NotShared = "NotShared", 704, False, "ask its owner to set sharing: family, or to lend"
    Fits = "Fits", 705, False, "nothing to change"

    # What a reservation's date rests on, and why it moved.
    HardFacts = "HardFacts", 800, False, "nothing to change"
    Notice = "Notice", 801, False, "nothing to change"
    Predicted = "Predicted", 802, True, "set runtime.maxDuration on the runs it waits for"
    Window = "Window", 803, False, "nothing to change"
    Leaving = "Leaving", 804, True, "wait: the GPUs are held for it until the work on them is gone"
    NotServed = "NotServed", 810, True, "wait: it is tried again whenever something changes"
    TooYoung = "TooYoung", 811, True, "wait for enough work to be older than minRuntime"
    SliceLost = "SliceLost", 812, True, "wait: it means to use other GPUs now"
    SliceTaken = "SliceTaken", 813, True, "wait: a run that asked earlier started on its GPUs"
    MoneyBack = "MoneyBack", 814, True, "nothing to change"
    Nearer = "Nearer", 815, True, "nothing to change"
    Sooner = "Sooner", 816, True, "nothing to change"
    Due = "Due", 820, False, "nothing to change"


COVER_CAUSES = (
    Reason.InvalidRequest,
    Reason.NoEnvelope,
    Reason.SelectorMismatch,
    Reason.WindowClosed,
    Reason.ACLDenied,
    Reason.BorrowLimit,
    Reason.LendingCapExceeded,
    Reason.ConcurrencyCapExceeded,
    Reason.IntegralCapExceeded,
    Reason.AggregateCapExceeded,
)
"""The causes a lack of money can have, in the order in which an envelope is asked."""
