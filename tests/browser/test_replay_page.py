"""The page of a replay, as a browser draws it: it stands alone, everything on it can be read, and it says what the report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from tests.browser.chromium import Chromium
from tests.sim.traces import helios, philly, public, quotas

from fairlease.cli.main import cli
from fairlease.replay.page import length

DAY_S = 86_400
HOSTILE = "<img src=x onerror=console.error(1)>&amp;'\".csv"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"dark": True},
    "wide": {"width": 1900},
    "narrow": {"width": 500},
    "phone": {"width": 360, "height": 740, "zoom": 2},
}


class Drawn(NamedTuple):
    """A page, and the JSON of the same replay."""

    path: Path
    told: dict[str, Any]


def _replay(folder: Path, trace: Path, *options: str) -> Drawn:
    page = folder / "page.html"
    given = ("simulate", "--trace", str(trace), *options, "--html", str(page), "-o", "json")
    result = CliRunner().invoke(cli, given, prog_name="fairlease")
    assert result.exit_code == 0, result.stderr
    return Drawn(page, json.loads(result.stdout))


def _small(folder: Path) -> Drawn:
    jobs = [(0, "a", 8, 3600), (60, "b", 8, 600), (120, "b", 72, 1200), (180, "c", 12, 60), (7200, "a", 1, 1)]
    trace = philly(folder, jobs)
    return _replay(folder, trace, "--format", "philly", "--nodes", "9x8", "--against", "reservations=false", "--audit")


def _crowded(folder: Path) -> Drawn:
    """Many owners with long names, two years, wide runs; one never fits."""
    jobs = [
        (number * DAY_S * 2, f"a-team-with-a-long-name-{number % 12}", 8 * (1 + number % 10), 5 * DAY_S)
        for number in range(360)
    ]
    trace = philly(folder, [*jobs, (720 * DAY_S, "giants", 4096, 60)])
    return _replay(folder, trace, "--format", "philly", "--nodes", "20x8", "--forecasts", "3")


def _hostile(folder: Path) -> Drawn:
    """The only text of others that comes onto the page as it is: names of files. A quota falls, and a run is cut."""
    jobs = ("1,ann,vcA,0,8,1,172800,COMPLETED", "2,ann,vcA,1,8,1,172800,COMPLETED", "3,bob,vcB,90000,8,1,3600,FAILED")
    days = (
        "vcA,2020-09-01,2020-09-01,16",
        "vcA,2020-09-02,2020-09-30,8",
        "vcB,2020-09-01,2020-09-01,0",
        "vcB,2020-09-02,2020-09-30,8",
    )
    money = quotas(folder, *(f"V,{day}" for day in days)).rename(folder / "<b>.csv")
    trace = helios(folder, *jobs).rename(folder / HOSTILE)
    return _replay(folder, trace, "--format", "helios", "--nodes", "2x8", "--budgets", str(money))


def _nobody(folder: Path) -> Drawn:
    return _replay(folder, philly(folder, [(0, "a", 72, 1)]), "--format", "philly", "--nodes", "1x8")


def _calm(folder: Path) -> Drawn:
    return _replay(folder, philly(folder, [(0, "a", 8, 20), (9, "b", 72, 60)]), "--format", "philly", "--nodes", "99x8")


def _lengthy(folder: Path) -> Drawn:
    """Names without a place to break them: of owners, of a policy's file, of what it is compared with."""
    policy = folder / f"{'a_policy_in_a_file_with_a_long_name_' * 3}.yaml"
    policy.write_text("minRuntime: 1m\n")
    jobs = [(600 * number, f"{'team_without_a_break_' * 3}{number % 3}", 8, 3600) for number in range(12)]
    more = ("--format", "philly", "--nodes", "1x8", "--config", str(policy))
    against = ("minRuntime=2m", "notice=20m", "reservations=false", "growCooldown=90s")
    return _replay(folder, philly(folder, jobs), *more, *(word for each in against for word in ("--against", each)))


def _real(folder: Path) -> Drawn:
    trace, money = public("helios_venus_2vc_sept2020_jobs.csv"), public("helios_vc_quota_runs.csv")
    more = ("--format", "helios", "--nodes", "22x8", "--budgets", str(money), "--cluster", "Venus")
    return _replay(folder, trace, *more)


