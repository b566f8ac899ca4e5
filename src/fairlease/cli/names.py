"""Names that the daemon knows: for the shell's Tab key, and for who typed one that is nearly right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from fairlease.cli.failure import BAD_INPUT, Failure
from fairlease.cli.session import Session, bare

LIMIT = 1_000
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no name is near."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def not_found(what: str, name: str, known: Iterable[str], remedy: str) -> Failure:
    """There is no such thing, but perhaps one of nearly that name."""
    return Failure(f"there is no {what} {name}{nearest(name, known)}", code=BAD_INPUT, reason="NotFound", remedy=remedy)


# --- what there is -----------------------------------------------------------------------------------------------------


def _runs(session: Session) -> list[str]:
    return [bare(run["name"]) for run in session.call("list", all=True, limit=LIMIT)["runs"]]


def _living(session: Session) -> list[str]:
    return [bare(run["name"]) for run in session.call("list", limit=LIMIT)["runs"]]


def _nodes(session: Session) -> list[str]:
    return [node["name"] for node in session.call("nodes")["nodes"]]


def _budgets(session: Session) -> list[str]:
    return [bare(budget["name"]) for budget in session.call("budgets.list")["budgets"]]


def _outcomes(session: Session) -> list[str]:
    return [outcome["name"] for outcome in session.call("outcomes", limit=LIMIT)["outcomes"]]


def _owners(session: Session) -> list[str]:
    """Owners of Budgets and of runs, and those above them."""
    found = {budget["owner"] for budget in session.call("budgets.list")["budgets"]}
    found |= {run["owner"] for run in session.call("list", all=True, limit=LIMIT)["runs"]}
    for owner in list(found):
        parts = owner.split(":")
        found |= {":".join(parts[:count]) for count in range(1, len(parts))}
    return sorted(found)


# --- the Tab key -------------------------------------------------------------------------------------------------------


def _completer(known: Callable[[Session], list[str]]) -> Completer:
    """Names for the shell's completion; without a daemon there are none, and no noise."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        place: Any = getattr(ctx.command, "place")  # noqa: B009 - every verb has one, which `cli.verb` knows and we cannot
        try:
            with ctx.scope(cleanup=False):
                session: Session = place.session(dict(ctx.params))
            names = known(session)
        except Failure:
            return []
        prefix = f"{session.where()}/"
        names = [name.removeprefix(prefix) for name in names]
        given = {each for value in ctx.params.values() if isinstance(value, tuple) for each in value}
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in given]

    return complete


complete_runs = _completer(_runs)
complete_living_runs = _completer(_living)
complete_nodes = _completer(_nodes)
complete_budgets = _completer(_budgets)
complete_owners = _completer(_owners)
complete_outcomes = _completer(_outcomes)


# --- nearly right ------------------------------------------------------------------------------------------------------


def hint(session: Session, asked: dict[str, object]) -> str:
    """Which name may have been meant by a request that named a run, a Budget or an outcome that is not there.

    Where all it named are there, something else was not found, such as an envelope.
    """
    for what, known in (("budget", _budgets), ("name", _outcomes), ("run", _runs), ("runs", _runs)):
        given = asked.get(what)
        names = [bare(name) for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
        if names:
            there = known(session)
            return next((near for name in names if name not in there and (near := nearest(name, there))), "")
    return ""
