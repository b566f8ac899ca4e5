"""What every record shares: frozen, keyword-only, and named in the API as Kubernetes users expect (`totalGPUs`, `maxGPUHours`).

Quantities are plain integers. What unit an integer holds is told by its type: `Duration` and `Instant` are milliseconds,
`GpuHours` is GPU-milliseconds. `fairlease.model.reading` turns `2h`, RFC 3339 times and hours into them at the boundary, and
`fairlease.model.writing` turns them back.
"""

from __future__ import annotations

import enum
from typing import Annotated, NewType

import msgspec

from fairlease.reason import Reason

_ACRONYMS = {"gpu": "GPU", "gpus": "GPUs", "acl": "ACL"}


def api_name(name: str) -> str:
    """The API's name of a field: `max_gpu_hours` is `maxGPUHours`."""
    first, *rest = name.split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in rest)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=api_name, gc=False):
    """A frozen value. Absent fields are left out when it is written."""


class Unit(enum.Enum):
    """What an integer counts, and so how people write it."""

    DURATION = "duration, such as 90s, 15m or 1h30m"
    INSTANT = "RFC 3339 time, such as 2026-01-05T00:00:00Z"
    GPU_HOURS = "number of GPU-hours, such as 8 or 2.5"
    NOTICE = "duration, such as 15m, or never"


Duration = Annotated[int, Unit.DURATION]
Instant = Annotated[int, Unit.INSTANT]
GpuHours = Annotated[int, Unit.GPU_HOURS]

Key = NewType("Key", str)
"""`namespace/name` of a Budget or a Run: one type, and one way to make it (`key`)."""

DEFAULT_NAMESPACE = "default"


def key(name: str, namespace: str = DEFAULT_NAMESPACE) -> Key:
    """The key of a name; a name that brings its own namespace keeps it."""
    return Key(name if "/" in name else f"{namespace}/{name}")


def split(full: Key) -> tuple[str, str]:
    """Namespace and name; also the order in which keys sort."""
    namespace, _, name = full.partition("/")
    return namespace, name


def short(full: Key) -> str:
    """How people see a key: the default namespace goes without saying."""
    namespace, name = split(full)
    return name if namespace == DEFAULT_NAMESPACE else full


__all__ = [
    "DEFAULT_NAMESPACE",
    "Duration",
    "GpuHours",
    "Instant",
    "Key",
    "Reason",
    "Record",
    "Unit",
    "api_name",
    "key",
    "short",
    "split",
]
