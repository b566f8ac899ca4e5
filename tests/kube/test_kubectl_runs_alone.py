"""`kubectl runs` on a real API server with a real controller: as an administrator, as tenants of one namespace, as onlookers."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from tests.kube.plugin import Person, bind, environment, kubelet
from tests.kube.stage import EXIT, RUN_FOR, Team, eventually
from tests.kube.tenancy import path
from tests.model.tables import table
from tools.controlplane import Plane

SOON = {EXIT: "0", RUN_FOR: "1s"}


@pytest.fixture
def admin(cluster: Plane, team: Team) -> Person:
    """Who may everything; the context means the team's namespace."""
    person = Person(cluster, "admin", team.namespace)
    copy = cluster.folder / f"kubeconfig-admin-{team.namespace}"
    copy.write_text(person.kubeconfig.read_text().replace("namespace: default", f"namespace: {team.namespace}"))
    person.kubeconfig = copy
    return person


def tenant(cluster: Plane, team: Team, *roles: str, everywhere: str = "") -> Person:
    """Somebody new, with these roles in the team's namespace, or one everywhere."""
    name = f"{(roles or (everywhere,))[0]}-{team.namespace}"
    for role in roles:
        bind(cluster, name, role, team.namespace)
    if everywhere:
        bind(cluster, name, everywhere)
    return Person(cluster, name, team.namespace)


# --- the verbs -------------------------------------------------------------------------------------------------------------


def test_a_quote_says_who_would_pay_and_writes_nothing(admin: Person, team: Team) -> None:
    def everything() -> list[str]:
        found = [
            *team.listed("/apis/rq.davidlangworthy.io/v1/ledgerentries"),
            *team.listed(path("Run", team.namespace)),
        ]
        return [each["metadata"]["resourceVersion"] for each in found]

    before = everything()
    (plan,) = admin.asks("plan", "-f", admin.file(team, "quoted", gpus=4))["plans"]
    assert plan["starts"] is True
    assert [(each["budget"], each["gpus"]) for each in plan["payers"]] == [(f"{team.namespace}/money", 4)]
    (no,) = admin.asks("plan", "-f", admin.file(team, "too-wide", gpus=40), code=1)["plans"]
    assert (no["starts"], no["verdict"]) == (False, "NeverFits")
    assert everything() == before


def test_a_run_is_submitted_watched_explained_and_billed(admin: Person, team: Team) -> None:
    assert "submitted" in admin.sees("submit", "-f", admin.file(team, "train", gpus=2, marks=SOON))
    told = admin.sees("watch", "train", "--until-done")
    assert "Completed" in told.splitlines()[-1]
    (listed,) = admin.asks("list")["runs"]
    assert (listed["namespace"], listed["status"]["phase"]) == (team.namespace, "Completed")
    shown = admin.asks("show", "train")
    assert shown["spec"]["owner"] == team.owner
    story = admin.asks("explain", "train")["story"]
    assert [line["reason"] for line in story][:2] == ["Submitted", "Start"]
    (bill,) = admin.asks("who-pays", "train")["runs"]
    assert [each["class"] for each in bill["payers"]] == ["owned"]
    assert bill["gpuHours"] > 0
    leases = admin.asks("leases", "--run", "train", "--closed")["leases"]
    assert {lease["status"]["closureReason"] for lease in leases} == {"Completed"}
    assert admin.asks("leases", "--owner", "org")["leases"] == leases, "an owner stands for those below it"
    assert admin.asks("leases", "--owner", team.owner[:-1])["leases"] == [], "by whole names"
    assert f"{team.namespace},train," in admin.sees("export", "charges")


def test_what_waits_is_explained_envelope_by_envelope(admin: Person, team: Team) -> None:
    admin.sees("submit", "-f", admin.file(team, "huge", gpus=64))
    told = admin.asks("explain", "huge")
    assert told["verdict"] == "NeverFits"
    assert [visit["budget"] for visit in told["cover"]] == [f"{team.namespace}/money"]
    assert {visit["domain"] for visit in told["domains"]} == {f"d{team.flavor[1:]}-1"}


