"""`fairlease logs`: what a run's processes wrote.

The daemon only tells where the files are. This command reads them itself, with the rights of whoever calls it; a
daemon that is root opens a file on another's behalf only where it belongs to a run of the caller's own owner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import click

from fairlease.cli.failure import Failure
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import run_argument, verb
from fairlease.cli.verbs.leases import ranges

CHUNK = 1 << 16
POLL_MS = 250

_EXAMPLE = """
fairlease logs my-run
fairlease logs my-run --rank 0 -f
fairlease logs my-run --attempt 1
"""


@verb("logs", example=_EXAMPLE, namespace=True)
@run_argument()
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only what this rank wrote.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="A", help="Of this attempt; by default the last.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run has ended.")
def command(session: Session, run: str, rank: int | None, attempt: int | None, following: bool) -> None:
    """Print what a run's processes wrote.

    Lines of several ranks begin with `[rank]`. A run that has not started has written nothing; `-f` waits for it.
    """
    reader = LogReader(session, session.key(run), rank, attempt)
    if following:
        reader.follow()
    elif not reader.read():
        reader.check()
        click.echo(f"{bare(session.key(run))} has written nothing", err=True)


class Tail:
    """One file, read from where it was left. Lines with a prefix are printed whole, whoever else writes."""

    def __init__(self, path: str, prefix: bytes, fetch: Callable[[int], Answer]) -> None:
        self.path = Path(path)
        self.prefix = prefix
        self._fetch = fetch
        self.printed = 0
        self._offset = 0
        self._rest = b""

    def copy(self, out: BinaryIO, *, last: bool) -> None:
        """Print what is new; at the end also a line that was never finished."""
        try:
            while part := self._part():
                self._offset += len(part)
                self._print(out, part)
        except FileNotFoundError:
            return  # The process has not begun to write.
        except PermissionError:
            self._copy_from_daemon(out)
        if last and self._rest:
            self._put(out, self.prefix + self._rest + b"\n")
            self._rest = b""

    def _part(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                return file.read(CHUNK)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            raise Failure(f"{self.path} cannot be read: {error.strerror or error}") from None

    def _copy_from_daemon(self, out: BinaryIO) -> None:
        """A colleague's run: the file is not ours to open, but the daemon knows whether we may read what is in it."""
        while True:
            part = self._fetch(self._offset)
            if part["next"] == self._offset:
                return
            self._offset = part["next"]
            self._print(out, part["text"].encode())

    def _print(self, out: BinaryIO, part: bytes) -> None:
        if not self.prefix:
            self._put(out, part)
            return
        *lines, self._rest = (self._rest + part).split(b"\n")
        if lines:
            self._put(out, b"".join(self.prefix + line + b"\n" for line in lines))

    def _put(self, out: BinaryIO, text: bytes) -> None:
        self.printed += len(text)
        out.write(text)


class LogReader:
    """The files of a run, as they appear: those of the attempt that was asked for, else of the last and what follows it."""

    def __init__(
        self,
        session: Session,
        run: str,
        rank: int | None = None,
        attempt: int | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._session = session
        self._out = sys.stdout if out is None else out
        self._asked: dict[str, Any] = {"run": run, "rank": rank, "attempt": attempt}
        self._tails: dict[str, Tail] = {}
        self._prefixed = False
        self._first: int | None = None

    def read(self) -> bool:
        """Print all there is; whether there was anything."""
        self._copy(self._look(), last=True)
        return any(tail.printed for tail in self._tails.values())

    def check(self) -> None:
        """Nothing was found; where that is because there is no such rank or attempt, say so."""
        wanted = {name: self._asked[name] for name in ("attempt", "rank") if self._asked[name] is not None}
        files = self._session.call("logs", run=self._asked["run"])["files"] if wanted else []
        if not files or any(all(file[name] == value for name, value in wanted.items()) for file in files):
            return
        asked = " in ".join(f"{name} {wanted[name]}" for name in ("rank", "attempt") if name in wanted)
        ranks, attempts = (sorted({file[name] for file in files}) for name in ("rank", "attempt"))
        remedy = f"it has rank {ranges(ranks)}, attempt {ranges(attempts)}"
        raise Failure(f"{bare(self._asked['run'])} has no {asked}", reason="NotFound", remedy=remedy)

    def follow(self) -> None:
        """Print until the run has ended and its last process is gone, which no entry of the ledger tells."""
        head = self._session.call("status")["head"]
        while True:
            answer = self._look()
            self._copy(answer, last=bool(answer["ended"]))
            if answer["ended"]:
                if not self._tails:
                    self.check()
                return
            head = self._session.call("wait", seq=head["seq"], timeoutMs=POLL_MS)["head"]

    def _look(self) -> Answer:
        answer = self._session.call("logs", **self._asked)
        if self._first is None and answer["files"]:
            self._first = self._asked["attempt"] or max(file["attempt"] for file in answer["files"])
        answer["files"] = files = [file for file in answer["files"] if file["attempt"] >= (self._first or 0)]
        self._prefixed = self._prefixed or len({file["rank"] for file in files}) > 1
        for file in files:
            prefix = f"[{file['rank']}] ".encode() if self._prefixed else b""
            fetch = partial(self._fetched, file["attempt"], file["rank"])
            self._tails.setdefault(file["path"], Tail(file["path"], prefix, fetch))
        return answer

    def _fetched(self, attempt: int, rank: int, offset: int) -> Answer:
        return self._session.call("logs.read", run=self._asked["run"], attempt=attempt, rank=rank, offset=offset)

    def _copy(self, answer: Answer, *, last: bool) -> None:
        out = self._out.buffer
        self._out.flush()
        for file in answer["files"]:
            self._tails[file["path"]].copy(out, last=last)
        out.flush()
