"""The configuration file: what it says, what it leaves out, and how its mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlease.local.daemon.config import declared_nodes, default_home, load_settings, read_settings
from fairlease.local.daemon.gpus import Device, Discovery
from fairlease.local.daemon.machine import hardware_of
from fairlease.model.amount import MINUTE, SECOND
from fairlease.model.document import Invalid

WHOLE = """
notice: never
commitQuantum: 5m
labels: {flavor: nvidia.com/gpu.product}
flavor: H100-80GB
nodes:
- {name: a, gpus: 8, domain: rail-1, rack: r1, labels: {team: ai}}
- {name: b, gpus: 4, flavor: L4, region: eu}
users: {alice: [org:ai:rai], "@ml": [org:ai]}
admins: [root, "@wheel"]
grace: 30s
metricsPort: 9100
home: /srv/fairlease
"""


def test_a_whole_configuration_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(WHOLE)
    settings = load_settings(path)
    assert settings.home == Path("/srv/fairlease")
    assert (settings.policy.notice, settings.policy.commit_quantum) == (None, 5 * MINUTE)
    assert settings.machine.grace == 30 * SECOND
    assert settings.machine.users["@ml"] == ("org:ai",)
    first, second = declared_nodes(settings)
    assert first.labels == {
        "team": "ai",
        "region": "local",
        "cluster": "local",
        "fabric.domain": "rail-1",
        "rack": "r1",
        "nvidia.com/gpu.product": "H100-80GB",
    }
    assert (second.labels["region"], second.labels["fabric.domain"], second.gpus) == ("eu", "b", 4)
    assert load_settings(path, home=tmp_path, gpus=2).machine.nodes == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("grace: 10", "config.yaml:1: grace: 10: expected a duration"),
        ("\ngrase: 10s", "config.yaml:2: grase: unknown field; did you mean grace?"),
        ("gpus: 0", "config.yaml:1: gpus: 0: expected 1 to 1024 GPUs"),
        ("notify: {webhook: 'file:///etc/passwd'}", "config.yaml:1: notify.webhook"),
        ("notify: {webhook: 'https://a b/'}", "config.yaml:1: notify.webhook"),
        ("notify: {signal: SIGKILL}", 'config.yaml:1: notify.signal: "SIGKILL": expected a signal that can be caught'),
        ("notify: {signal: USR1}", 'config.yaml:1: notify.signal: "USR1": expected a signal that can be caught'),
        ("notify: {command: [tell.sh]}", 'config.yaml:1: notify.command[0]: "tell.sh": expected an absolute path'),
        ("notify: {kinds: [RunCuts]}", "config.yaml:1: notify.kinds[0]"),
        ("notify: {webhok: 'http://x/'}", "config.yaml:1: notify.webhok: unknown field; did you mean webhook?"),
        ("beacon: {}", "config.yaml:1: beacon: expected a file or a command, one of the two"),
        ("beacon: {file: /b, command: [/bin/b]}", "config.yaml:1: beacon: expected a file or a command, one of the two"),
        ("beacon: {file: b}", 'config.yaml:1: beacon.file: "b": expected an absolute path'),
        ("metricsPort: 70000", "config.yaml:1: metricsPort: 70000: expected a port"),
        ("nodes: [{name: a, gpus: 8}]", "config.yaml:1: nodes[0].flavor: missing"),
        ("flavor: X\nnodes:\n- {name: a, gpus: 1}\n- {name: a, gpus: 1}", 'config.yaml:4: nodes[1].name: "a": another'),
        ("flavor: X\ngpus: 8\nnodes: [{name: a, gpus: 1}]", "config.yaml:2: gpus: 8: the nodes say"),
        ("users: {alice: ['org::ai']}", 'users.alice[0]: "org::ai": expected an owner'),
        ("users: {alice: org:ai}", 'users.alice: "org:ai": expected a list'),
        ("admins: ['']", "admins[0]"),
        ("a: b: c", "config.yaml:1: not YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_what_would_be_right(text: str, told: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_settings(text, "config.yaml")
    assert told in str(caught.value)


def test_an_empty_file_leaves_every_default() -> None:
    policy, machine = read_settings("# nothing yet\n", "config.yaml")
    assert (policy.notice, machine.grace, machine.nodes) == (15 * MINUTE, 10 * SECOND, ())


def test_the_command_lines_numbers_obey_the_files_rules() -> None:
    with pytest.raises(Invalid, match="1024"):
        load_settings(gpus=-1)


def test_the_home_follows_the_environment_then_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEASE_HOME", "/somewhere")
    assert default_home() == Path("/somewhere")
    monkeypatch.delenv("FAIRLEASE_HOME")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_home() == Path("/var/lib/fairlease")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert default_home() == Path.home() / ".local/state/fairlease"


def test_real_gpus_become_one_node_for_each_flavor() -> None:
    devices = [
        Device(index=index, flavor="H100-80GB" if index < 2 else "L4-24GB", uuid=f"GPU-{index}") for index in range(3)
    ]
    hardware = hardware_of(load_settings(home="/x"), Discovery(devices=tuple(devices)))
    assert [(node.name, node.gpus) for node in hardware.nodes] == [("local-h100-80gb", 2), ("local-l4-24gb", 1)]
    assert hardware.devices["local-l4-24gb"] == {0: "GPU-2"}


def test_declared_nodes_share_the_real_gpus_in_order(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("flavor: X\nnodes: [{name: a, gpus: 1}, {name: b, gpus: 2}]\n")
    devices = tuple(Device(index=index, flavor="X", uuid=f"GPU-{index}") for index in range(3))
    assert hardware_of(load_settings(path), Discovery(devices=devices)).devices == {
        "a": {0: "GPU-0"},
        "b": {0: "GPU-1", 1: "GPU-2"},
    }
    assert hardware_of(load_settings(path), Discovery(devices=devices[:2])).devices == {}
