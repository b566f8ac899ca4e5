"""The machine as nodes: GPUs that the driver shows or that were declared, and what that means for the ledger's nodes.

A ledger remembers its nodes. A daemon that is started again without a word about GPUs, on a machine whose driver shows none, keeps
those it had: forgetting them would end the work on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.local.daemon.config import PLACE, NodeEntry, Settings, declared_nodes, node_of
from fairlease.local.daemon.gpus import Device, Discovery

if TYPE_CHECKING:
    from fairlease.ledger.state.state import State
    from fairlease.model.config import Config
    from fairlease.model.node import Node


class Hardware(NamedTuple):
    """The nodes (empty: those the ledger knows), the GPUs' uuids by node and slot, and what the driver could not tell."""

    nodes: tuple[Node, ...]
    devices: Mapping[str, Mapping[int, str]]
    problems: tuple[str, ...]


def hardware_of(settings: Settings, found: Discovery) -> Hardware:
    """Put together what was declared and what the driver found."""
    nodes = declared_nodes(settings)
    if nodes:
        return Hardware(nodes, _dealt(nodes, found.devices), found.problems)
    by_flavor: dict[str, list[Device]] = {}
    for device in found.devices:
        by_flavor.setdefault(settings.machine.flavor or device.flavor, []).append(device)
    devices = {}
    made = []
    for flavor, group in sorted(by_flavor.items()):
        name = PLACE if len(by_flavor) == 1 else f"{PLACE}-{flavor.lower()}"
        made.append(node_of(NodeEntry(name=name, gpus=len(group), domain=PLACE), flavor, settings.policy.labels))
        devices[name] = {slot: device.uuid for slot, device in enumerate(group) if device.uuid is not None}
    return Hardware(tuple(made), devices, found.problems)


def _dealt(nodes: tuple[Node, ...], devices: tuple[Device, ...]) -> dict[str, dict[int, str]]:
    """Declared nodes share the real GPUs in order, where there are enough of them; else slots are only numbers."""
    uuids = [device.uuid for device in devices if device.uuid is not None]
    if len(uuids) < sum(node.gpus for node in nodes):
        return {}
    dealt, first = {}, 0
    for node in nodes:
        dealt[node.name] = dict(enumerate(uuids[first : first + node.gpus]))
        first += node.gpus
    return dealt


def node_commands(state: State, policy: Config, hardware: Hardware) -> list[cmd.AnyCommand]:
    """What a starting daemon tells the engine: the policy, the nodes that are there, those that are not any more.

    What administrators said of a node (cordoned, failed) holds until they say otherwise.
    """
    commands: list[cmd.AnyCommand] = [cmd.Configure(config=policy)]
    if not hardware.nodes:
        return commands
    names = {node.name for node in hardware.nodes}
    commands += [cmd.RemoveNode(node=name) for name in state.capacity.nodes if name not in names]
    for node in hardware.nodes:
        known = state.capacity.nodes.get(node.name)
        if known is not None and known.peak > node.gpus and not known.leases:
            commands.append(cmd.RemoveNode(node=node.name))  # declared smaller: not a loss, and nobody is hurt
        said = {} if known is None else {"cordoned": known.node.cordoned, "fenced": known.node.fenced}
        commands.append(cmd.SetNode(node=replace(node, **said)))
    return commands
