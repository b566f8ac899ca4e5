"""Questions to a SQLite ledger's index, each answered along an index: leases, stories and endings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.derived_rows import runs_of
from fairlease.ledger.store.protocol import Ending, LeaseQuery, LeaseRow, Moment
from fairlease.ledger.store.sqlite_index import unpack_slots
from fairlease.model.lease import Fund, Lease, Payer, Role
from fairlease.model.record import Key, split
from fairlease.reason import Reason

CHUNK = 1_000
"""Rows that are fetched at once: enough to forget the cost of a fetch, few enough to stream."""

_COLUMNS = (
    "o.serial, r.text, o.owner, o.opportunistic, o.attempt, o.number, o.grp, o.rank, o.node, o.slots, o.role, o.start,"
    " o.payer, o.reason, c.at, c.closure"
)
_JOINS = " JOIN name r ON r.id = o.run LEFT JOIN lease_closed c ON c.serial = o.serial"
_ALL = " FROM lease_opened o"
_OF_RUN = " FROM story s CROSS JOIN lease_opened o ON o.serial BETWEEN s.first AND s.last AND o.run = s.run"
_OPEN = " FROM lease_open q CROSS JOIN lease_opened o ON o.serial = q.serial"
_LATER = "(SELECT serial FROM lease_closed WHERE at > :since UNION ALL SELECT serial FROM lease_open)"
_STORY = "SELECT e.seq, e.at, e.body FROM story s JOIN entry e ON e.seq = s.seq WHERE s.run = ? ORDER BY s.seq"
_ENDINGS = (
    "SELECT e.seq, e.at, e.body, n.text FROM ended d JOIN entry e ON e.seq = d.seq JOIN name n ON n.id = d.run"
    " ORDER BY d.id DESC LIMIT ?"
)

_ROLES = {role.value: role for role in Role}
_FUNDS = {fund.value: fund for fund in Fund}
_REASONS = {reason.value: reason for reason in Reason}


class IndexReader:
    """Reads the index. Names and payers are remembered: few of them pay for, own and hold a million leases."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._names: dict[int, str] = {}
        self._payers: dict[int, Payer] = {}

    def story(self, run: Key) -> list[Moment]:
        """Every event that names a run, in order."""
        number = self._number(run)
        return [
            Moment(seq=seq, at=at, event=event)
            for seq, at, body in self._db.execute(_STORY, (number,))
            for event in ev.decode(body)
            if run in runs_of(event)
        ]

    def endings(self, limit: int | None) -> list[Ending]:
        """Runs that ended, the latest first."""
        found = []
        decoded, endings = -1, dict[str, ev.RunEnded]()
        for seq, at, body, run in self._db.execute(_ENDINGS, (-1 if limit is None else limit,)):
            if seq != decoded:  # Many runs may have ended in one entry; it is decoded once.
                decoded = seq
                endings = {each.run: each for each in ev.decode(body) if isinstance(each, ev.RunEnded)}
            found.append(Ending(seq=seq, at=at, ended=endings[run]))
        return found

    def leases(self, query: LeaseQuery) -> Iterator[LeaseRow]:
        """Leases in opening order, streamed."""
        values: dict[str, Any] = {"since": query.since, "until": query.until, "limit": query.limit}
        source, where = self._source(query, values)
        text = f"SELECT {_COLUMNS}{source}{_JOINS}"
        text += f" WHERE {' AND '.join(where)}" if where else ""
        text += " ORDER BY o.serial"
        text += "" if query.limit is None else " LIMIT :limit"
        found = self._db.execute(text, values)
        while rows := found.fetchmany(CHUNK):
            for row in rows:
                yield self._row(row)

    def _source(self, query: LeaseQuery, values: dict[str, Any]) -> tuple[str, list[str]]:
        """Where to begin, so that an index leads, and what remains to be asked of each lease."""
        where: list[str] = []
        if query.node is not None:
            values["node"] = self._number(query.node)
            where.append("o.node = :node")
        if query.owner is not None:
            found = self._db.execute(f"SELECT id FROM name WHERE {_at_or_below('text')}", _line(query.owner))  # noqa: S608 - a column's name
            owners = [row[0] for row in found]
            where.append(f"o.owner IN ({', '.join(map(str, owners))})")
        if query.budget is not None or query.envelope is not None or query.payer is not None:
            payers = self._payers_of(query)
            where.append(f"o.payer IN ({', '.join(map(str, payers))})")
        led = bool(where)
        source = _ALL
        if query.run is not None:
            values["run"] = self._number(query.run)
            source = _OF_RUN
            where.append("s.run = :run")
        elif query.open and not led:
            source = _OPEN
        elif query.since is not None and not led:
            where.append(f"o.serial IN {_LATER}")
        if query.open is not None:
            where.append("c.at IS NULL" if query.open else "c.at IS NOT NULL")
        where += self._between(query, values)
        return source, where

    def _between(self, query: LeaseQuery, values: dict[str, Any]) -> Iterator[str]:
        """Open at some instant of [since, until): a lease that ended as it began never was."""
        if query.until is not None:
            values["bound"] = self._opened_before(query.until)
            yield "o.serial < :bound"
        if query.since is not None:
            yield "(c.at IS NULL OR c.at > :since)"
        if query.since is not None and query.until is not None and query.since >= query.until:
            yield "0"
        if query.since is not None or query.until is not None:
            yield "(c.at IS NULL OR c.at > o.start)"

    def _opened_before(self, when: int) -> int:
        """How many leases were opened before `when`: serials are in order of time, so halving finds it."""
        low, (high,) = 0, self._db.execute("SELECT ifnull(max(serial), -1) + 1 FROM lease_opened").fetchone()
        while low < high:
            middle = (low + high) // 2
            (start,) = self._db.execute("SELECT start FROM lease_opened WHERE serial = ?", (middle,)).fetchone()
            low, high = (middle + 1, high) if start < when else (low, middle)
        return low

    def _row(self, row: tuple[Any, ...]) -> LeaseRow:
        (
            serial,
            run,
            owner,
            opportunistic,
            attempt,
            number,
            group,
            rank,
            node,
            slots,
            role,
            start,
            payer,
            reason,
            *end,
        ) = row
        lease = Lease(
            name=f"{split(run)[1]}-{attempt}-{number}",
            run=run,
            owner=self._names.get(owner) or self._name(owner),
            attempt=attempt,
            group=group,
            rank=rank,
            node=self._names.get(node) or self._name(node),
            slots=unpack_slots(slots),
            role=_ROLES[role],
            start=start,
            payer=self._payers.get(payer) or self._payer(payer),
            reason=_REASONS[reason],
            serial=serial,
            opportunistic=bool(opportunistic),
        )
        return LeaseRow(lease=lease, end=end[0], closure=end[1])

    def _number(self, text: str) -> int:
        row = self._db.execute("SELECT id FROM name WHERE text = ?", (text,)).fetchone()
        return -1 if row is None else int(row[0])

    def _name(self, number: int) -> str:
        row: tuple[str] = self._db.execute("SELECT text FROM name WHERE id = ?", (number,)).fetchone()
        self._names[number] = row[0]
        return row[0]

    def _payer(self, number: int) -> Payer:
        columns = "SELECT budget, envelope, owner, fund FROM payer WHERE id = ?"
        budget, envelope, owner, fund = self._db.execute(columns, (number,)).fetchone()
        self._payers[number] = Payer(budget=Key(budget), envelope=envelope, owner=owner, fund=_FUNDS[fund])
        return self._payers[number]

    def _payers_of(self, query: LeaseQuery) -> list[int]:
        wanted = {"budget": query.budget, "envelope": query.envelope}
        given = {column: text for column, text in wanted.items() if text is not None}
        parts = [f"{column} = :{column}" for column in given]
        if query.payer is not None:
            parts.append(_at_or_below("owner"))
            given |= _line(query.payer)
        where = " AND ".join(parts)
        return [row[0] for row in self._db.execute(f"SELECT id FROM payer WHERE {where}", given)]  # noqa: S608 - names from above


def _at_or_below(column: str) -> str:
    """An owner or one below it, along an index: all that begin with its path and a colon lie between two texts."""
    return f"({column} = :owner OR ({column} > :first AND {column} < :last))"


def _line(owner: str) -> dict[str, str]:
    return {"owner": owner, "first": f"{owner}:", "last": f"{owner};"}
