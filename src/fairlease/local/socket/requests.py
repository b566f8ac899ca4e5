"""What callers may send: the arguments of each verb, and objects that are read and judged before anything is done with them.

Everything here comes from outside. Unknown arguments and wrong types are refused by name; objects are read by the same rules as
files, and a run that could never be started on a machine is told so before it waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fairlease.engine.refusal import Refusal
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.local.socket.access import Denied
from fairlease.local.socket.protocol import EXIT_FORBIDDEN, EXIT_INVALID, EXIT_REFUSED, Error
from fairlease.local.socket.server import ServerRefusal
from fairlease.model.amount import parse_instant
from fairlease.model.document import INTEGER_MAX, Findings, Trail
from fairlease.model.objects import BudgetObject, RunObject, read_object
from fairlease.model.record import Key, key
from fairlease.reason import Reason
from fairlease.runtime.processes.rendezvous import SIGNAL, is_ours

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 100
LIMIT_MAX = 10_000
WAIT_MS_MAX = 60_000

EXEC_BYTES_MAX = 1 << 20
"""Of a run's command and environment in all: half of what the kernel takes, as there is more to a pod's environment."""
STRING_BYTES_MAX = 127 * 1024
"""Of one word or variable: a little less than the kernel takes (32 pages)."""
SIGNALS = ("SIGHUP", "SIGUSR1", "SIGUSR2")
"""What a run may ask to be signalled with when its gang changes: nothing that means something else."""
POINTER = 9
"""What each of them costs besides: a pointer and a NUL."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No arguments."""


class Objects(Args, frozen=True):
    """Objects to submit or to write."""

    objects: list[Any]
    generate_name: bool = False


class Submission(Objects, frozen=True):
    """Runs to submit; `wait_for_nodes`: also those that no node there is could hold."""

    wait_for_nodes: bool = False


class OneObject(Args, frozen=True):
    """An object to think about."""

    object: Any


class OneRun(Args, frozen=True):
    """A run by its name."""

    run: str


class Eta(Args, frozen=True):
    """A run by its name, or nobody's: all that wait, of an owner and all below where one is named."""

    run: str | None = None
    owner: str | None = None
    limit: int = LIMIT


class ReportArgs(Args, frozen=True):
    """Whose forecasts, made since when."""

    owner: str | None = None
    since: str | None = None


class RunOrObject(Args, frozen=True):
    """A run that is there, or one that might be."""

    run: str | None = None
    object: Any = None


class Runs(Args, frozen=True):
    """Runs by their names."""

    runs: list[str]


class ListArgs(Args, frozen=True):
    """Which runs."""

    owner: str | None = None
    phase: str | None = None
    namespace: str | None = None
    all: bool = False
    limit: int = LIMIT


class OneBudget(Args, frozen=True):
    """A Budget by its name."""

    budget: str


class SomeBudget(Args, frozen=True):
    """A Budget by its name, or all."""

    budget: str | None = None


class Borrower(Args, frozen=True):
    """Whose loans: those of this owner and of owners below it, or all."""

    owner: str | None = None


class StopLending(Args, frozen=True):
    """A Budget, or one envelope of it; `recall`: running loans are called back too."""

    budget: str
    envelope: str | None = None
    recall: bool = False


class SponsorArgs(Args, frozen=True):
    """A run, an owner to borrow from, and how many GPUs the run may borrow in all."""

    run: str
    owner: str
    max_gpus: int | None = None


class Leases(Args, frozen=True):
    """Which leases; instants are RFC 3339."""

    run: str | None = None
    node: str | None = None
    owner: str | None = None
    budget: str | None = None
    envelope: str | None = None
    open: bool | None = None
    since: str | None = None
    until: str | None = None
    limit: int = LIMIT


class Notices(Args, frozen=True):
    """The latest notices, of one run or of all."""

    run: str | None = None
    limit: int = LIMIT


class WhoPays(Args, frozen=True):
    """Whose runs; nobody's name: all that run. `payer`: only what this owner pays. `all`: also runs that are over.

    `since`, `until`: only what was used in that period, whether a run is over or not.
    """

    run: str | None = None
    owner: str | None = None
    payer: str | None = None
    all: bool = False
    since: str | None = None
    until: str | None = None


class Logs(Args, frozen=True):
    """Which ranks' output."""

    run: str
    attempt: int | None = None
    rank: int | None = None


