"""Who is in a gang, as its pods are told: a small file that is replaced whole whenever a rank comes, goes or moves.

A process's environment is settled when it starts; a gang is not: spares take over, groups go, groups come. Who has to meet anew
reads this file. `generation` grows by one with each change and never goes back, so that ranks can agree on whom they mean.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlease.model.record import Record


class Member(Record, frozen=True, kw_only=True):
    """One rank, and where it lies now. `pod` is another one whenever its process is."""

    rank: int
    host: str
    node: str
    address: str
    pod: str


class Meeting(Record, frozen=True, kw_only=True):
    """Where the ranks meet."""

    address: str
    port: int


class Gang(Record, frozen=True, kw_only=True):
    """The file's content. Members stand in order of rank: the place in the list is a rank without gaps."""

    run: str
    attempt: int
    generation: int
    world_size: int
    master: Meeting
    members: tuple[Member, ...]

    @property
    def pods(self) -> frozenset[str]:
        """The pods of its members."""
        return frozenset(member.pod for member in self.members)

    def after(self, standing: Gang | None) -> Gang:
        """The same with its number: that of what stands, where nothing changed, or else the next."""
        if standing is None:
            return replace(self, generation=1)
        same = replace(self, generation=standing.generation)
        return same if same == standing else replace(self, generation=standing.generation + 1)
