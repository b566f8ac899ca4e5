"""`fairlease controller`: the scheduler of a Kubernetes cluster, inside it or from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairlease.cli.failure import BAD_INPUT, NO, Failure
from fairlease.cli.session import Session
from fairlease.cli.verb import verb

_EXAMPLE = """
fairlease controller --kubeconfig ~/.kube/config --context staging
fairlease controller --archive /var/lib/fairlease/archive --metrics-port 9090
fairlease controller --config /etc/fairlease/fairlease.yaml --beacon /etc/fairlease-beacon/value
fairlease controller --hold
"""


@verb("controller", example=_EXAMPLE)
@click.option("--kubeconfig", metavar="FILE", help="Where the cluster is; inside a cluster it is known.")
@click.option("--context", metavar="NAME", help="Which context of the kubeconfig.")
@click.option(
    "--namespace",
    "place",
    envvar="POD_NAMESPACE",
    metavar="NS",
    help="Where its election Lease lies; fairlease-system by default.  [env: POD_NAMESPACE]",
)
@click.option(
    "--identity",
    envvar="POD_NAME",
    metavar="NAME",
    help="What it is called in the election; its host and process by default.  [env: POD_NAME]",
)
@click.option("--archive", metavar="DIR", help="Where old entries of the ledger go; without it none is ever removed.")
@click.option("--config", metavar="FILE", help="Policy and settings; nothing in it is required.")
@click.option(
    "--beacon",
    metavar="FILE",
    help="A file with a public random value for the lottery's seed; the settings can name a command instead.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    metavar="P",
    help="Where /metrics, /healthz and /readyz are served; 0: nowhere.",
)
@click.option("--hold", is_flag=True, help="Start nothing new; what runs goes on.")
def command(
    session: Session,
    kubeconfig: str | None,
    context: str | None,
    config: str | None,
    **told: Any,  # noqa: ANN401 - numbers and names
) -> None:
    """Schedule the runs of a Kubernetes cluster.

    Several may run at once: one leads, the others stand by and take over within seconds. It may be killed at any moment.

    Nothing new starts while --hold is given, or while the controller's namespace bears the annotation
    rq.davidlangworthy.io/hold: "true". All nodes are then as if cordoned, which the ledger records; what runs goes on.
    """
    del session
    import asyncio
    import sys

    import msgspec

    from fairlease.kube.api.connection import Api
    from fairlease.kube.api.kubeconfig import BadConfig, find_access
    from fairlease.kube.api.names import NAMESPACE
    from fairlease.kube.controller.main import Controller
    from fairlease.kube.ledger.journal import BrokenLedger
    from fairlease.kube.settings import ClusterSettings, read_settings
    from fairlease.model.document import Invalid
    from fairlease.runtime.log import json_lines
    from fairlease.runtime.settings import BeaconSource

    archive, beacon = told["archive"], told["beacon"]
    try:
        policy, cluster = read_settings(config)
        access = find_access(kubeconfig, context)
    except Invalid as error:
        problems = [str(problem) for problem in error.problems]
        raise Failure("the controller was not started", code=BAD_INPUT, problems=problems) from None
    except BadConfig as error:
        raise Failure(str(error), code=BAD_INPUT) from None
    if beacon is not None:
        cluster = msgspec.structs.replace(cluster, beacon=BeaconSource(file=str(Path(beacon).absolute())))
    settings = ClusterSettings(
        policy=policy,
        cluster=cluster,
        namespace=told["place"] or NAMESPACE,
        identity=told["identity"] or "",
        archive=None if archive is None else Path(archive),
        metrics_port=told["metrics_port"],
        hold=told["hold"],
    )

    async def serve() -> None:
        async with Api(access) as api:
            await Controller(api, settings, json_lines(sys.stderr)).run()

    try:
        asyncio.run(serve())
    except OSError as error:
        raise Failure(f"port {settings.metrics_port} cannot be had: {error.strerror}", code=BAD_INPUT) from None
    except BrokenLedger as error:
        raise Failure(str(error), code=NO) from None
