"""How the pods of a run find each other, and what they are told while they live: a headless Service and a ConfigMap, for each run.

The ConfigMap holds two files, which every pod finds where FAIRLEASE_MEMBERS and FAIRLEASE_NOTICE_FILE say: who is in the gang now,
and, for as long as a cut of the run comes, when. It is written when leases change, together with the pods that come of it; kubelets
bring it to the pods that live already within a minute or so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlease.kube.api.cache import ClusterCache, made_key
from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.names import config_name, host_name, service_name
from fairlease.kube.api.refused import policy_said
from fairlease.kube.api.resource import CONFIG_MAPS, SERVICES
from fairlease.kube.api.wire_types import ConfigSeen
from fairlease.kube.projection.pods import (
    LOCALHOST,
    MEMBERS,
    NOTICE,
    address_of,
    marks_of,
    master_of,
    meets,
    owned_by,
    service_of,
)
from fairlease.kube.projection.write_queue import Target, WriteLane, WritePart
from fairlease.model.record import Key, key, short, split
from fairlease.runtime.processes.members import Gang, Meeting, Member

if TYPE_CHECKING:
    from fairlease.kube.api.connection import Api
    from fairlease.kube.projection.writer import Writer
    from fairlease.kube.settings import ClusterSettings
    from fairlease.ledger.state.runs import RunState
    from fairlease.runtime.notify.alert_rules import Picture

BYTES_MAX = 900_000
"""What a ConfigMap can hold, less a little. The members of a gang that is larger are found by their host names alone."""

MEND_S = 600.0
"""How often it is seen to that nobody has changed what pods are told."""

_IN_THE_WAY = "a ConfigMap of this name is there that is not ours; delete it"

Data = dict[str, str | None]


class Said(NamedTuple):
    """What the pods of a run were told last, and when to see whether it still stands (loop time)."""

    gang: Gang | None
    text: str
    notice: str | None
    again_at: float
    pods: frozenset[str] = frozenset()


class Rendezvous:
    """Keeps both for runs that run. `pictures` are the cuts that come, by run."""

    def __init__(self, api: Api, sight: ClusterCache, settings: ClusterSettings, writer: Writer) -> None:
        self._api, self._sight, self._settings, self._writer = api, sight, settings, writer
        self.pictures: dict[Key, Picture] = {}
        self._said: dict[Key, Said] = {}

    def keep(self, run: RunState, uid: str, part: WritePart) -> None:
        """Make or mend what is not as it should be."""
        self._serve(run, uid, part)
        self._tell(run, uid, part)

    def hush(self, run: Key, part: WritePart) -> None:
        """It does not run: whatever threatened it is over."""
        said = self._said.get(run)
        if said is None or said.notice is None:
            return
        namespace, name = split(run)

        async def act() -> None:
            try:
                await self._api.patch(CONFIG_MAPS, config_name(name), {"data": {NOTICE: None}}, namespace)
            except ApiError as error:
                if not error.not_found:
                    raise
            self._said[run] = said._replace(notice=None)

        self._writer.write(WriteLane.PODS, part, Target(CONFIG_MAPS.plural, key(config_name(name), namespace)), act)

    def forget(self, run: Key) -> None:
        """Its object is gone, and with it all that it owned."""
        self._said.pop(run, None)

    def _serve(self, run: RunState, uid: str, part: WritePart) -> None:
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

        self._writer.write(WriteLane.PODS, part, Target(SERVICES.plural, full), act)

    # --- what pods are told ----------------------------------------------------------------------------------------------

    def _tell(self, run: RunState, uid: str, part: WritePart) -> None:
        """Say who is in and what comes, where that is not what was said; and now and then again, as somebody may have edited it."""
        namespace, name = split(run.key)
        picture, pods = self.pictures.get(run.key), frozenset(lease.name for lease in run.held if lease.rank >= 0)
        notice = None if picture is None else _json(picture.told(run.key))
        said, now = self._said.get(run.key), asyncio.get_running_loop().time()
        if said is not None and said.again_at > now and (said.notice, said.pods) == (notice, pods):
            return
        gang = gang_of(
            run, self._settings.cluster.master_port
        )  # now, and not when it is written: the state may be a trial then

        async def act() -> None:
            told = gang.after(None if said is None else said.gang)
            if said is None or said.again_at <= now:  # mostly a run that just started, and there is none
                if not await self._created(run.key, uid, _data(told, notice)):
                    standing = await self._standing(run.key)
                    told = gang.after(max(standing, said or standing, key=_generation).gang)
                    await self._patched(run.key, _data(told, notice), standing)
            else:
                await self._patched(run.key, _data(told, notice), said)
            self._said[run.key] = Said(told, _text(told), notice, now + MEND_S, told.pods)

        self._writer.write(WriteLane.PODS, part, Target(CONFIG_MAPS.plural, key(config_name(name), namespace)), act)

    async def _patched(self, run: Key, data: Data, standing: Said) -> None:
        """Say what is not said yet."""
        namespace, name = split(run)
        if data == {MEMBERS: standing.text, NOTICE: standing.notice}:
            return
        try:
            await self._api.patch(CONFIG_MAPS, config_name(name), {"data": data}, namespace)
        except ApiError as error:
            if error.not_found:  # somebody deleted it: it is made again
                self._said[run] = standing._replace(again_at=0.0)
            raise

    async def _standing(self, run: Key) -> Said:
        """What stands there.

        We may not read ConfigMaps, as most are none of our business: a patch that changes nothing tells what our own holds, and of
        others' the API server's policies let us touch nothing.
        """
        namespace, name = split(run)
        try:
            answer = await self._api.patch(CONFIG_MAPS, config_name(name), {}, namespace)
        except ApiError as error:
            if policy_said(error):
                error.args = (_IN_THE_WAY,)
            raise
        data = msgspec.json.decode(answer, type=ConfigSeen).data
        text = data.get(MEMBERS, "")
        return Said(_read(text), text, data.get(NOTICE), 0.0)

    async def _created(self, run: Key, uid: str, data: Data) -> bool:
        """Make it; says whether there was none."""
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
            "data": {file: text for file, text in data.items() if text is not None},
        }
        try:
            await self._api.create(CONFIG_MAPS, body, namespace)
        except ApiError as error:
            if not error.already_exists:
                raise
            return False
        return True


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


def _generation(said: Said) -> int:
    return 0 if said.gang is None else said.gang.generation


def _data(gang: Gang, notice: str | None) -> Data:
    return {MEMBERS: _text(gang), NOTICE: notice}