PAGES = {
    "small": (_small, {"waits", "busy", "queue", "large"}),
    "crowded": (_crowded, {"waits", "busy", "queue", "large"}),
    "hostile": (_hostile, {"busy", "queue"}),
    "nobody": (_nobody, set[str]()),
    "calm": (_calm, {"busy", "large"}),
    "lengthy": (_lengthy, {"waits", "busy", "queue"}),
    "helios": (_real, {"waits", "busy", "queue", "large"}),
}


@pytest.fixture(scope="module", params=PAGES)
def which(request: pytest.FixtureRequest) -> str:
    """The page of this test."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def drawn(which: str, tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """It, made by the command."""
    return PAGES[which][0](tmp_path_factory.mktemp(which))


@pytest.mark.parametrize("look", LOOKS)
def test_a_page_asks_nothing_of_anybody_and_raises_no_complaint(chromium: Chromium, drawn: Drawn, look: str) -> None:
    chromium.look(**LOOKS[look])
    chromium.open(drawn.path)
    assert chromium.requests() == [drawn.path.as_uri()]
    assert chromium.complaints() == []


MARKS = """[...document.querySelectorAll('.plot')].map(plot => [
  plot.querySelector('svg').getAttribute('aria-labelledby').split('-')[0],
  [...plot.querySelectorAll('path,circle')].filter(each => each.getBBox().width > 0 && each.getTotalLength() > 0).length,
  plot.innerHTML.includes('NaN') || plot.innerHTML.includes('inf')])"""


def test_every_plot_has_marks_and_there_is_none_where_nothing_is_to_be_shown(
    chromium: Chromium, drawn: Drawn, which: str
) -> None:
    chromium.look()
    chromium.open(drawn.path)
    plots = chromium.tell(MARKS)
    assert {name for name, _, _ in plots} == PAGES[which][1]
    assert all(marks > 0 and not broken for _, marks, broken in plots)


TEXTS = """[...document.querySelectorAll('.plot svg')].flatMap(svg => {
  const found = [], frame = svg.getBoundingClientRect();
  const all = [...svg.querySelectorAll('text')].map(each => [each.textContent, each.getBoundingClientRect()]);
  const inside = box => box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom;
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 1 < b.bottom - 1 && b.top + 1 < a.bottom - 1;
  for (const [said, box] of all) {
    if (!inside(box)) found.push('cut: ' + said);
    if (box.height < 9) found.push('tiny: ' + said);
    for (const [other, its] of all) if (its !== box && meet(box, its)) found.push('overlap: ' + said + ' / ' + other);
  }
  return found;
})"""


@pytest.mark.parametrize("look", LOOKS)
def test_no_label_of_a_plot_is_cut_tiny_or_lies_on_another(chromium: Chromium, drawn: Drawn, look: str) -> None:
    chromium.look(**LOOKS[look])
    chromium.open(drawn.path)
    assert chromium.tell(TEXTS) == []


OUTSIDE = """(() => {
  const wide = document.documentElement.clientWidth + 1;  // not innerWidth: that grows with what lies outside
  const found = [...document.querySelectorAll('body *')].filter(each => !each.closest('.scroll,.plot'));
  const names = [...document.querySelectorAll('tbody th')].filter(each => each.getBoundingClientRect().width > 0.6 * wide);
  return [...found.filter(each => each.getBoundingClientRect().right > wide), ...names].map(
    each => each.tagName + ' ' + each.textContent.slice(0, 40));
})()"""
"""What is not inside the window, and names of rows that stand before their figures when those are scrolled."""


@pytest.mark.parametrize("look", LOOKS)
def test_only_tables_and_plots_scroll_sideways(chromium: Chromium, drawn: Drawn, look: str) -> None:
    chromium.look(**LOOKS[look])
    chromium.open(drawn.path)
    assert chromium.tell(OUTSIDE) == []


CONTRAST = """(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = colour => {
    const [red, green, blue] = parts(colour).map(value => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  for (const each of document.querySelectorAll('h1,h2,p,dt,dd,th,td,li,footer,text,.line')) {
    const style = getComputedStyle(each), line = each.matches('.line');
    const ink = line ? style.stroke : each.matches('text') ? style.fill : style.color;
    const [more, less] = [light(ink), light(behind(each))].sort((a, b) => b - a);
    if (more / less < (line ? 3 : 4.5)) found.push(each.tagName + ' ' + each.textContent.slice(0, 30) + ' ' + more / less);
  }
  return found;
})()"""


@pytest.mark.parametrize("look", ["light", "dark"])
def test_text_and_lines_stand_out_from_what_lies_behind_them(chromium: Chromium, drawn: Drawn, look: str) -> None:
    """4.5 to 1 for text and 3 to 1 for lines, as WCAG 2 AA asks."""
    chromium.look(**LOOKS[look])
    chromium.open(drawn.path)
    assert chromium.tell(CONTRAST) == []


def test_the_page_says_what_the_report_says(chromium: Chromium, drawn: Drawn) -> None:
    chromium.look()
    chromium.open(drawn.path)
    said, told = chromium.tell("document.body.innerText"), drawn.told
    expected = [told["head"]["hash"], *told["owners"], *told["sizes"], *told["settings"].values()]
    expected += [told["trace"][name] for name in ("from", "to", "end")]
    expected += [f"{told['utilisation'][name]:.1%}" for name in ("whileAsked", "whole")]
    rows = [told["waits"], *told["owners"].values(), *told["sizes"].values()]
    expected += [
        length(row["waitSeconds"][name]) for row in rows for name in ("mean", "p95") if row["waitSeconds"][name]
    ]
    expected += [f"{row['gpuHours']:,.0f}" for row in rows]
    expected += [reason for kind in ("ended", "waiting") for reason in told["runs"][kind]]
    expected += told["preemptions"]["byReason"]
    for row in [told["forecast"], *told["forecast"]["owners"].values()] if "forecast" in told else []:
        expected += [f"{row['insideP10P90']:.1%}", length(row["meanAbsoluteErrorSeconds"])]
    if "against" in told:
        waits = [told["against"]["waitMeanSecondsLarge"][when] for when in ("before", "after")]
        expected += [*told["policies"].values(), *(length(each) for each in waits if each is not None)]
        assert "Against another policy" in said
    if "audit" in told:
        assert "audited, and passed" in said
    assert [each for each in expected if each not in said] == []


def test_a_file_whose_name_is_html_is_shown_by_its_name(chromium: Chromium, tmp_path: Path) -> None:
    page = _hostile(tmp_path).path
    chromium.look()
    chromium.open(page)
    assert chromium.tell("document.querySelector('h1').textContent") == HOSTILE
    assert chromium.tell("document.title") == f"Replay of {HOSTILE}"
    assert chromium.tell("document.images.length") == 0


def test_a_screen_reader_is_told_what_each_plot_and_table_shows(chromium: Chromium, tmp_path: Path) -> None:
    page = _small(tmp_path).path
    chromium.look()
    chromium.open(page)
    heard = chromium.heard()
    images = {name: more for role, name, more in heard if role == "image"}
    assert images == {
        "Share of runs started, by wait": "Half of all runs had started after 0s, 95% of them after 1h 17m, the last after 1h 17m.",
        "GPUs in use over time": "Between 0% and 100%; 23.3% on average until the last asking.",
        "Runs that waited over time": "At most 2 runs waited at once, 1.12 on average.",
        "Waits of runs over 64 GPUs": "1 run waited 58m on average, 58m at most.",
    }
    tables = [name for role, name, _ in heard if role == "table"]
    assert tables == [
        "Against another policy",
        "By owner",
        "By size",
        "Whether forecasts kept their word",
        "How runs ended",
    ]
    assert not [role for role, name, _ in heard if role in ("columnheader", "rowheader", "heading") and not name]


def test_it_prints_dark_on_white_even_for_who_reads_in_the_dark(chromium: Chromium, tmp_path: Path) -> None:
    page = _small(tmp_path).path
    chromium.look(dark=True, paper=True)
    chromium.open(page)
    assert chromium.tell("getComputedStyle(document.body).color") == "rgb(28, 30, 33)"
    assert chromium.tell("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    paper = tmp_path / "page.pdf"
    chromium.paper(paper)
    assert paper.read_bytes().count(b"/Type /Page\n") <= 4
