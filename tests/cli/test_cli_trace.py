"""`simulate --trace`: a table for people, JSON for programs, a page to keep, and errors that can be mended."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.cli.conftest import Ask
from tests.sim.traces import helios, philly, quotas, swf

JOBS = [(0, "a", 8, 3600), (60, "b", 8, 600), (120, "b", 72, 1200), (180, "c", 12, 60), (7200, "a", 1, 1)]


def replay(ask: Ask, path: Path, *more: str, form: str = "philly") -> dict[str, object]:
    result = ask("simulate", "--trace", str(path), "--format", form, *more, "-o", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_trace_is_told_as_a_table_by_owner_and_size(ask: Ask, tmp_path: Path) -> None:
    path = philly(tmp_path, JOBS)
    result = ask("simulate", "--trace", str(path), "--format", "philly", "--nodes", "9x8", "--audit")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^org:b +2 +", result.stdout, re.MULTILINE)
    assert re.search(r"^over 64 GPUs +1 +24 +0\.0% +58m +", result.stdout, re.MULTILINE)
    assert "9 nodes, 72 GPUs" in result.stdout
    assert re.search(r"^audit +passed$", result.stdout, re.MULTILINE)
    assert re.search(r"^head +\d+ [0-9a-f]{64}$", result.stdout, re.MULTILINE)


def test_the_same_trace_gives_the_same_json_each_time(ask: Ask, tmp_path: Path) -> None:
    path = philly(tmp_path, JOBS)
    first, second = (replay(ask, path, "--budgets", "fair") for _ in range(2))
    assert first == second
    assert first["trace"] == {
        "file": str(path),
        "format": "philly",
        "jobs": 5,
        "leftOut": 0,
        "from": "2017-10-09T00:00:00Z",
        "to": "2017-10-09T02:00:00Z",
        "end": "2017-10-09T02:00:01Z",
    }
    assert set(first) >= {
        "cluster",
        "runs",
        "waits",
        "owners",
        "sizes",
        "utilisation",
        "backfill",
        "preemptions",
        "series",
        "forecast",
    }
    assert "forecast" not in replay(ask, path, "--budgets", "fair", "--forecasts", "0")


def test_the_page_stands_alone_and_can_be_heard(ask: Ask, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    replay(ask, philly(tmp_path, JOBS), "--nodes", "9x8", "--html", str(page))
    text = page.read_text()
    elements = list(ET.fromstring(text).iter())  # noqa: S314 - it is our own page
    assert "script" not in {each.tag for each in elements}
    assert not [each for each in elements if {"src", "href", "onclick", "onload"} & each.attrib.keys()], (
        "nothing is loaded or run"
    )
    assert "http" not in text
    assert "url(" not in text
    charts = [each for each in elements if each.get("role") == "img"]
    names = {each.get("id"): "".join(each.itertext()) for each in elements if "id" in each.attrib}
    assert len(charts) == 4
    assert all(
        names[label]
        for chart in charts
        for label in (chart.attrib["aria-labelledby"], chart.attrib["aria-describedby"])
    )
    assert "prefers-color-scheme:dark" in text
    for owner in ("org:a", "org:b", "org:c"):
        assert f"<title>{owner}</title>" in text
    assert "waited 58m" in text


def test_a_page_of_a_trace_without_large_runs_says_so(ask: Ask, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    replay(ask, philly(tmp_path, JOBS[:2]), "--html", str(page))
    assert "No run in this trace asked for more than 64 GPUs" in page.read_text()


def test_budgets_of_a_file_pay_for_a_trace(ask: Ask, tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.yaml"
    budgets.write_text(
        "apiVersion: rq.davidlangworthy.io/v1\nkind: Budget\nmetadata: {name: a}\nspec:\n  owner: org:a\n  envelopes:\n"
        "  - {name: main, flavor: GPU, selector: {region: trace}, concurrency: 8}\n"
    )
    found = replay(ask, philly(tmp_path, JOBS), "--nodes", "9x8", "--budgets", str(budgets))
    assert found["runs"] == {"asked": 5, "ended": {"Completed": 2}, "waiting": {"NoEnvelope": 3}}


def test_quotas_that_change_by_day_are_budgets(ask: Ask, tmp_path: Path) -> None:
    path = helios(tmp_path, "1,ann,vcA,0,8,1,60,COMPLETED", "2,ann,vcA,0,8,1,60,COMPLETED")
    money = quotas(tmp_path, "Venus,vcA,2020-08-01,2020-09-01,8", "Venus,vcA,2020-09-02,2020-09-30,16")
    late = ("--start", "2020-09-02T00:00:00Z")
    waits = [
        replay(ask, path, "--nodes", "2x8", "--budgets", str(money), *start, form="helios")["queue"]["runsMax"]  # type: ignore[index]  # it is JSON, read again
        for start in ((), late)
    ]
    assert waits == [1, 0]


def test_a_limit_and_settings_of_the_policy_are_taken(ask: Ask, tmp_path: Path) -> None:
    row = "{0} {0} 5 3600 8 -1 -1 8 1800 -1 1 3 74 -1 1 -1 -1 -1"
    path = swf(tmp_path, *(row.format(number) for number in range(1, 9)))
    policy = tmp_path / "policy.yaml"
    policy.write_text("notice: never\n")
    options = ("--limit", "3", "--nodes", "1x8", "--config", str(policy), "--config", "min_runtime=30m")
    found = replay(ask, path, *options, form="swf")
    assert found["runs"] == {"asked": 3, "ended": {"TimeLimit": 3}, "waiting": {}}
    free = replay(ask, path, *options, "--limits", "none", form="swf")
    assert free["runs"] == {"asked": 3, "ended": {"Completed": 3}, "waiting": {}}


def test_a_replay_stands_beside_one_under_another_policy(ask: Ask, tmp_path: Path) -> None:
    early = [(0, "a", 8, 600 * number) for number in range(1, 10)]
    stream = [(300 * number, "b", 8, 3_000) for number in range(1, 40)]
    path = philly(tmp_path, [*early, (60, "c", 72, 600), *stream])
    options = ("--nodes", "9x8", "--against", "reservations=false")
    found = replay(ask, path, *options)
    beside = found["against"]
    assert isinstance(beside, dict)
    assert found["policies"] == {"before": "reservations=false", "after": "default policy"}
    assert beside["waitMeanSecondsLarge"] == {"before": 17_340, "after": 5_340, "change": -12_000}
    assert beside["utilisation"]["change"] < 0
    told = ask("simulate", "--trace", str(path), "--format", "philly", *options).stdout
    rows = [re.split(r" {2,}", line) for line in told.splitlines()]
    assert ["AGAINST", "reservations=false", "default policy", "CHANGE"] in rows
    assert ["mean wait of runs over 64 GPUs", "4h49m", "89m", "-3h20m"] in rows
    (used,) = [row for row in rows if row[0] == "utilisation" and len(row) == 4]
    assert re.fullmatch(r"-[0-9.]+ points", used[3])
    named = ask("simulate", "--trace", str(path), "--format", "philly", *options, "--config", "notice=10m").stdout
    assert ["AGAINST", "reservations=false", "notice=10m", "CHANGE"] in [
        re.split(r" {2,}", line) for line in named.splitlines()
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nodes", "many"), "'many' is no pool of nodes: write 64x8"),
        (("--budgets", "nowhere.yaml"), "'nowhere.yaml' is no file; expected one, fair, family"),
        (("--limits", "soon"), "none of trace, none, exact and factor:F"),
        (("--start", "yesterday"), "not an RFC 3339 time"),
        (("--config", "notise=1m"), "notise"),
        (("--config", "minRuntime=soon"), "minRuntime"),
        (("--format", "csv"), "Invalid value for '--format'"),
        (("--random", "7"), "give one of"),
        (("--html", "nowhere/report.html"), "cannot be written"),
        (("--nodes", ""), "'' is no pool of nodes"),
        (("--budgets", ""), "'' is no file"),
        (("--limits", ""), "'' is none of trace, none, exact and factor:F"),
        (("--limits", "factor:soon"), "'factor:soon' is none of trace"),
        (("--cluster", "Venus"), "--cluster Venus chooses among the quotas of a CSV, and 'one' is none"),
        (("--config", "minRuntime="), "--config: minRuntime= has no value"),
        (("--against", "notice="), "--against: notice= has no value"),
        (("--against", "notise=1m"), "--against:1: notise"),
        (("--until", "1h"), "--until belongs to a scenario FILE"),
        (("--steps", "5"), "--steps belongs to --random SEED"),
    ],
)
def test_an_option_that_makes_no_sense_is_told_with_its_remedy(
    ask: Ask, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    path = philly(tmp_path, JOBS)
    result = ask("simulate", "--trace", str(path), "--format", "philly", *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_trace_of_another_format_is_told_by_its_name(ask: Ask, tmp_path: Path) -> None:
    made = {
        "philly": philly(tmp_path, JOBS),
        "helios": helios(tmp_path, "1,ann,vcA,0,8,1,60,COMPLETED"),
        "swf": swf(tmp_path, "1 0 5 3600 8 -1 -1 8 1800 -1 1 3 74 -1 1 -1 -1 -1"),
    }
    for form, path in made.items():
        for other in made.keys() - {form}:
            result = ask("simulate", "--trace", str(path), "--format", other)
            assert result.exit_code == 2
            assert f"it looks like --format {form}" in result.stderr


def test_a_bad_line_is_told_and_nothing_is_replayed(ask: Ask, tmp_path: Path) -> None:
    path = helios(tmp_path, "1,ann,vcA,0,8,1,60,COMPLETED", "2,ann,vcA,0,eight,1,60,COMPLETED")
    result = ask("simulate", "--trace", str(path), "--format", "helios")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f'{path}:3: gpus: "eight": expected a whole number' in result.stderr


def test_a_page_is_refused_before_the_replay_where_it_cannot_be_written(ask: Ask, tmp_path: Path) -> None:
    path = philly(tmp_path, JOBS)
    before = path.read_bytes()
    common = ("simulate", "--trace", str(path), "--format", "philly", "--html")
    folder = ask(*common, str(tmp_path))
    assert folder.exit_code == 2
    assert "it is a folder" in folder.stderr
    itself = ask(*common, str(path))
    assert itself.exit_code == 2
    assert "is what is replayed, and would be written over" in itself.stderr
    assert path.read_bytes() == before


def test_in_a_long_trace_not_all_that_wait_are_forecast_unless_it_is_said(ask: Ask, tmp_path: Path) -> None:
    path = philly(tmp_path, [(number, "a", 8, 1) for number in range(8_001)])
    told = replay(ask, path, "--nodes", "9x8")
    assert told["settings"]["Forecasts"] == "1 in 2 that waits"  # type: ignore[index]  # it is JSON, read again
    told = replay(ask, philly(tmp_path, JOBS), "--forecasts", "0")
    assert told["settings"]["Forecasts"] == "none"  # type: ignore[index]  # it is JSON, read again


def test_where_nobody_started_no_wait_is_told(ask: Ask, tmp_path: Path) -> None:
    path = philly(tmp_path, [(0, "a", 72, 60)])
    told = replay(ask, path, "--nodes", "1x8", "--against", "reservations=false")
    assert told["waits"]["waitSeconds"] == dict.fromkeys(("mean", "median", "p95", "max"))  # type: ignore[index]  # it is JSON
    assert told["against"]["waitMeanSeconds"] == {"before": None, "after": None, "change": None}  # type: ignore[index]  # as above
    table = ask("simulate", "--trace", str(path), "--format", "philly", "--nodes", "1x8").stdout
    assert re.search(r"^org:a +1 +0 +- +- +- +- +- +0 +1$", table, re.MULTILINE)
    assert "1 job from" in table
    assert "1 node, 8 GPUs" in table


def test_options_of_a_trace_need_a_trace(ask: Ask) -> None:
    result = ask("simulate", "--random", "1", "--nodes", "4x8")
    assert result.exit_code == 2
    assert "--nodes belongs to --trace FILE" in result.stderr
    assert ask("simulate").exit_code == 2
    missing = ask("simulate", "--trace", "x.swf")
    assert "--trace needs --format" in missing.stderr


def test_a_replay_is_read_like_any_answer_as_a_table_or_a_wider_one(ask: Ask, tmp_path: Path) -> None:
    common = ("simulate", "--trace", str(philly(tmp_path, JOBS)), "--format", "philly", "--nodes", "9x8")
    plain, text, table, wide = (
        ask(*common, *(("-o", each) if each else ())).stdout for each in ("", "text", "table", "wide")
    )
    assert plain == text == table
    assert re.search(r"^OWNER .*NEVER STARTED$", table, re.MULTILINE)
    assert re.search(r"^OWNER .*NEVER STARTED +LONGEST WAIT +GPU-HOURS LOST$", wide, re.MULTILINE)
    assert re.search(r"^over 64 GPUs .* 58m +0$", wide, re.MULTILINE)
    film = tmp_path / "film.yaml"
    film.write_text("apiVersion: rq.davidlangworthy.io/v1\nkind: Scenario\nmetadata: {name: f}\nspec: {until: 1m}\n")
    for told in (("--random", "1", "--steps", "5"), (str(film),)):
        answers = {ask("simulate", *told, *more).stdout for more in ((), ("-o", "table"), ("-o", "wide"))}
        assert len(answers) == 1
        assert "".join(answers)


def test_a_policy_that_eats_its_own_work_is_told_so(ask: Ask, tmp_path: Path) -> None:
    path = philly(tmp_path, [(60 * number, f"vc{number}", 8, 7_200) for number in range(2)])
    page = tmp_path / "report.html"
    common = ("--nodes", "1x8", "--forecasts", "0", "--config", "notice=1h")
    found = replay(ask, path, *common, "--html", str(page))["preemptions"]
    assert isinstance(found, dict)
    assert (found["total"], found["runs"], found["mostOfOneRun"]) == (1, 1, 1)
    done = 2 * 8 * 2  # GPU-hours of work that count
    assert found["lostShare"] == round(found["gpuHoursLost"] / (found["gpuHoursLost"] + done), 4)
    assert found["lostShare"] > 0.1
    told = ask("simulate", "--trace", str(path), "--format", "philly", *common, "--against", "notice=never").stdout
    hours, share = f"{found['gpuHoursLost']:,.1f} GPU-hours lost", f"{found['lostShare']:.1%} of those used"
    assert f"preemptions   {found['total']}, {hours}, {share}" in told
    plain = f"{found['lostShare']:.0%} of the GPU-hours used were lost to cuts: 1 run was cut, once, and"
    assert f"thrashing     {plain}" in told
    assert "notice=never cuts no funded work" in told
    assert "runs that did not end" not in told
    lost = f"{found['gpuHoursLost']:,.0f}"
    assert re.search(rf"^GPU-hours lost to cuts +0 +{lost} +\+{lost}$", told, re.MULTILINE)
    assert plain in page.read_text()
    calm = ask("simulate", "--trace", str(path), "--format", "philly", "--nodes", "1x8").stdout
    assert "preemptions   0, 0.0 GPU-hours lost, 0.0% of those used" in calm
    assert "thrashing" not in calm


def test_a_replay_in_which_runs_displace_one_another_for_ever_is_given_up_and_says_so(ask: Ask, tmp_path: Path) -> None:
    path = philly(tmp_path, [(60 * number, f"vc{number}", 8, 7_200) for number in range(3)])
    page = tmp_path / "report.html"
    common = ("--nodes", "1x8", "--forecasts", "0", "--config", "notice=15m", "--html", str(page))
    found = replay(ask, path, *common)
    assert found["runs"] == {"asked": 3, "ended": {}, "waiting": {"Running": 1, "Reserved": 2}}
    assert "no run ended" in str(found["stopped"])
    assert str(found["stopped"]) in page.read_text()
    told = ask("simulate", "--trace", str(path), "--format", "philly", *common, "--against", "notice=never").stdout
    assert f"stopped       {found['stopped']}" in told
    assert re.search(r"^runs that did not end +0 +3 +\+3$", told, re.MULTILINE)