def test_budgets_tell_what_is_used_up_to_now(admin: Person, team: Team) -> None:
    admin.sees("submit", "-f", admin.file(team, "long", gpus=3))
    team.reaches("long", "Running")

    def used() -> float:
        (budget,) = admin.asks("budgets", "usage")["budgets"]
        assert budget["status"]["usage"][0]["ownedGPUs"] == 3
        return float(budget["status"]["usage"][0]["consumedGPUHours"])

    first = used()
    time.sleep(1)
    assert used() > first


def test_nodes_show_free_slots_of_the_whole_cluster(admin: Person, team: Team) -> None:
    admin.sees("submit", "-f", admin.file(team, "some", gpus=5))
    team.reaches("some", "Running")
    mine = [node for node in admin.asks("nodes")["nodes"] if node["flavor"] == team.flavor]
    assert sorted(len(node["free"]) for node in mine) == [3, 8]


def test_lists_can_be_of_all_namespaces_and_wide(admin: Person, team: Team, cluster: Plane) -> None:
    other = Team(cluster)
    other.submit("elsewhere", 1)
    admin.sees("submit", "-f", admin.file(team, "at-home"))
    other.reaches("elsewhere", "Running")
    team.reaches("at-home", "Running")
    wide = admin.sees("list", "-A", "-o", "wide")
    assert {"NAMESPACE", "DOMAIN"} <= set(wide.splitlines()[0].split())
    assert {team.namespace, other.namespace} <= {line.split()[0] for line in wide.splitlines()[1:]}
    assert [run["name"] for run in admin.asks("list")["runs"]] == [f"{team.namespace}/at-home"]
    assert [run["namespace"] for run in admin.asks("list", "-n", other.namespace)["runs"]] == [other.namespace]