class ReadLog(Args, frozen=True):
    """A part of one rank's output."""

    run: str
    attempt: int
    rank: int
    offset: int = 0


class Wait(Args, frozen=True, rename={"timeout_ms": "timeoutMs"}):
    """Until when, and for what."""

    seq: int
    timeout_ms: int = 30_000


class Stop(Args, frozen=True):
    """Whether work ends too."""

    end: bool = False


class ReservationsArgs(Args, frozen=True):
    """Whose; `all`: those that are over too."""

    run: str | None = None
    namespace: str | None = None
    all: bool = False
    limit: int = LIMIT


class Outcomes(Args, frozen=True):
    """Which resolutions: one by its name, those that concern a run, or the last of all."""

    name: str | None = None
    run: str | None = None
    limit: int = LIMIT


class ResolveArgs(Args, frozen=True, rename={"dry_run": "dryRun"}):
    """What to free by hand: GPUs of a flavor on nodes with these labels, in pods and groups."""

    flavor: str
    gpus: int
    location: dict[str, str] = {}
    pod: int = 1
    group: int | None = None
    reason: str = ""
    dry_run: bool = False


class Export(Args, frozen=True):
    """What to write down."""

    what: str
    since: str | None = None
    until: str | None = None


A = TypeVar("A", bound=Args)


def read_args(kind: type[A], raw: dict[str, Any]) -> A:
    """A verb's arguments; a number among them may end up in the ledger, and is no larger than one in a file may be."""
    for name, value in raw.items():
        if isinstance(value, int) and abs(value) > INTEGER_MAX:
            message = f"{name}: {value}: integers go up to {INTEGER_MAX}"
            raise refused(Reason.InvalidRequest, message, remedy="give a smaller number")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise refused(Reason.InvalidRequest, f"arguments: {error}", remedy="correct the arguments") from None


def refused(
    reason: Reason, message: str, *, remedy: str | None = None, problems: list[dict[str, Any]] | None = None
) -> ServerRefusal:
    """A refusal on its way to the caller."""
    codes = {Reason.InvalidRequest: EXIT_INVALID, Reason.Forbidden: EXIT_FORBIDDEN}
    return ServerRefusal(
        Error(
            reason=reason.value,
            message=message,
            remedy=reason.remedy if remedy is None else remedy,
            exit=codes.get(reason, EXIT_REFUSED),
            problems=problems or [],
        )
    )


def check(refusal: Refusal | Denied | None) -> None:
    """Go on only if nothing stands against it."""
    if refusal is not None:
        remedy = refusal.remedy if isinstance(refusal, Denied) else None
        raise refused(refusal.reason, refusal.message, remedy=remedy)


def name_key(name: str) -> Key:
    """The key behind a name that somebody typed."""
    if not name or name.count("/") > 1:
        raise refused(Reason.InvalidRequest, f"{name!r} is not a name", remedy="write a name, or namespace/name")
    return key(name)


def instant(name: str, text: str | None) -> int | None:
    """An instant that somebody typed."""
    try:
        return None if text is None else parse_instant(text)
    except (ValueError, OverflowError) as error:
        raise refused(Reason.InvalidRequest, f"{name}: {error}", remedy="write it as 2026-01-05T00:00:00Z") from None


def bounded(limit: int) -> int:
    """A limit that somebody typed, no larger than what an answer may hold."""
    if limit < 1:
        raise refused(Reason.InvalidRequest, f"limit: {limit} is less than 1", remedy="ask for at least one")
    return min(limit, LIMIT_MAX)


def lease_query(args: Leases) -> LeaseQuery:
    """The question behind the arguments."""
    return LeaseQuery(
        run=None if args.run is None else name_key(args.run),
        node=args.node,
        owner=args.owner,
        budget=None if args.budget is None else name_key(args.budget),
        envelope=args.envelope,
        open=args.open,
        since=instant("since", args.since),
        until=instant("until", args.until),
        limit=bounded(args.limit),
    )


# --- objects -----------------------------------------------------------------------------------------------------------


def read_runs(raws: list[Any], *, generate_name: bool = False) -> list[RunObject]:
    """Runs that may be submitted here; refuses all of them if anything is wrong with one."""
    problems: list[dict[str, Any]] = []
    found = []
    for index, raw in enumerate(raws):
        findings = Findings("", _title(raw, index))
        prepared = _with_name(raw) if generate_name else raw
        item = read_object(prepared, ((), 0), findings)
        if isinstance(item, RunObject):
            _judge(item, findings)
            found.append(item)
        elif item is not None:
            findings.add(
                (((), 0), "kind"), "expected a Run; Budgets go to `budgets apply`, nodes into the configuration"
            )
        problems += _views(findings)
    _settle(problems, empty=not raws)
    return found


