"""What answers look like: golden tables for people, and for programs exactly what the daemon said."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Ask
from tests.cli.fake import FakeDaemon, RefusalError, ahead, run_row, status_of

from fairlease.cli.failure import printable
from fairlease.cli.render.output import age, bar, span, table
from fairlease.cli.verbs.leases import ranges

READS = {
    "status": ("status",),
    "list": ("list",),
    "show": ("show", "train"),
    "explain": ("explain", "eval"),
    "cover": ("cover", "--explain", "eval"),
    "who-pays": ("who-pays", "train"),
    "leases": ("leases",),
    "nodes": ("nodes",),
    "notices": ("notices",),
    "budgets list": ("budgets", "list"),
    "budgets usage": ("budgets", "usage"),
    "audit": ("audit",),
    "reservations": ("reservations", "--all"),
    "outcomes": ("outcomes",),
    "one outcome": ("outcomes", "outcome-1"),
    "lottery verify": ("lottery", "verify", "outcome-1"),
    "resolve": ("resolve", "--scope", "flavor=H100-80GB,region=us-west", "--gpus", "8", "--dry-run"),
}


@pytest.mark.parametrize("style", ["table", "wide"])
@pytest.mark.parametrize("read", READS)
def test_a_read_command_prints_its_golden_table(
    fake: FakeDaemon, ask: Ask, snapshot: SnapshotAssertion, read: str, style: str
) -> None:
    result = ask(*READS[read], "-o", style)
    times = {value: "<TIME>" for _, value in _times(fake.answers)}
    assert "Traceback" not in result.output
    text = result.stdout
    for value, name in times.items():
        text = text.replace(value, name)
    assert text == snapshot


def _times(value: object) -> list[tuple[str, str]]:
    if callable(value):
        ended = [("submittedAt", status_of("Failed")[name]) for name in ("submittedAt", "startedAt", "endedAt")]
        return [*ended, *[("earliestStart", ahead(hours)) for hours in (10, 20, 30)]]
    if isinstance(value, dict):
        own = [(name, each) for name, each in value.items() if isinstance(each, str) and each.endswith("Z")]
        return own + [pair for each in value.values() for pair in _times(each)]
    return [pair for each in value for pair in _times(each)] if isinstance(value, list) else []


@pytest.mark.parametrize("read", READS)
def test_json_and_yaml_say_the_same(fake: FakeDaemon, ask: Ask, read: str) -> None:
    assert fake.path.exists()
    as_json = json.loads(ask(*READS[read], "-o", "json").stdout)
    assert as_json == yaml.safe_load(ask(*READS[read], "-o", "yaml").stdout)
    assert as_json, "there is something to compare"


def test_json_is_what_the_daemon_said(fake: FakeDaemon, ask: Ask) -> None:
    assert json.loads(ask("list", "-o", "json").stdout) == fake.answers["list"]
    assert json.loads(ask("status", "-o", "json").stdout) == fake.answers["status"]


def test_a_plan_tells_what_it_costs_and_who_pays(
    fake: FakeDaemon, ask: Ask, run_file: Path, snapshot: SnapshotAssertion
) -> None:
    result = ask("plan", "-f", str(run_file))
    assert result.exit_code == 1, "one of the two would not start"
    assert result.stdout.replace(ahead(30), "<TIME>").replace(ahead(10), "<TIME>") == snapshot
    assert [sent["object"]["metadata"]["name"] for sent in fake.sent("plan")] == ["small", "large"]


def test_a_plan_that_starts_exits_with_nothing_wrong(
    fake: FakeDaemon, ask: Ask, tmp_path: Path, run_file: Path
) -> None:
    one = tmp_path / "one.yaml"
    one.write_text(run_file.read_text().split("---")[0])
    assert ask("plan", "-f", str(one)).exit_code == 0
    assert not fake.sent("submit")


def test_all_namespaces_get_a_column_of_their_own(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["list"] = {"runs": [run_row("train", status_of("Running"), namespace="lab")]}
    heading, line = ask("list", "-A").stdout.splitlines()
    assert heading.split()[:2] == ["NAMESPACE", "NAME"]
    assert line.split()[:2] == ["lab", "train"]
    assert fake.sent("list") == [{"all": True, "limit": 100}]


def test_a_namespace_is_part_of_every_name(fake: FakeDaemon, ask: Ask) -> None:
    ask("explain", "-n", "lab", "eval")
    ask("explain", "-n", "lab", "other/eval")
    assert [sent["run"] for sent in fake.sent("explain")] == ["lab/eval", "other/eval"]


def test_nothing_to_list_leaves_a_pipe_empty(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["list"] = {"runs": []}
    result = ask("list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no runs\n")


def test_leases_are_asked_for_by_every_filter(fake: FakeDaemon, ask: Ask) -> None:
    given = ("--run=r", "--node=n", "--owner=o", "--budget=b", "--envelope=e", "--open", "--limit=3")
    assert ask("leases", *given, "--since=2026-01-05T00:00:00Z").exit_code == 0
    assert fake.sent("leases") == [
        {
            "run": "default/r",
            "node": "n",
            "owner": "o",
            "budget": "default/b",
            "envelope": "e",
            "open": True,
            "since": "2026-01-05T00:00:00Z",
            "limit": 3,
        }
    ]


def test_a_time_that_is_none_is_refused_with_an_example(fake: FakeDaemon, ask: Ask) -> None:
    result = ask("leases", "--since", "yesterday")
    assert result.exit_code == 2
    assert "yesterday" in result.stderr
    assert "2026-01-05T00:00:00Z" in result.stderr
    assert not fake.asked


def test_a_failed_audit_is_the_answer_no(fake: FakeDaemon, ask: Ask) -> None:
    assert ask("audit").exit_code == 1
    fake.answers["audit"] |= {"ok": True, "checks": {"chain": True}, "findings": []}
    assert ask("audit").exit_code == 0


def test_names_cannot_command_the_terminal(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["list"] = {"runs": [run_row("x", status_of("Pending", "NoRoom", "\x1b]0;owned\x07"))]}
    assert "\x1b" not in ask("list", "-o", "wide").stdout

    def refuse(_: dict[str, Any]) -> None:
        raise RefusalError("NotFound", "no run \x1b[2J", 1)

    fake.answers["show"] = refuse
    assert "\x1b" not in ask("show", "x").stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (7200, "120m"),
        (4 * 3600 + 60, "4h1m"),
        (30 * 3600, "30h"),
        (76 * 3600, "3d4h"),
        (200 * 86400, "200d"),
    ],
)
def test_ages_read_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert span(seconds * 1000) == text


def test_an_age_counts_from_its_instant() -> None:
    assert age("2026-01-05T00:00:00Z", 1767571200_000 + 45_000) == "45s"
    assert age(None) == "-"


def test_slots_are_written_as_ranges() -> None:
    assert ranges([7, 0, 1, 2, 5]) == "0-2,5,7"
    assert ranges([]) == "-"


@pytest.mark.parametrize(
    ("used", "whole", "text"),
    [(0, 8, "[....]"), (1, 800, "[#...]"), (8, 8, "[####]"), (9, 8, "[####]"), (0, 0, "[....]")],
)
def test_a_bar_shows_that_something_is_used(used: float, whole: float, text: str) -> None:
    assert bar(used, whole, cells=4) == text


def test_a_table_is_cut_at_the_edge_of_the_terminal() -> None:
    rows = [("a", "b" * 50)]
    assert [len(line) for line in table(("X", "Y"), rows, width=20)] == [5, 20]
    assert [len(line) for line in table(("X", "Y"), rows)] == [5, 54]


def test_text_is_shown_without_what_terminals_obey() -> None:
    assert printable("a\x1b[2Jb") == "a�[2Jb"
