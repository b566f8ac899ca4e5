"""What a command says when it cannot do what it was asked: one readable block, and an exit code to rely on.

Every failure that a user can cause or mend ends up here; a traceback is only ever our own bug.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any, Final

import click

NO: Final = 1
BAD_INPUT: Final = 2
NO_DAEMON: Final = 3
NOT_ALLOWED: Final = 4
BROKEN: Final = 70
UNWRITTEN: Final = 74
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

NO_REMEDY: Final = "nothing to change"

EXIT_CODES: Final = {
    0: "done; the answer is yes",
    NO: "the answer is no: it would not start, the audit failed, an expectation did not hold, the run failed",
    BAD_INPUT: "bad input, or the request was refused",
    NO_DAEMON: "nobody answers: no daemon, or no API server",
    NOT_ALLOWED: "not allowed",
    BROKEN: "the daemon has a fault of its own; its log tells more",
    UNWRITTEN: "the answer could not be written: the disk is full, or the like",
    INTERRUPTED: "interrupted",
    BROKEN_PIPE: "whoever read the output went away",
}


class Failure(click.ClickException):
    """A refusal: what is wrong, each problem on its own line, and what would help."""

    def __init__(
        self,
        message: str,
        *,
        code: int = BAD_INPUT,
        reason: str = "",
        remedy: str = "",
        problems: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.code = self.exit_code = code  # type: ignore[misc]  # click declares it for the class, but reads it here
        self.reason = reason
        self.remedy = remedy
        self.problems = tuple(problems)

    def block(self) -> str:
        """The whole of it, as it is printed."""
        head = ": ".join(part for part in ("fairlease", self.reason, self.message) if part)
        lines = [head, *(f"  {problem}" for problem in self.problems)]
        if remedy := unsaid(self.remedy, self.message):
            lines.append(f"  to mend it: {remedy}")
        return "\n".join(lines)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it where errors belong."""
        click.echo(printable(self.block(), keep="\n"), file=file or sys.stderr)


def unsaid(remedy: str | None, message: str | None) -> str:
    """What would help, where there is something, and the message beside it does not say so already."""
    return "" if remedy in (NO_REMEDY, None) or remedy in (message or "") else remedy


def answer_is_no() -> click.exceptions.Exit:
    """Raise it to end a command that did its work, with the answer no."""
    return click.exceptions.Exit(NO)


def printable(text: str, keep: str = "") -> str:
    """Text without what a terminal would obey: names and messages come from other people."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else "�" for char in text)
