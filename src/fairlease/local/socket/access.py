"""Who may do what. The kernel says who calls (peer credentials); the configuration says whose money that is.

    submit, cancel, resize, drill,
    sponsors                           administrators, and users bound to the run's owner or to one above it
    Budgets, nodes, stopping,
    resolving                          administrators
    command, environment, logs         the run's submitter, users bound to its owner, administrators
    everything else                    everybody on this machine

Administrators are root, the daemon's own user, and whom the configuration names. A daemon that is not root runs all work as
itself, so it takes work only from itself and root: whoever else could give it work could do everything its user can.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import time
from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.owner import at_or_below
from fairlease.model.record import short
from fairlease.reason import Reason
from fairlease.runtime.requests import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlease.model.record import Key

ROOT = 0
REMEMBERED_S = 30.0
REMEMBERED_MAX = 1_000
EVERY_OWNER = "*"
ASK = "ask an administrator of this machine to do it"


class Caller(NamedTuple):
    """Who is at the other end of a connection, as the kernel told. `names`: the user's, and each group's with an @."""

    uid: int
    name: str
    names: frozenset[str]
    admin: bool
    owners: tuple[str, ...]

    def bound_to(self, owner: str) -> bool:
        """Whether the caller may spend an owner's money."""
        return any(covers(bound, owner) for bound in self.owners)


class Access:
    """The rules above, for one daemon. Groups are looked up again after a while: people join and leave them."""

    def __init__(self, users: Mapping[str, Sequence[str]], admins: Iterable[str]) -> None:
        self._users = users
        self._admins = frozenset(admins)
        self._own_uid = os.geteuid()
        self._known: dict[tuple[int, int], tuple[float, Caller]] = {}

    def strangers(self) -> list[str]:
        """Whom the configuration names and this machine does not know: a slip of the pen, or an account that is yet to come."""
        return [
            f"the configuration names {'group' if name.startswith('@') else 'user'} {name}, which this machine does not know"
            for name in sorted({*self._users, *self._admins})
            if not _is_known(name)
        ]

    async def known_caller(self, uid: int, gid: int) -> Caller:
        """The same as `caller`, without keeping the loop waiting for a directory service that is slow to answer."""
        now = time.monotonic()
        looked_up, caller = self._known.get((uid, gid), (0.0, None))
        if caller is None or now - looked_up > REMEMBERED_S:
            caller = await asyncio.to_thread(self.caller, uid, gid)
            if len(self._known) > REMEMBERED_MAX:
                self._known.clear()
            self._known[uid, gid] = now, caller
        return caller

    def caller(self, uid: int, gid: int) -> Caller:
        """Whom a uid stands for. One without an account is nobody's user: it may only look."""
        name, names = _names_of(uid, gid)
        admin = uid in (ROOT, self._own_uid) or not self._admins.isdisjoint(names)
        bound = tuple(dict.fromkeys(owner for each in sorted(names) for owner in self._users.get(each, ())))
        return Caller(uid, name, names, admin, (EVERY_OWNER,) if admin else bound)

    def may_spend(self, caller: Caller, owner: str) -> Refused | None:
        """Whether the caller's runs may name this owner."""
        if not caller.bound_to(owner):
            return _denied(f"{caller.name} is not bound to {owner}: {Reason.Forbidden.remedy}")
        if self._own_uid not in (ROOT, caller.uid) and caller.uid != ROOT:
            message = f"this daemon is not root: it would run {caller.name}'s work as its own user"
            return _denied(message, "ask an administrator of this machine to run the daemon as root, or start your own")
        if self._own_uid == ROOT and caller.name.startswith("uid:"):
            message = f"{caller.name} has no account on this machine to run work as"
            return _denied(message, "ask an administrator of this machine for an account")
        return None

    def may_cancel(self, caller: Caller, run: Key, owner: str, by: str | None) -> Refused | None:
        """Whether the caller may end this run."""
        if self.may_read_all(caller, owner, by):
            return None
        return _denied(f"{short(run)} belongs to {owner}, to which {caller.name} is not bound")

    def may_govern(self, caller: Caller, what: str) -> Refused | None:
        """Whether the caller may do what only administrators do."""
        if caller.admin:
            return None
        return _denied(f"only an administrator may {what}, and {caller.name} is none", ASK)

    def may_read_all(self, caller: Caller, owner: str, by: str | None) -> bool:
        """Whether the caller may see a run's command, environment and logs."""
        return caller.admin or by == caller.name or caller.bound_to(owner)


def covers(bound: str, owner: str) -> bool:
    """Whether a binding reaches an owner: itself and all below it, by whole segments (`org:ai` is not above `org:aix`)."""
    return bound == EVERY_OWNER or at_or_below(owner, bound)


def _denied(message: str, remedy: str | None = None) -> Refused:
    return Refused(Reason.Forbidden, message, remedy)


def _is_known(name: str) -> bool:
    try:
        if name.startswith("@"):
            grp.getgrnam(name.removeprefix("@"))
        else:
            pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _names_of(uid: int, gid: int) -> tuple[str, frozenset[str]]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return f"uid:{uid}", frozenset()
    names = {entry.pw_name}
    for each in {gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)}:
        try:
            names.add(f"@{grp.getgrgid(each).gr_name}")
        except KeyError:
            continue
    return entry.pw_name, frozenset(names)
