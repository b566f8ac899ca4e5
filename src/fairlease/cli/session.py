"""One call of a command: to which daemon it speaks, for which namespace, and how the answer shall look."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from fairlease.cli.failure import BAD_INPUT, NO, Failure
from fairlease.cli.render.output import emit

if TYPE_CHECKING:
    from fairlease.local.socket.protocol import Error

Answer = dict[str, Any]
SOCKET = "fairlease.sock"
SYSTEM_HOME = Path("/var/lib/fairlease")
_ELSEWHERE = "where it lives elsewhere, say so with --home or FAIRLEASE_HOME"
NAMES_MAX = 1_000
_LISTS: dict[str, tuple[str, dict[str, object], str]] = {
    "runs": ("list", {"all": True, "limit": NAMES_MAX}, "runs"),
    "living": ("list", {"limit": NAMES_MAX}, "runs"),
    "nodes": ("nodes", {}, "nodes"),
    "budgets": ("budgets.list", {}, "budgets"),
    "outcomes": ("outcomes", {"limit": NAMES_MAX}, "outcomes"),
}
"""Which verb lists the names of a kind."""
_SPEAK_FOR_THEMSELVES = ("NoDaemon", "NotAllowed", "Forbidden", "Stopping")


@dataclass(frozen=True, slots=True)
class Session:
    """What every verb is handed."""

    program: ClassVar[str] = "fairlease"
    """What one types to ask here."""
    here: ClassVar[bool] = True
    """Whether runs work on this machine, so that the directory one stands in means something to them."""

    home: str | None = None
    socket: str | None = None
    no_color: bool = False
    output: str = "table"
    namespace: str | None = None
    all_namespaces: bool = False

    @property
    def colour(self) -> bool:
        """Colour is for terminals, and for people who did not refuse it."""
        refused = self.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not refused and sys.stdout.isatty()

    @property
    def wide(self) -> bool:
        """Whether a table shall show all its columns."""
        return self.output == "wide"

    def where(self) -> str | None:
        """The namespace to ask for; None where all are wanted."""
        return None if self.all_namespaces else self.namespace or "default"

    def key(self, name: str) -> str:
        """The full name of a run or Budget: `namespace/name`, where it does not bring its namespace itself."""
        if not name.isprintable():  # what is no UTF-8, too: it could not be sent
            raise click.UsageError(f"name {name!r} has characters that no name has; look at `{self.program} list`")
        return name if "/" in name else f"{self.namespace or 'default'}/{name}"

    def home_path(self) -> Path:
        """Where the daemon lives: as `fairlease up` decides it, without importing all that it needs to."""
        if told := self.home or os.environ.get("FAIRLEASE_HOME"):
            return Path(told).expanduser().absolute()
        return SYSTEM_HOME if os.geteuid() == 0 else Path.home() / ".local/state/fairlease"

    def socket_path(self) -> Path:
        """Where the daemon listens. A `--home` that was typed counts more than a socket from the environment.

        Who was told nothing and has no daemon of their own means the machine's.
        """
        told = self.socket or (None if self.home else os.environ.get("FAIRLEASE_SOCKET"))
        if told:
            return Path(told).expanduser().absolute()
        own, system = self.home_path() / SOCKET, SYSTEM_HOME / SOCKET
        chosen = self.home or os.environ.get("FAIRLEASE_HOME")
        return system if not chosen and not own.exists() and system.exists() else own

    def call(self, verb: str, **args: object) -> Answer:
        """Ask the daemon; what was left out (None) is not sent. Every refusal becomes a `Failure`."""
        import msgspec

        from fairlease.local.socket.protocol import CallFailed, Client

        path = self.socket_path()
        try:
            answer: Answer = Client(path).call(verb, **args)
        except CallFailed as failed:
            raise self._with_hint(refused(failed.error), args) from None
        except msgspec.MsgspecError:
            remedy = "give the socket of a Fairlease daemon with --socket"
            raise Failure(f"whatever answers at {path} speaks another language", remedy=remedy) from None
        return answer

    def _with_hint(self, failure: Failure, asked: dict[str, object]) -> Failure:
        """A name that is not there is answered with the nearest one that is."""
        if failure.reason == "NotFound":
            with suppress(Failure):
                told = failure.message + self._meant(asked)
                return Failure(told, code=failure.code, reason=failure.reason, remedy=failure.remedy)
        return failure

    def _meant(self, asked: dict[str, object]) -> str:
        """Which name may have been meant by a request that named a run, a Budget or an outcome that is not there.

        Where all it named are there, something else was not found, such as an envelope.
        """
        for what, kind in (("budget", "budgets"), ("name", "outcomes"), ("run", "runs"), ("runs", "runs")):
            given = asked.get(what)
            names = [bare(name) for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
            if names:
                there = self.known(kind)
                return next((near for name in names if name not in there and (near := nearest(name, there))), "")
        return ""

    def known(self, kind: str) -> list[str]:
        """The names that there are: of `runs`, `living` ones, `nodes`, `budgets`, `outcomes`, or `owners`."""
        if kind == "owners":  # of Budgets and of runs, and those above them
            found = {each["owner"] for each in self.call("budgets.list")["budgets"]}
            found |= {each["owner"] for each in self.call("list", all=True, limit=NAMES_MAX)["runs"]}
            parts = [owner.split(":") for owner in found]
            return sorted({":".join(each[:count]) for each in parts for count in range(1, len(each) + 1)})
        verb, args, field = _LISTS[kind]
        return [bare(each["name"]) for each in self.call(verb, **args)[field]]

    def show(self, value: Answer, draw: Callable[[Answer], None]) -> None:
        """Print an answer: as it is for programs, drawn for people."""
        if self.output in ("json", "yaml"):
            emit(value, self.output)
        else:
            draw(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no name is near."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def not_found(what: str, name: str, known: Iterable[str], remedy: str) -> Failure:
    """There is no such thing, but perhaps one of nearly that name."""
    return Failure(f"there is no {what} {name}{nearest(name, known)}", code=BAD_INPUT, reason="NotFound", remedy=remedy)


def working_directory() -> Path:
    """Where work begins that names no directory: where its submitter stands."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise Failure("the directory you are in was deleted", remedy="change to one that exists") from None


def bare(full: str) -> str:
    """A name without the default namespace, which goes without saying."""
    return full.removeprefix("default/")


def refused(error: Error) -> Failure:
    """The daemon's refusal as users see it. Its code 1 means "refused", which is 2 here: 1 is the answer no."""
    code = BAD_INPUT if error.exit in (0, NO) else error.exit
    reason = "" if error.reason in _SPEAK_FOR_THEMSELVES else error.reason
    remedy = _ELSEWHERE if error.reason == "NoDaemon" else error.remedy
    problems = [problem_line(each) for each in error.problems]
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    message = f"{count} in what was sent; nothing was done" if problems else error.message
    return Failure(message, code=code, reason=reason, remedy=remedy, problems=problems)


def problem_line(problem: object) -> str:
    """One problem: where, what, and what was expected."""
    if not isinstance(problem, dict):
        return str(problem)
    source, line = problem.get("source") or "", problem.get("line")
    place = f"{source}:{line}" if source and line else source
    parts = (place, problem.get("field"), problem.get("value"), problem.get("message"))
    return ": ".join(str(part) for part in parts if part not in (None, ""))
