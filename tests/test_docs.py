"""Every command in the documentation is run, in the order in which it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench.trace import traces

from fairlease.cli.kubectl import cli as kubectl
from fairlease.cli.main import cli
from fairlease.model import rules
from fairlease.model.lease import Role

ROOT = Path(__file__).parent.parent
GUIDES = [
    "docs/user-guide/cofunded-runs.md",
    "docs/user-guide/quickstart.md",
    "docs/user-guide/simulator.md",
    "docs/user-guide/reservations.md",
    "docs/user-guide/forecasts.md",
    "docs/user-guide/traces.md",
    "docs/user-guide/spares-and-fill.md",
    "docs/user-guide/elastic-runs.md",
    "docs/operator-guide/one-machine.md",
    "docs/operator-guide/notifications.md",
]
CLUSTER_GUIDES = ["docs/user-guide/quickstart-kubernetes.md", "docs/operator-guide/kubernetes.md"]
"""Those that need an API server: tests/kube/test_cluster_docs_alone.py runs them."""
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_guide_is_in_the_list_of_those_that_are_run() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("user-guide", "operator-guide")
        for path in (ROOT / "docs" / folder).glob("*.md")
    }
    assert found == {*GUIDES, *CLUSTER_GUIDES}, "add the new guide to one of the lists, so that its commands are run"


@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_of_a_guide_does_what_it_says(guide: str, tmp_path: Path) -> None:
    script = "\n".join(BLOCK.findall((ROOT / guide).read_text()))
    if "FAIRLEASE_TRACES" in script and not traces().is_dir():
        pytest.skip(f"no public traces here: {traces()} is missing; FAIRLEASE_TRACES names their folder")
    home = tmp_path / "home"
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FAIRLEASE_HOME": str(home),
        "FAIRLEASE_METRICS_PORT": "0",
        "FAIRLEASE_TRACES": str(traces().absolute()),
        "FAIRLEASE_EXAMPLES": str(ROOT / "docs/examples"),
    }
    stop = ["fairlease", "down", "--end"]
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    finally:
        subprocess.run(stop, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"{guide}:\n{done.stdout}\n{done.stderr}"


def test_every_link_between_documents_leads_somewhere() -> None:
    link = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
    documents = [*sorted(ROOT.glob("*.md")), ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    links = [(path, target) for path in documents for target in link.findall(path.read_text())]
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path, target in links
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_every_page_can_be_reached_from_the_readme() -> None:
    link = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")
    reached, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page not in reached:
            reached.add(page)
            todo += [page.parent / target for target in link.findall(page.read_text())]
    lost = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page not in reached]
    assert not lost, f"nobody finds {', '.join(lost)}"


def test_every_verb_that_the_readme_names_is_there() -> None:
    readme = (ROOT / "README.md").read_text()
    local = set(re.findall(r"\bfairlease ([a-z][a-z-]+)", readme))
    cluster = set(re.findall(r"\bkubectl runs ([a-z][a-z-]+)", readme))
    assert {"plan", "audit"} <= local & cluster
    assert local - set(cli.verbs) == set()
    assert cluster - set(kubectl.verbs) == set()


def test_the_page_on_leases_names_every_role_and_reason() -> None:
    page = (ROOT / "docs/concepts/leases.md").read_text()
    cells = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    told = {name.strip(): set(re.findall(r"[A-Z]\w+", words)) for _, name, words, _ in cells}
    assert told["`slice.role`"] == {role.value for role in Role}
    assert told["`reason`"] == {reason.value for reason in rules.OPENING}
    assert told["`status.closureReason`"] == {reason.value for reason in rules.CLOSING} | {"RandomPreempt"}


def test_the_tour_names_files_that_are_there_and_all_of_the_engine() -> None:
    tour = (ROOT / "docs/design/architecture.md").read_text()
    named = {name.rpartition("/")[2] for name in re.findall(r"`([\w/]+\.py)`", tour)}
    there = {path.name for path in (ROOT / "src").rglob("*.py")}
    assert named - there == set()
    engine = {path.name for path in (ROOT / "src/fairlease/engine").rglob("*.py")} - {"__init__.py"}
    assert engine - named == set(), "a newcomer does not find these"