def test_a_list_that_is_watched_tells_of_changes_as_they_come(admin: Person, team: Team) -> None:
    words = ["kubectl", "runs", "list", "-w", "-o", "json"]
    with subprocess.Popen(words, env=environment(admin.kubeconfig), stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            time.sleep(2)
            team.submit("later", 1, marks=SOON)
            phases = []
            for line in watching.stdout:
                phases.append(json.loads(line)["status"]["phase"])
                if phases[-1] == "Completed":
                    break
            assert "Running" in phases
        finally:
            watching.terminate()


def test_a_canceled_run_goes_with_its_pods_and_keeps_its_bill(admin: Person, team: Team) -> None:
    admin.sees("submit", "-f", admin.file(team, "wrong", gpus=2))
    team.reaches("wrong", "Running")
    assert "canceled" in admin.sees("cancel", "wrong")
    eventually(lambda: not team.run("wrong") and not team.pods())
    assert set(team.closures().values()) == {"Canceled"}
    assert admin.asks("who-pays", "wrong")["runs"][0]["gpuHours"] > 0
    assert admin.asks("explain", "wrong")["verdict"] == "Canceled"


def test_a_run_that_has_ended_is_not_canceled_but_kept(admin: Person, team: Team) -> None:
    admin.sees("submit", "-f", admin.file(team, "done", marks=SOON), "--wait")
    assert "ended already" in admin.sees("cancel", "done", code=2)
    assert team.run("done")


def test_logs_come_from_the_pods_each_line_with_its_rank(admin: Person, cluster: Plane) -> None:
    team = Team(cluster, silent=True)
    team.submit("chatty", 2, marks={EXIT: "0", RUN_FOR: "4s"})
    team.reaches("chatty", "Running")
    with kubelet(cluster, team, slow_s=0.5):
        place = ("-n", team.namespace)
        followed = admin.sees("logs", "chatty", "-f", *place)
        assert set(followed.splitlines()) == {
            f"[{rank}] {line}" for rank in (0, 1) for line in (f"hello from chatty-1-{rank}", "container work ends")
        }
        assert admin.sees("logs", "chatty", "--rank", "1", *place) == "hello from chatty-1-1\ncontainer work ends"
        assert "has no such rank" in admin.sees("logs", "chatty", "--rank", "7", *place, code=2)


def test_logs_of_a_run_that_waits_are_none_and_of_no_run_a_mistake(admin: Person, team: Team) -> None:
    admin.sees("submit", "-f", admin.file(team, "waits", gpus=64))
    assert admin.sees("logs", "waits") == ""
    assert "there is no run" in admin.sees("logs", "nobody", code=2)


# --- what is refused -------------------------------------------------------------------------------------------------------


def test_what_a_policy_refuses_is_told_in_its_own_words(admin: Person, team: Team) -> None:
    said = admin.sees("submit", "-f", admin.file(team, "thief", owner="org:other"), code=2)
    assert "org:other" in said
    assert "ValidatingAdmissionPolicy" not in said
    pod = {"containers": [{"name": "w", "image": "example.invalid/w:1"}], "nodeName": team.nodes[0]}
    for verb in ("submit", "plan"):
        said = admin.sees(verb, "-f", admin.file(team, "pinned", pod=pod), code=2)
        assert "nodeName" in said
    assert not team.listed(path("Run", team.namespace))


def test_of_several_runs_of_which_one_is_refused_none_is_submitted(admin: Person, team: Team) -> None:
    good, bad = admin.file(team, "good"), admin.file(team, "bad", owner="org:other")
    said = admin.sees("submit", "-f", good, "-f", bad, code=2)
    assert "1 of 2 runs were refused; nothing was submitted" in said
    assert "bad: " in said
    assert "more than once" in admin.sees("submit", "-f", good, "-f", good, code=2)
    assert not team.listed(path("Run", team.namespace))


def test_a_name_is_taken_once_and_told_the_second_time(admin: Person, team: Team) -> None:
    file = admin.file(team, "once")
    admin.sees("submit", "-f", file)
    assert "already exists" in admin.sees("submit", "-f", file, code=2)
    assert "AlreadyExists" in admin.sees("plan", "-f", file, code=1)


def test_a_mistake_in_a_file_is_told_with_its_line(admin: Person, team: Team) -> None:
    file = Path(admin.file(team, "typo"))
    file.write_text(file.read_text().replace("totalGPUs", "totalGpus"))
    said = admin.sees("submit", "-f", str(file), code=2)
    assert "typo.yaml:" in said
    assert "totalGpus" in said


@table(
    "words told",
    {
        "a path is no name": (("show", "../../api"), "is not a name"),
        "nor are two": (("explain", "a/b/c"), "is not a name"),
        "nor what has letters that no name has": (("cancel", "größer"), "is not a name"),
        "nor what has a question in it": (("logs", "x?watch=true"), "is not a name"),
        "a name too long is none": (("show", "x" * 300), "is not a name"),
        "a namespace is named like one": (("list", "-n", "../x"), "not the name of a namespace"),
        "a run that is not there is told": (("show", "nothing-like-it"), "there is no run"),
        "a verb that is nearly right": (("lst",), "Did you mean `list`?"),
        "files and -n agree or are refused": (("list", "--context", "nobody"), "no context 'nobody'"),
    },
)
def test_what_cannot_be_meant_is_refused_before_it_is_asked(admin: Person, words: tuple[str, ...], told: str) -> None:
    assert told in admin.sees(*words, code=2)


def test_a_selector_is_taken_as_it_was_typed(admin: Person, team: Team) -> None:
    assert team.namespace
    assert admin.asks("leases", "--envelope", "a,b=c\\d")["leases"] == []


# --- who may what ----------------------------------------------------------------------------------------------------------


def test_who_may_only_submit_submits_and_cancels_and_reads_nothing(cluster: Plane, team: Team) -> None:
    rita = tenant(cluster, team, "fairlease-editor")
    assert "submitted" in rita.sees("submit", "-f", rita.file(team, "blind"))
    said = rita.sees("list", code=4)
    assert "fairlease-viewer" in said
    team.reaches("blind", "Running")
    assert "canceled" in rita.sees("cancel", "blind")
    eventually(lambda: not team.run("blind"))


def test_a_tenant_of_one_namespace_sees_all_of_it_and_nothing_else(cluster: Plane, team: Team) -> None:
    tom = tenant(cluster, team, "edit")
    tom.sees("submit", "-f", tom.file(team, "mine", gpus=2))
    team.reaches("mine", "Running")
    tom.sees("submit", "-f", tom.file(team, "too-wide", gpus=99))
    eventually(lambda: team.status("too-wide").get("conditions"))
    assert {run["name"] for run in tom.asks("list")["runs"]} == {
        f"{team.namespace}/{each}" for each in ("mine", "too-wide")
    }
    assert "mine" in tom.sees("list", "-o", "wide")
    assert len(tom.asks("leases", "--open")["leases"]) == 2
    (budget,) = tom.asks("budgets", "usage")["budgets"]
    assert budget["status"]["usage"][0]["ownedGPUs"] == 2
    told = tom.asks("explain", "too-wide")
    assert told["verdict"] == "NeverFits"
    assert told["remedy"]
    (eta,) = tom.asks("eta", "too-wide")["runs"]
    assert [eta[each] for each in ("reason", "message", "remedy")] == [
        told[each] for each in ("verdict", "message", "remedy")
    ]
    assert "NeverFits" in {line["reason"] for line in told["story"]}
    for words in (("plan", "-f", tom.file(team, "quote")), ("who-pays", "mine"), ("nodes",), ("audit",)):
        said = tom.sees(*words, code=4)
        assert "ledgerentries" in said
        assert "ClusterRoleBinding to fairlease-viewer" in said
    for words in (("list", "-A"), ("leases", "-A"), ("list", "-n", "kube-system")):
        assert "is forbidden" in tom.sees(*words, code=4)


def test_an_onlooker_may_ask_everything_and_change_nothing(cluster: Plane, team: Team) -> None:
    vera = tenant(cluster, team, everywhere="fairlease-viewer")
    team.submit("theirs", 1)
    team.reaches("theirs", "Running")
    assert vera.asks("plan", "-f", vera.file(team, "mine-perhaps"))["plans"][0]["starts"] is True
    assert f"{team.namespace}/theirs" in {run["name"] for run in vera.asks("list", "-A")["runs"]}
    assert vera.asks("explain", "theirs")["cover"]
    assert vera.asks("audit")["ok"] is True
    assert "fairlease-editor" in vera.sees("submit", "-f", vera.file(team, "never"), code=4)
    assert "fairlease-editor" in vera.sees("cancel", "theirs", code=4)
    assert team.phase("theirs") == "Running"


def test_the_tab_key_inside_kubectl_knows_verbs_options_and_runs(admin: Person, team: Team) -> None:
    def offered(*words: str) -> list[str]:
        done = admin.types("kubectl", "__complete", "runs", *words)
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    team.submit("alpha", 1)
    team.reaches("alpha", "Running")
    assert {"plan", "who-pays", "audit"} <= set(offered(""))
    assert offered("ex") == ["explain", "export", ":4"]
    assert offered("explain", "al") == ["alpha", ":4"]
    assert offered("explain", "-n", team.namespace, "") == ["alpha", ":4"]
    assert offered("list", "--phase", "R") == ["Running", ":4"]
    assert offered("submit", "-f", "") == [":0"]


def test_without_a_server_every_verb_says_so_and_ends_with_three(admin: Person, tmp_path: Path, team: Team) -> None:
    text = admin.kubeconfig.read_text()
    server = next(line for line in text.splitlines() if "server:" in line)
    nowhere = tmp_path / "kubeconfig"
    nowhere.write_text(text.replace(server.split()[-1], "https://127.0.0.1:1"))
    admin.kubeconfig = nowhere
    for words in (("list",), ("plan", "-f", admin.file(team, "x")), ("audit",), ("watch", "--until-done")):
        begun = time.monotonic()
        said = admin.sees(*words, code=3)
        assert "no API server answers" in said
        assert time.monotonic() - begun < 30
    assert admin.types("kubectl", "__complete", "runs", "show", "").stdout == ":4\n"
