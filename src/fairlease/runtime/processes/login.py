"""Who a command is run as, and what it finds in its environment before anybody adds to it."""

from __future__ import annotations

from collections.abc import Mapping

from fairlease.model.record import Record

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TMPDIR")


class User(Record, frozen=True, kw_only=True):
    """Whose processes they are, where the daemon is root."""

    uid: int
    gid: int
    name: str
    home: str
    shell: str = "/bin/sh"


def base_environment(user: User | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a login would give. `user` None: the daemon is the user's own, so its PATH and places are theirs too.

    Another user's work inherits nothing but the language: root's variables are not theirs to see.
    """
    language = {"LANG": inherited.get("LANG", "C.UTF-8")}
    if user is None:
        return {"PATH": _PATH, **language, **{name: inherited[name] for name in _KEPT if name in inherited}}
    who = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell}
    return {"PATH": _PATH, **language, **who}
