"""What a pod is made of: the template, its GPUs, its rank, and nothing that the template may not decide."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.builders import EPOCH

from fairlease.kube.projection.pods import pods_of, service_of
from fairlease.kube.projection.rendezvous import gang_of
from fairlease.kube.settings import ClusterSettings
from fairlease.ledger.state.runs import RunState
from fairlease.model.amount import MINUTE
from fairlease.model.lease import Fund, Lease, Payer, Role
from fairlease.model.record import key
from fairlease.model.run import Resources, RunSpec, Runtime
from fairlease.reason import Reason

RUN = key("train", "team")
PAYER = Payer(budget=key("money", "team"), envelope="main", owner="org:team", fund=Fund.OWNED)


def a_run(template: dict[str, Any], *, gpus: int = 4, pod: int = 2, spare: bool = False, **runtime: Any) -> RunState:  # noqa: ANN401 - any limit
    spec = RunSpec(
        owner="org:team",
        resources=Resources(gpu_type="H100", total_gpus=gpus),
        gpus_per_pod=pod,
        template=template,
        runtime=Runtime(**runtime),
    )
    run = RunState(RUN, spec, EPOCH, 0)
    ranks = [*range(gpus // pod), *([-1] if spare else [])]
    for number, rank in enumerate(ranks):
        lease = Lease(
            name=f"train-1-{number}",
            run=RUN,
            owner="org:team",
            attempt=1,
            group=0,
            rank=rank,
            node=f"node-{number // 2}",
            slots=tuple(range(pod)),
            role=Role.SPARE if rank < 0 else Role.ACTIVE,
            start=EPOCH,
            payer=PAYER,
            reason=Reason.Start,
            serial=number,
        )
        run.leases[lease.name] = lease
    return run


def bodies(run: RunState) -> dict[str, dict[str, Any]]:
    return pods_of(run, run.held, "uid-1", ClusterSettings())


def env(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][container]["env"] if "value" in each}


def a_template(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - any part of a pod
    return {"spec": {"containers": [{"name": "a", "image": "i"}, *containers], **spec}}


def test_ranks_know_themselves_and_where_the_first_one_listens() -> None:
    made = bodies(a_run(a_template(), gpus=8))
    told = [env(pod) for pod in made.values()]
    assert [each["RANK"] for each in told] == ["0", "1", "2", "3"]
    assert [each["NODE_RANK"] for each in told] == ["0", "0", "1", "1"]
    assert [each["LOCAL_RANK"] for each in told] == ["0", "1", "0", "1"]
    assert {each["MASTER_ADDR"] for each in told} == {"a1-r0.run-train.team.svc"}
    assert {(each["WORLD_SIZE"], each["NNODES"], each["LOCAL_WORLD_SIZE"]) for each in told} == {("4", "2", "2")}


def test_the_first_container_gets_the_gpus_where_the_template_leaves_them_open() -> None:
    made = bodies(a_run(a_template({"name": "b", "image": "i"})))["train-1-0"]["spec"]["containers"]
    assert made[0]["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert "resources" not in made[1]


def test_gpus_that_the_template_deals_out_itself_stay_where_they_are() -> None:
    beside = {"name": "b", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    made = bodies(a_run(a_template(beside)))["train-1-0"]["spec"]["containers"]
    assert "resources" not in made[0]
    assert made[1]["resources"] == {"limits": {"nvidia.com/gpu": 2}}


def test_a_template_cannot_speak_for_another_rank_nor_choose_its_own_end() -> None:
    loud = {"name": "b", "image": "i", "env": [{"name": "RANK", "value": "7"}, {"name": "MINE", "value": "1"}]}
    pod = bodies(a_run(a_template(loud, restartPolicy="Always", nodeName="elsewhere", schedulerName="other")))[
        "train-1-1"
    ]
    assert env(pod, 1)["RANK"] == "1"
    assert env(pod, 1)["MINE"] == "1"
    assert [each["name"] for each in pod["spec"]["containers"][1]["env"]].count("RANK") == 1
    assert (pod["spec"]["restartPolicy"], pod["spec"]["schedulerName"]) == ("Never", "fairlease")
    assert "nodeName" not in pod["spec"]


def test_work_that_saves_itself_has_the_time_for_it() -> None:
    assert bodies(a_run(a_template()))["train-1-0"]["spec"]["terminationGracePeriodSeconds"] == 30
    patient = bodies(a_run(a_template(), checkpoint=10 * MINUTE))["train-1-0"]["spec"]
    assert patient["terminationGracePeriodSeconds"] == 600
    own = bodies(a_run(a_template(terminationGracePeriodSeconds=5), checkpoint=10 * MINUTE))["train-1-0"]["spec"]
    assert own["terminationGracePeriodSeconds"] == 5


def test_work_that_was_cut_holds_its_gpus_no_longer_than_the_cluster_allows() -> None:
    for run in (
        a_run(a_template(terminationGracePeriodSeconds=10**9)),
        a_run(a_template(), checkpoint=10_000 * MINUTE),
    ):
        assert bodies(run)["train-1-0"]["spec"]["terminationGracePeriodSeconds"] == 600
    guest = a_run(a_template(terminationGracePeriodSeconds=60))
    guest.spec = replace(guest.spec, opportunistic=True)
    assert bodies(guest)["train-1-0"]["spec"]["terminationGracePeriodSeconds"] == 10


def test_work_without_a_claim_ends_soon_whatever_its_template_says() -> None:
    run = a_run(a_template(terminationGracePeriodSeconds=600))
    run.spec = replace(run.spec, opportunistic=True)
    assert bodies(run)["train-1-0"]["spec"]["terminationGracePeriodSeconds"] == 10
    quick = a_run(a_template(terminationGracePeriodSeconds=1))
    quick.spec = replace(quick.spec, opportunistic=True)
    assert bodies(quick)["train-1-0"]["spec"]["terminationGracePeriodSeconds"] == 1


def test_every_container_finds_what_its_run_is_told_unless_it_keeps_something_else_there() -> None:
    own = {"name": "b", "image": "i", "volumeMounts": [{"name": "mine", "mountPath": "/etc/fairlease/"}]}
    pod = bodies(a_run(a_template(own, volumes=[{"name": "mine", "emptyDir": {}}])))["train-1-0"]
    assert [each["name"] for each in pod["spec"]["volumes"]] == ["mine", "fairlease-run"]
    first, second = pod["spec"]["containers"]
    assert first["volumeMounts"] == [{"name": "fairlease-run", "mountPath": "/etc/fairlease", "readOnly": True}]
    assert env(pod)["FAIRLEASE_MEMBERS"] == "/etc/fairlease/members.json"
    assert env(pod)["FAIRLEASE_NOTICE_FILE"] == "/etc/fairlease/notice.json"
    assert second["volumeMounts"] == own["volumeMounts"]
    assert "FAIRLEASE_MEMBERS" not in env(pod, 1)


def test_a_gang_is_numbered_anew_only_when_it_changed() -> None:
    run = a_run(a_template(), gpus=8)
    whole = gang_of(run, 29_500)
    assert [each.address for each in whole.members][:2] == ["a1-r0.run-train.team.svc", "a1-r1.run-train.team.svc"]
    assert whole.after(None).generation == 1
    assert whole.after(whole.after(None)).generation == 1
    assert replace(whole, world_size=3).after(whole.after(None)).generation == 2


def test_a_run_of_one_pod_needs_no_service_and_meets_itself() -> None:
    pod = bodies(a_run(a_template(), gpus=2))["train-1-0"]
    assert env(pod)["MASTER_ADDR"] == "127.0.0.1"
    assert "subdomain" not in pod["spec"]


def test_a_spare_holds_its_gpus_and_does_none_of_the_work() -> None:
    pod = bodies(a_run(a_template(), spare=True))["train-1-2"]
    assert [each["name"] for each in pod["spec"]["containers"]] == ["spare"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert pod["metadata"]["labels"]["rq.davidlangworthy.io/role"] == "Spare"


def test_a_template_is_the_same_after_all_pods_were_made_of_it() -> None:
    template = a_template({"name": "b", "image": "i", "env": [{"name": "RANK", "value": "7"}]}, tolerations=[])
    before = repr(template)
    bodies(a_run(template, spare=True))
    service_of(RUN, "uid-1")
    assert repr(template) == before
