"""How the pods of a run find each other, and what they are told while they live: a headless Service and a ConfigMap, for each run.

The ConfigMap holds two files, which every pod finds where FAIRLEASE_MEMBERS and FAIRLEASE_NOTICE_FILE say: who is in the gang now,
and, for as long as a cut of the run comes, when. It is written when leases change, together with the pods that come of it; kubelets
bring it to the pods that live already within a minute or so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.kube.connection import ApiError
from fairlease.kube.names import config_name, host_name, service_name
from fairlease.kube.pods import LOCALHOST, MEMBERS, NOTICE, address_of, marks_of, master_of, meets, owned_by, service_of
from fairlease.kube.resource import CONFIG_MAPS, SERVICES
from fairlease.kube.seen import Seen
from fairlease.kube.sight import Sight, made_key
from fairlease.kube.writer import Lane, Part, Target
from fairlease.model.record import Key, key, short, split
from fairlease.theatre.members import Gang, Meeting, Member

if TYPE_CHECKING:
    from fairlease.kube.connection import Api
    from fairlease.kube.seen import ConfigSeen
    from fairlease.kube.settings import Settings
    from fairlease.kube.writer import Writer
    from fairlease.ledger.live import RunState
    from fairlease.theatre.lookout import Picture

BYTES_MAX = 900_000
"""What a ConfigMap can hold, less a little. The members of a gang that is larger are found by their host names alone."""

Data = dict[str, str | None]


class Rendezvous:
    """Keeps both for runs that run. `pictures` are the cuts that come, by run."""

    def __init__(self, api: Api, sight: Sight, settings: Settings, writer: Writer) -> None:
        self._api, self._sight, self._settings, self._writer = api, sight, settings, writer
        self.pictures: dict[Key, Picture] = {}
        self._said: dict[Key, Gang] = {}

    def keep(self, run: RunState, uid: str, part: Part) -> None:
        """Make or mend what is not as it should be."""
        self._serve(run, uid, part)
        self._tell(run, uid, part)

    def forget(self, run: Key) -> None:
        """Its object is gone, and with it all that it owned."""
        self._said.pop(run, None)

    def _serve(self, run: RunState, uid: str, part: Part) -> None:
        """The Service by which ranks find each other, where there can be more than one."""
        namespace, name = split(run.key)
        full = key(service_name(name), namespace)
        made = made_key(SERVICES, full)
        if not meets(run.spec) or full in self._sight.services.objects or self._sight.made.get(made) is not None:
            return

        async def act() -> None:
            try:
                await self._api.create(SERVICES, service_of(run.key, uid), namespace)
            except ApiError as error:
                if not error.already_exists:
                    raise
            if full not in self._sight.services.objects:
                self._sight.made.add(made)

        self._writer.write(Lane.PODS, part, Target(SERVICES.plural, full), act)

    # --- what pods are told ----------------------------------------------------------------------------------------------

    def _tell(self, run: RunState, uid: str, part: Part) -> None:
        """Say who is in and what comes, where that is not what was said."""
        namespace, name = split(run.key)
        full = key(config_name(name), namespace)
        there = self._sight.config_maps.objects.get(full)
        gang = gang_of(run, self._settings.cluster.master_port).after(self._standing(run.key, there))
        picture = self.pictures.get(run.key)
        data: Data = {MEMBERS: _text(gang), NOTICE: None if picture is None else _json(picture.told(run.key))}
        made = made_key(CONFIG_MAPS, full)
        waiting = self._sight.made.get(made)
        if waiting == _json(data) or (waiting is None and there is not None and _says(there, data)):
            return

        async def act() -> None:
            self._said[run.key] = gang
            if there is None:
                await self._create(run.key, uid, {name: text for name, text in data.items() if text is not None})
            else:
                await self._api.patch(CONFIG_MAPS, config_name(name), {"data": data}, namespace)
            self._sight.made.add(made, _json(data))

        self._writer.write(Lane.PODS, part, Target(CONFIG_MAPS.plural, full), act)

    def _standing(self, run: Key, there: ConfigSeen | None) -> Gang | None:
        """What was said last: what we wrote and may not have seen yet, or what whoever led before us wrote."""
        seen = None if there is None else _read(there.data.get(MEMBERS, ""))
        said = self._said.get(run)
        return max((each for each in (seen, said) if each is not None), key=lambda each: each.generation, default=None)

    async def _create(self, run: Key, uid: str, data: dict[str, str]) -> None:
        namespace, name = split(run)
        body = {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": CONFIG_MAPS.kind,
            "metadata": {
                "name": config_name(name),
                "namespace": namespace,
                **marks_of(run),
                "ownerReferences": [owned_by(run, uid)],
            },
            "data": data,
        }
        try:
            await self._api.create(CONFIG_MAPS, body, namespace)
        except ApiError as error:
            if not error.already_exists:
                raise
            found = await self._api.get(CONFIG_MAPS, config_name(name), namespace, into=Seen)
            if not any(each.uid == uid for each in found.metadata.owner_references):
                error.args = ("a ConfigMap of this name is there that is not ours; delete it",)
                raise
            await self._api.patch(CONFIG_MAPS, config_name(name), {"data": data}, namespace)


def gang_of(run: RunState, port: int) -> Gang:
    """Who is in a run's gang now, in order of rank."""
    leases = sorted((lease for lease in run.held if lease.rank >= 0), key=lambda lease: lease.rank)
    alone = not meets(run.spec)
    return Gang(
        run=short(run.key),
        attempt=run.attempt,
        generation=0,
        world_size=len(leases),
        master=Meeting(address=master_of(run), port=port),
        members=tuple(
            Member(
                rank=lease.rank,
                host=host_name(lease.attempt, lease.rank),
                node=lease.node,
                address=LOCALHOST if alone else address_of(run, lease.rank),
                pod=lease.name,
            )
            for lease in leases
        ),
    )


def _text(gang: Gang) -> str:
    whole = _json(gang)
    return whole if len(whole) <= BYTES_MAX else _json(msgspec.structs.replace(gang, members=()))


def _json(value: Any) -> str:  # noqa: ANN401 - whatever is said
    return msgspec.json.encode(value).decode()


def _read(text: str) -> Gang | None:
    try:
        return msgspec.json.decode(text, type=Gang)
    except msgspec.DecodeError:
        return None


def _says(there: ConfigSeen, data: Data) -> bool:
    return all(there.data.get(name) == text for name, text in data.items())
