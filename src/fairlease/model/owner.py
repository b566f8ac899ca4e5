"""Owners: paths of names, joined by colons. A path says who is above whom, by whole names: `org:ai` is not above `org:aix`."""

from __future__ import annotations


def default_parents(owner: str) -> tuple[str, ...]:
    """The one parent that an owner's path names; a path of one segment has none."""
    head, _, tail = owner.rpartition(":")
    return (head,) if tail and head else ()


def at_or_below(owner: str, top: str) -> bool:
    """Whether an owner is `top`, or stands below it."""
    return owner == top or owner.startswith(f"{top}:")
