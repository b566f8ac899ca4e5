"""`fairlease run`: from a command line to a gang of GPUs, without a file, and its logs until it ends."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fairlease.cli.failure import BAD_INPUT, Failure, answer_is_no
from fairlease.cli.render.runs_table import date_of, full_name, reason
from fairlease.cli.session import Answer, Session, bare, working_directory
from fairlease.cli.verb import READ, owner_option, verb, wait_for_nodes_option

API_VERSION = "rq.davidlangworthy.io/v1"
TRIES = 5
"""A name that was taken is drawn anew; five times in a row is no accident."""

_EXAMPLE = """
fairlease run --gpus 2 -- python train.py --epochs 3
fairlease run --gpus 16 --gpus-per-pod 8 --max-duration 12h --detach -- torchrun train.py
fairlease run --gpus 4 --owner org:team-a --sponsor org:team-b --env WANDB_MODE=offline -- ./train.sh
"""
_ADJECTIVES = "amber bold brave brisk calm clear clever cosy crisp eager early fair fond gentle glad golden"
_ANIMALS = "badger beaver crane dove eagle falcon finch fox gull hare heron ibis lark lynx marten mole"

_FLAGS = {
    "spec.resources.totalGPUs": "--gpus",
    "spec.resources.gpuType": "--type",
    "spec.gpusPerPod": "--gpus-per-pod",
    "spec.locality.groupGPUs": "--group",
    "spec.runtime.maxDuration": "--max-duration",
    "spec.funding.sponsors": "--sponsor",
    "spec.owner": "--owner",
    "spec.env": "--env",
    "metadata.name": "--name",
}
"""Where a field of the object came from."""


class Duration(click.ParamType[str]):
    """A length of time, kept as it was typed."""

    name = "duration"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same, where it is one."""
        from fairlease.model.amount import parse_duration

        try:
            if parse_duration(value) > 0:
                return value
        except (ValueError, OverflowError):
            pass
        return self.fail(f"{value!r} is no duration; expected one such as 90m, 1h30m or 2d", param, ctx)


@verb(
    "run",
    example=_EXAMPLE,
    formats=READ,
    namespace=True,
    wide="the whole quote, with --dry-run",
)
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--gpus", type=click.IntRange(min=1), required=True, metavar="N", help="How many GPUs in all.")
@click.option("--name", metavar="NAME", help="What to call it; a readable name is made up where none is given.")
@owner_option("Who pays first; needed only where you could mean several.")
@click.option("--type", "flavor", metavar="FLAVOR", help="The GPUs' flavor; needed only where there are several.")
@click.option("--gpus-per-pod", type=click.IntRange(min=1), metavar="P", help="GPUs of each process; 1 by default.")
@click.option("--group", type=click.IntRange(min=1), metavar="G", help="GPUs that must lie in one fabric domain.")
@click.option(
    "--max-duration",
    type=Duration(),
    metavar="D",
    help="End it after this time, such as 90m or 2d; bounds what it can cost.",
)
@click.option("--env", multiple=True, metavar="K=V", help="A variable for the command; K alone takes your own value.")
@click.option("--sponsor", "sponsors", multiple=True, metavar="S", help="An owner to borrow from, in this order.")
@click.option("--wait/--detach", default=True, help="Follow its logs until it has ended, or return at once.")
@wait_for_nodes_option()
@click.option("--dry-run", is_flag=True, help="Only quote it, as `fairlease plan` does; nothing is written.")
def command(session: Session, name: str | None, wait: bool, dry_run: bool, wait_for_nodes: bool, **asked: Any) -> None:  # noqa: ANN401 - options of many types
    """Run a command on GPUs: submit, wait, follow its logs.

    The command is started once for each pod, with RANK, WORLD_SIZE, MASTER_ADDR and CUDA_VISIBLE_DEVICES set, in the
    directory you are in. Exits with 0 where the run completed and with 1 where it failed. Ctrl-C leaves it running.
    """
    spec = _spec(session, asked)
    if dry_run:
        from fairlease.cli.verbs.plan import quote

        name = name or made_up(asked["words"])
        try:
            quote(session, [_object(session, name, spec)])
        except Failure as failure:
            raise _as_typed(failure, name) from None
        return
    run = _submitted(session, name, spec, asked["words"], wait_for_nodes or None)
    if not wait:
        from fairlease.cli.verbs.submit import draw

        session.show({"runs": [run]}, draw)
        return
    _attend(session, run)


def _spec(session: Session, asked: dict[str, Any]) -> dict[str, object]:
    spec: dict[str, object] = {
        "owner": asked["owner"] or _only_owner(session),
        "resources": {"gpuType": asked["flavor"] or _only_flavor(session), "totalGPUs": asked["gpus"]},
        "command": list(asked["words"]),
        "workdir": str(working_directory()),
    }
    if asked["env"]:
        spec["env"] = dict(map(variable, asked["env"]))
    if asked["gpus_per_pod"]:
        spec["gpusPerPod"] = asked["gpus_per_pod"]
    if asked["group"]:
        spec["locality"] = {"groupGPUs": asked["group"]}
    if asked["max_duration"]:
        spec["runtime"] = {"maxDuration": asked["max_duration"]}
    if asked["sponsors"]:
        spec["funding"] = {"allowBorrow": True, "sponsors": list(asked["sponsors"])}
    return spec


