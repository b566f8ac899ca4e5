"""Objects that callers send, read and judged before anything is done with them.

They are read by the same rules as files, and a run that could never be started on a machine is told so before it waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fairlease.model.document import Findings, Trail
from fairlease.model.objects import BudgetObject, RunObject, read_object
from fairlease.model.record import Key
from fairlease.reason import Reason
from fairlease.runtime.processes.rendezvous import SIGNAL, is_ours
from fairlease.runtime.requests import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", RunObject, BudgetObject)

EXEC_BYTES_MAX = 1 << 20
"""Of a run's command and environment in all: half of what the kernel takes, as there is more to a pod's environment."""
STRING_BYTES_MAX = 127 * 1024
"""Of one word or variable: a little less than the kernel takes (32 pages)."""
SIGNALS = ("SIGHUP", "SIGUSR1", "SIGUSR2")
"""What a run may ask to be signalled with when its gang changes: nothing that means something else."""
POINTER = 9
"""What each of them costs besides: a pointer and a NUL."""


def read_runs(raws: list[Any], *, generate_name: bool = False) -> list[RunObject]:
    """Runs that may be submitted here; refuses all of them if anything is wrong with one."""
    wrong = "expected a Run; Budgets go to `budgets apply`, nodes into the configuration"
    return _read([_with_name(raw) for raw in raws] if generate_name else raws, RunObject, wrong, _judge)


def read_budgets(raws: list[Any]) -> list[BudgetObject]:
    """Budgets; refuses all of them if anything is wrong with one."""
    return _read(raws, BudgetObject, "expected a Budget", lambda _budget, _findings: None)


def _read(raws: list[Any], kind: type[T], wrong: str, judge: Callable[[T, Findings], None]) -> list[T]:
    problems: list[dict[str, Any]] = []
    found: list[T] = []
    for index, raw in enumerate(raws):
        findings = Findings("", _title(raw, index))
        item = read_object(raw, ((), 0), findings)
        if isinstance(item, kind):
            judge(item, findings)
            found.append(item)
        elif item is not None:
            findings.add((((), 0), "kind"), wrong)
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
        raise Refused(Reason.InvalidRequest, "no objects were sent", "send at least one")
    if problems:
        first = problems[0]
        words = [str(part) for part in (first["source"], first["field"], first["value"], first["message"]) if part]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Refused(Reason.InvalidRequest, ": ".join(words) + more, problems=problems[:100])
