"""What is answered with no, before or by the API server: names that cannot be, and how to tell one no from another."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from fairlease.model.record import Key, short
from fairlease.reason import Reason
from fairlease.runtime.requests import Refused

if TYPE_CHECKING:
    from fairlease.kube.api.connection import ApiError

NAME_MAX, NAMESPACE_MAX = 253, 63
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAMESPACE = re.compile(_PART)
_NAME = re.compile(rf"{_PART}(\.{_PART})*")
_POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: (.*)", re.DOTALL)


class Unanswered(Exception):  # noqa: N818 - it says what happened
    """The API server took what was asked, and no controller has answered."""


def name_key(text: str) -> Key:
    """The key behind a name that somebody typed. What cannot be a name never gets into the path of a request."""
    namespace, slash, name = text.partition("/")
    if not (slash and is_namespace(namespace) and len(name) <= NAME_MAX and _NAME.fullmatch(name)):
        message = f"{text.removeprefix('default/')!r} is not a name"
        remedy = "write a name, or namespace/name, of lower-case letters, digits, - and ."
        raise Refused(Reason.InvalidRequest, message, remedy)
    return Key(text)


def no_run(name: Key) -> Refused:
    """There is no such run."""
    return Refused(Reason.NotFound, f"there is no run {short(name)}")


def is_namespace(text: str) -> bool:
    """Whether a namespace could have this name."""
    return len(text) <= NAMESPACE_MAX and _NAMESPACE.fullmatch(text) is not None


def policy_said(error: ApiError) -> str:
    """What an admission policy said; nothing where none did."""
    found = _POLICY.search(error.message)
    return found[2] if found else ""


def not_installed(error: ApiError) -> bool:
    """Whether the cluster has no such kinds at all."""
    return error.not_found and "the server could not find the requested resource" in error.message


def lacks_rights(error: ApiError) -> bool:
    """Whether the caller may not do that at all; a policy's no is about what was asked, not about who asked."""
    return error.code == HTTPStatus.FORBIDDEN and not policy_said(error)