def variable(text: str) -> tuple[str, str]:
    """`K=V`, or `K` for one's own value of it."""
    name, given, value = text.partition("=")
    if not name or (not given and name not in os.environ):
        message = "expected K=V" if not name else f"{name} is not set here; expected K=V"
        raise click.BadParameter(f"{text!r}: {message}", param_hint="--env")
    return name, value if given else os.environ[name]


def _only_owner(session: Session) -> str:
    """The owner one must mean: the only one bound to, or, for somebody bound to all, the only one with a Budget."""
    bound: list[str] = session.call("status")["you"]["owners"]
    if "*" in bound:
        bound = sorted({budget["owner"] for budget in session.call("budgets.list")["budgets"]})
        none = "no owner has a Budget yet, so nobody could pay"
        remedy = "write one with `fairlease budgets apply -f FILE`, then name its owner with --owner"
    else:
        none, remedy = "you are bound to no owner", "ask an administrator to bind you to one"
    if len(bound) == 1:
        return bound[0]
    if not bound:
        raise Failure(f"--owner: {none}", code=BAD_INPUT, remedy=remedy)
    remedy = f"say which with --owner: {', '.join(bound)}"
    raise Failure(f"--owner: it could be any of {len(bound)} owners", code=BAD_INPUT, remedy=remedy)


def _only_flavor(session: Session) -> str:
    flavors: list[str] = sorted({node["flavor"] for node in session.call("nodes")["nodes"] if node["flavor"]})
    if len(flavors) == 1:
        return flavors[0]
    if not flavors:
        raise Failure("--type: no node has GPUs of a known flavor", remedy="look at `fairlease nodes`")
    raise Failure(f"--type: there are {len(flavors)} flavors", remedy=f"say which with --type: {', '.join(flavors)}")


def _object(session: Session, name: str, spec: dict[str, object]) -> dict[str, object]:
    metadata = {"name": name, "namespace": session.namespace or "default"}
    return {"apiVersion": API_VERSION, "kind": "Run", "metadata": metadata, "spec": spec}


def _submitted(
    session: Session, name: str | None, spec: dict[str, object], words: Sequence[str], wait_for_nodes: bool | None
) -> Answer:
    for left in reversed(range(TRIES)):
        called = name or made_up(words)
        try:
            run: Answer = session.call("submit", objects=[_object(session, called, spec)], waitForNodes=wait_for_nodes)[
                "runs"
            ][0]
        except Failure as failure:
            if name is not None or failure.reason != "AlreadyExists" or not left:
                raise _as_typed(failure, called) from None
        else:
            return run
    raise AssertionError("the last try either returns or raises")


def _as_typed(failure: Failure, name: str) -> Failure:
    """A refusal in the words of the command line: nobody typed a field, nor the name that was made up."""
    problems = [problem.removeprefix(f"{name}: ") for problem in failure.problems]
    for number, problem in enumerate(problems):
        for field, flag in _FLAGS.items():
            if problem.startswith(field):
                problems[number] = flag + problem.removeprefix(field)
    failure.problems = tuple(problems)
    return failure


def made_up(words: Sequence[str]) -> str:
    """A name one can read, say and type: what is run, and a chance companion."""
    script = next((word for word in words if re.search(r"\.(py|sh)$", word)), words[0])
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:40].strip("-") or "run"
    adjective, animal = secrets.choice(_ADJECTIVES.split()), secrets.choice(_ANIMALS.split())
    return f"{stem}-{adjective}-{animal}-{secrets.randbelow(1 << 16):04x}"


def _attend(session: Session, run: Answer) -> None:
    """Wait for the end, with the logs on stdout and what is to be said about the run on stderr.

    For a program the answer is on stdout, alone, and the logs go where all else goes.
    """
    from fairlease.cli.verbs.logs import LogReader

    name = bare(full_name(run))
    _say(name, run["status"], started="runs")
    try:
        told = session.output in ("json", "yaml")
        LogReader(session, full_name(run), out=sys.stderr if told else sys.stdout).follow()
    except KeyboardInterrupt:
        again = f"`fairlease logs -f {name}` follows it, `fairlease cancel {name}` ends it"
        click.echo(f"\nrun/{name} goes on: {again}", err=True)
        raise
    ended = session.call("show", run=full_name(run))
    if session.output in ("json", "yaml"):
        session.show(ended, lambda _: None)
    else:
        _say(name, ended["status"], started="")
    if ended["status"]["phase"] != "Completed":
        raise answer_is_no()


def _say(name: str, status: Answer, started: str) -> None:
    phase = status["phase"]
    if started and reason(status) == "Starting":
        phase = "Running"  # it has its GPUs, and what it writes is followed
    told = {"Running": started, "Pending": f"waits: {reason(status)}", "Failed": f"failed: {reason(status)}"}
    detail = status.get("message", "") if phase != "Running" else ""
    parts = (f"run/{name} {told.get(phase, phase.lower())}", date_of(status), detail)
    click.echo(": ".join(part for part in parts if part), err=True)
