"""Names that Kubernetes takes, for any run: its own names are longer, and hold dots, where labels and host names must not.

A name that has to be cut or changed gets a piece of its digest, so that two runs never meet in one name. Labels can only find
things; what is said for certain stands in annotations, whole.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from fairlease.kube.api.resource import PREFIX
from fairlease.model.record import Key, key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlease.model.lease import Lease

NAMESPACE = "fairlease-system"
"""The controller's own."""
SCHEDULER = "fairlease"
"""The name by which pods ask for us."""
RUN = f"{PREFIX}run"
"""As a label: the run, cut where it is long. As an annotation: the whole name."""
ATTEMPT = f"{PREFIX}attempt"
RANK = f"{PREFIX}rank"
ROLE = f"{PREFIX}role"
NODE = f"{PREFIX}node"
OWNER = f"{PREFIX}owner"
SLOTS = f"{PREFIX}slots"
HOLD = f"{PREFIX}hold"
"""On the controller's own namespace: `true` stops new starts."""
FINALIZER = f"{PREFIX}leases"
"""On a Run: it stays until its leases are closed and its pods are gone."""

_LABEL_MAX = 63
_EVENT_STEM = 200
_DIGEST = 8
_HOST = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def label_value(text: str) -> str:
    """A value for a label: the text, or as much of it as fits and a piece of its digest."""
    return text if len(text) <= _LABEL_MAX else _cut(text, text, _LABEL_MAX)


def service_name(run: str) -> str:
    """The name of a run's headless Service: a host name of one part."""
    plain = f"run-{run}"
    if len(plain) <= _LABEL_MAX and _HOST.fullmatch(plain):
        return plain
    return _cut(plain.replace(".", "-"), run, _LABEL_MAX)


def config_name(run: str) -> str:
    """The name of the ConfigMap that tells a run's pods who is in, and what comes."""
    return f"run-{run}"


def host_name(attempt: int, rank: int) -> str:
    """The host name of a rank: a swap keeps it, another attempt never meets it."""
    return f"a{attempt}-r{rank}"


def event_name(about: str, seq: int, index: int) -> str:
    """The name of an Event: the same for the same line of the same entry, so that none is written twice."""
    return f"{about[:_EVENT_STEM].rstrip('-.')}.{seq:x}.{index:x}"


def _cut(text: str, whole: str, most: int) -> str:
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST]
    return f"{text[: most - _DIGEST - 1].rstrip('-_.')}-{digest}"


def slots_text(lease: Lease) -> str:
    """The slots of a lease as an annotation holds them."""
    return ",".join(map(str, lease.slots))


def slots_of(annotations: Mapping[str, str]) -> frozenset[int]:
    """The slots that a pod's annotation names; none where it names none that can be read."""
    return frozenset(int(each) for each in annotations.get(SLOTS, "").split(",") if each.isdigit())


def run_of(annotations: Mapping[str, str], namespace: str) -> Key | None:
    """The run whose object it is."""
    name = annotations.get(RUN)
    return None if not name else key(name, namespace)
