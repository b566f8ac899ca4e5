"""`fairlease watch`: runs as they change. A picture that is redrawn on a terminal; a line for each change in a pipe.

It does not poll: the daemon answers `wait` when its ledger has grown, and only then is anything asked again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from fairlease.cli.failure import answer_is_no
from fairlease.cli.render.output import as_json, as_yaml, emit, table, terminal_width
from fairlease.cli.render.runs_table import TERMINAL, date_of, full_name, gpus, headings, reason, row, whereabouts
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, run_argument, verb

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

LIMIT = 1_000
WAIT_MS = 30_000
REDRAW_MS = 1_000
"""A terminal shows ages and countdowns, which go on while nothing happens."""
ASK_AGAIN = 5
"""Pictures after which the daemon is asked again even where its ledger has not grown: hours have."""

_EXAMPLE = """
fairlease watch
fairlease watch my-run other-run --until-done
fairlease watch my-run -o json | jq -r .status.phase
"""


@verb("watch", example=_EXAMPLE, formats=READ, namespace=True, every=True, wide="columns, on a terminal")
@run_argument(several=True, required=False)
@click.option("--until-done", is_flag=True, help="End when all of them have ended; exit with 1 where one failed.")
def command(session: Session, runs: tuple[str, ...], until_done: bool) -> None:
    """Watch runs as they change.

    All runs, where none is named. On a terminal the table is redrawn every second, with START/ETA counting down to the
    date of each reservation; in a pipe each change is a line, with `-o json` an object.
    """
    follow(session, [session.key(run) for run in runs], until_done=until_done)


def follow(session: Session, names: Sequence[str], *, until_done: bool, final: bool = False) -> None:
    """Show runs until they are done, or for ever. `final`: programs get one answer, at the end."""
    machine = session.output in ("json", "yaml")
    picture = _live() if sys.stdout.isatty() and not machine else None
    told: dict[str, tuple[object, ...]] = {}
    alive: set[str] = set(names)
    runs: list[Answer] = []
    with picture or _nothing():
        for runs in _changes(session, names, REDRAW_MS if picture else WAIT_MS):
            if picture is not None:
                picture.update(_drawn(session, runs), refresh=True)
            elif not (machine and final):
                _tell(session, runs, told)
            alive |= {full_name(run) for run in runs if not _ended(run)}
            if until_done and all(_ended(run) for run in runs):
                break
    if machine and final:
        emit({"runs": runs}, session.output)
    if any(full_name(run) in alive and run["status"]["phase"] != "Completed" for run in runs):
        raise answer_is_no()


def _nothing() -> AbstractContextManager[None]:
    return nullcontext()


def _ended(run: Answer) -> bool:
    return run["status"]["phase"] in TERMINAL


def _changes(session: Session, names: Sequence[str], wait_ms: int) -> Iterator[list[Answer]]:
    """The runs now, and again whenever the ledger has grown. The head is read first: no change falls between.

    Where none is named, those that had ended before we looked are past: nothing will happen to them.
    """
    head = session.call("status")["head"]
    runs = _asked(session, names)
    past = set() if names else {full_name(run) for run in runs if _ended(run)}
    idle = 0
    while True:
        yield [run for run in runs if full_name(run) not in past]
        before, head = head, session.call("wait", seq=head["seq"], timeoutMs=wait_ms)["head"]
        idle = idle + 1 if before == head else 0
        if idle % ASK_AGAIN == 0 or wait_ms != REDRAW_MS:
            runs = _asked(session, names)


def _asked(session: Session, names: Sequence[str]) -> list[Answer]:
    if names:
        return [listed(session.call("show", run=name)) for name in names]
    runs: list[Answer] = session.call("list", namespace=session.where(), all=True, limit=LIMIT)["runs"]
    return runs


def listed(run: Answer) -> Answer:
    """A run of `show` in the shape of `list`."""
    resources = run["spec"]["resources"]
    kept = {name: run.get(name) for name in ("name", "namespace")}
    extra = {"owner": run["spec"]["owner"], "by": run.get("by"), "gpuType": resources["gpuType"]}
    told = {"forecast": run["forecast"]} if run.get("forecast") else {}
    return {**kept, **extra, "gpus": resources["totalGPUs"], "status": run["status"], **told}


def _tell(session: Session, runs: Sequence[Answer], told: dict[str, tuple[object, ...]]) -> None:
    """A line for each run that is not as it was told last."""
    for run in runs:
        status, name = run["status"], full_name(run)
        date = status.get("earliestStart") if status["phase"] == "Pending" else None
        now = (status["phase"], gpus(run), reason(status), status.get("message", ""), status.get("attempt"), date)
        if told.get(name) == now:
            continue
        told[name] = now
        if session.output == "json":
            click.echo(as_json(run, compact=True))
        elif session.output == "yaml":
            click.echo(f"---\n{as_yaml(run)}", nl=False)
        else:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            words = (
                at,
                bare(name),
                status["phase"],
                gpus(run),
                reason(status),
                date_of(status),
                status.get("message", ""),
            )
            click.echo("   ".join(str(word) for word in words if word))
    sys.stdout.flush()


# --- the picture -----------------------------------------------------------------------------------------------------


def _live() -> Live:
    from rich.live import Live

    return Live(auto_refresh=False)


def _drawn(session: Session, runs: Sequence[Answer]) -> Text:
    from rich.text import Text

    where = whereabouts(session)
    rows = [row(session, run, where) for run in runs]
    lines = table(headings(session), rows, colour=session.colour, width=terminal_width())
    return Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop")