def read_budgets(raws: list[Any]) -> list[BudgetObject]:
    """Budgets; refuses all of them if anything is wrong with one."""
    problems: list[dict[str, Any]] = []
    found = []
    for index, raw in enumerate(raws):
        findings = Findings("", _title(raw, index))
        item = read_object(raw, ((), 0), findings)
        if isinstance(item, BudgetObject):
            found.append(item)
        elif item is not None:
            findings.add((((), 0), "kind"), "expected a Budget")
        problems += _views(findings)
    _settle(problems, empty=not raws)
    return found


def generated(run: Key, exists: Callable[[Key], bool], begin: int) -> tuple[Key, int]:
    """A free name with a number behind it, counted from `begin`; and the number."""
    number = begin
    while exists(Key(f"{run}-{number}")):
        number += 1
    return Key(f"{run}-{number}"), number


def _judge(run: RunObject, findings: Findings) -> None:
    """What is no mistake elsewhere, but could never run on a machine."""
    spec: Trail = (((), 0), "spec")
    if not run.spec.command:
        findings.add(
            (spec, "command"), "missing; on one machine a run says what to execute, such as [python, train.py]"
        )
    if run.spec.template is not None:
        findings.add((spec, "template"), "pod templates are for Kubernetes; write command, env and workdir")
    for name in run.spec.env:
        if is_ours(name):
            findings.add(((spec, "env"), name), "set by Fairlease itself; use another name")
        elif name == SIGNAL and run.spec.env[name] not in SIGNALS:
            findings.refuse(((spec, "env"), name), run.spec.env[name], f"expected one of {', '.join(SIGNALS)}")
    if run.spec.workdir is not None and not run.spec.workdir.startswith("/"):
        findings.refuse((spec, "workdir"), run.spec.workdir, "expected an absolute path")
    _judge_size(run, findings)


def _judge_size(run: RunObject, findings: Findings) -> None:
    """What the kernel would refuse to execute (E2BIG) shall not wait for its GPUs first."""
    spec: Trail = (((), 0), "spec")
    words = [len(word.encode(errors="surrogatepass")) for word in run.spec.command]
    variables = {name: len(f"{name}={value}".encode(errors="surrogatepass")) for name, value in run.spec.env.items()}
    sizes: list[tuple[Trail, int]] = [(((spec, "command"), index), size) for index, size in enumerate(words)]
    sizes += [(((spec, "env"), name), size) for name, size in variables.items()]
    for trail, size in sizes:
        if size > STRING_BYTES_MAX:
            findings.add(trail, _too_long(size, STRING_BYTES_MAX))
    total = sum(size + POINTER for _, size in sizes)
    if total > EXEC_BYTES_MAX:
        larger = "env" if sum(variables.values()) > sum(words) else "command"
        findings.add((spec, larger), f"command and env together: {_too_long(total, EXEC_BYTES_MAX)}")


def _too_long(size: int, most: int) -> str:
    return f"{size} bytes are more than can be executed ({most}); put them into a file, and name that"


def _with_name(raw: Any) -> Any:  # noqa: ANN401 - what a caller sent
    """Kubernetes lets `generateName` stand where `name` would."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    if not isinstance(metadata, dict) or metadata.get("name") or not isinstance(metadata.get("generateName"), str):
        return raw
    return {**raw, "metadata": {**metadata, "name": metadata["generateName"].rstrip("-.")}}


def _title(raw: Any, index: int) -> str:  # noqa: ANN401 - what a caller sent
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name[:100] if isinstance(name, str) and name else f"object {index + 1}"


def _views(findings: Findings) -> list[dict[str, Any]]:
    if not len(findings):
        return []
    return [
        {"source": each.source, "field": each.field, "value": each.value, "message": each.message}
        for each in findings.problems()
    ]


def _settle(problems: list[dict[str, Any]], *, empty: bool) -> None:
    if empty:
        raise refused(Reason.InvalidRequest, "no objects were sent", remedy="send at least one")
    if problems:
        first = problems[0]
        words = [str(part) for part in (first["source"], first["field"], first["value"], first["message"]) if part]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise refused(Reason.InvalidRequest, ": ".join(words) + more, problems=problems[:100])
