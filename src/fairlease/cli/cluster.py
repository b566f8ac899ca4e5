"""One call of a command on a cluster: which API server it asks, as whom, and what its refusals mean to who typed it.

The verbs are those of the local daemon (`cli.verb`); here they get kubectl's options, and a session that answers from objects and
LedgerEntries (`kube.answers`). One event loop lives as long as the command: `watch` follows the server while it waits.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from fairlease.cli.failure import BAD_INPUT, BROKEN, NO, NO_DAEMON, NOT_ALLOWED, Failure
from fairlease.cli.session import Answer, Session

if TYPE_CHECKING:
    import asyncio

    from fairlease.kube.api.connection import Api, ApiError
    from fairlease.kube.api.kubeconfig import ClusterAccess
    from fairlease.kube.commands.answers import ClusterAnswers

T = TypeVar("T")

_READ = "ask an administrator of the cluster for a ClusterRoleBinding to fairlease-viewer"
_ONE = f"leave -A out, or {_READ}"
_IN_NAMESPACE = "ask an administrator of the cluster for the role view, or fairlease-viewer, in this namespace"
_WRITE = "ask an administrator of the cluster for the role edit, or fairlease-editor, in this namespace"


class Link:
    """The loop and the connection of one command, made when something is first asked."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._told = kubeconfig, context
        self._made: asyncio.Runner | None = None
        self._access: ClusterAccess | None = None
        self._api: Api | None = None
        self._answers: ClusterAnswers | None = None
        atexit.register(self.close)

    @property
    def _runner(self) -> asyncio.Runner:
        import asyncio

        self._made = self._made or asyncio.Runner()
        return self._made

    @property
    def access(self) -> ClusterAccess:
        """Where the server is; raises a `Failure` where that is not to be found out."""
        if self._access is None:
            from fairlease.kube.api.kubeconfig import BadConfig, find_access

            try:
                self._access = find_access(*self._told)
            except BadConfig as error:
                raise Failure(str(error), remedy="name a kubeconfig with --kubeconfig or KUBECONFIG") from None
        return self._access

    @property
    def api(self) -> Api:
        """The connection. Who waits for an answer has less patience than a controller."""
        if self._api is None:
            from fairlease.kube.api.connection import Api
            from fairlease.kube.commands.answers import PATIENCE_S

            self._api = self.inside(lambda access: Api(access, pool=16, patience_s=PATIENCE_S))
        return self._api

    def inside(self, make: Any) -> Any:  # noqa: ANN401 - whatever is made
        """Make something that wants a running loop."""
        access = self.access

        async def made() -> Any:  # noqa: ANN401 - as above
            return make(access)

        return self._runner.run(made())

    def answers(self, namespace: str | None, archive: str | None) -> ClusterAnswers:
        """The verbs, of one namespace or of all."""
        if self._answers is None:
            from fairlease.kube.commands.answers import ClusterAnswers
            from fairlease.kube.ledger.archive import Archive

            api, folder = self.api, None if archive is None else Archive(Path(archive))
            self._answers = self.inside(lambda _: ClusterAnswers(api, namespace, folder))
        return self._answers

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop; what the server refuses becomes a `Failure`."""
        from fairlease.kube.api.connection import ApiError
        from fairlease.kube.api.http import Unreachable
        from fairlease.kube.api.kubeconfig import BadConfig
        from fairlease.kube.api.refused import Unanswered
        from fairlease.kube.ledger.archive import BadArchive, HistoryMissing
        from fairlease.kube.ledger.journal import BrokenLedger
        from fairlease.runtime.requests import Refused

        try:
            return self._runner.run(work)
        except Unanswered as error:
            remedy = "see whether a controller runs and leads: kubectl get pods -n fairlease-system"
            raise Failure(str(error), code=NO_DAEMON, remedy=remedy) from None
        except Refused as error:
            raise Failure(
                error.message, code=BAD_INPUT, reason=error.reason.value, remedy=error.remedy, problems=error.problems
            ) from None
        except ApiError as error:
            raise _refused(error) from None
        except Unreachable as error:
            remedy = "see whether the cluster is up, and whether --kubeconfig and --context name it"
            raise Failure(
                f"no API server answers: {error}", code=NO_DAEMON, remedy=remedy, problems=_notes(error)
            ) from None
        except BadConfig as error:
            raise Failure(str(error), code=BAD_INPUT) from None
        except HistoryMissing as error:
            raise Failure(str(error), code=BAD_INPUT) from None
        except (BadArchive, BrokenLedger) as error:
            raise Failure(str(error), code=NO) from None

    def close(self) -> None:
        """End what follows, and the connection. A command that is interrupted has nothing left to say."""
        with contextlib.suppress(Exception):
            if self._answers is not None:
                self._runner.run(self._answers.close())
            if self._api is not None:
                self._runner.run(self._api.close())
            if self._made is not None:
                self._made.close()


@dataclass(frozen=True, slots=True)
class ClusterSession(Session):
    """A session that asks the API server of a cluster."""

    program: ClassVar[str] = "kubectl runs"
    here: ClassVar[bool] = False
    archive: str | None = None
    link: Link = field(default_factory=lambda: Link(None, None))

    def where(self) -> str | None:
        """The namespace to ask for: the one that was given, or the context's; None where all are wanted."""
        if self.all_namespaces:
            return None
        from fairlease.kube.api.refused import is_namespace

        chosen = self.namespace or self.link.access.namespace
        if not is_namespace(chosen):
            raise Failure(f"{chosen!r} is not the name of a namespace", remedy="`kubectl get namespaces` lists them")
        return chosen

    def key(self, name: str) -> str:
        """`namespace/name`, where it does not bring its namespace itself."""
        return name if "/" in name else f"{self.namespace or self.link.access.namespace}/{name}"

    def call(self, verb: str, **args: object) -> Answer:
        """Ask the cluster; every refusal becomes a `Failure`."""
        self._agree(args)
        answers = self.link.answers(self.where(), self.archive)
        try:
            return self.link.run(answers.answer(verb, args))
        except Failure as failure:
            raise self._with_hint(failure, args) from None

    def _agree(self, args: dict[str, object]) -> None:
        """Objects that name another namespace than `-n` are a mistake in one or the other, as kubectl has it."""
        objects = args.get("objects") or [args.get("object")]
        for each in objects if self.namespace and isinstance(objects, list) else ():
            metadata = each["metadata"] if isinstance(each, dict) else {}
            if metadata.get("namespace") not in (None, "", self.namespace):
                message = f"{metadata['name']} says namespace {metadata['namespace']}, and -n {self.namespace}"
                raise Failure(message, remedy="leave one of them out")


def cluster_options() -> list[click.Option]:
    """Which cluster, by the names that kubectl gives it."""
    return [
        click.Option(["--kubeconfig"], metavar="FILE", help="Where the cluster is.  [env: KUBECONFIG]"),
        click.Option(["--context"], metavar="NAME", help="Which context of the kubeconfig."),
        click.Option(["--no-color"], is_flag=True, help="No colour, on a terminal either.  [env: NO_COLOR]"),
    ]


def archive_option() -> click.Option:
    """For verbs that look far back."""
    told = "Where the controller archives old entries of the ledger, or a copy of it."
    return click.Option(["--archive"], metavar="DIR", type=click.Path(exists=True, file_okay=False), help=told)


def cluster_session(given: dict[str, Any]) -> ClusterSession:
    """Take what all verbs share out of the options; what stands behind the verb wins over what stands before it."""
    around = click.get_current_context().find_root().params
    told = {name: given.pop(name, None) or around.get(name) for name in ("kubeconfig", "context", "no_color")}
    return ClusterSession(
        no_color=bool(told["no_color"]),
        output=given.pop("output", "table"),
        namespace=given.pop("namespace", None),
        all_namespaces=given.pop("all_namespaces", False),
        archive=given.pop("archive", None),
        link=Link(told["kubeconfig"], told["context"]),
    )


# --- what the server refused ---------------------------------------------------------------------------------------------


def _refused(error: ApiError) -> Failure:
    """The server's no as users see it."""
    from fairlease.kube.api.refused import not_installed, policy_said

    notes = _notes(error)
    if said := policy_said(error):
        return Failure(said, code=BAD_INPUT, reason="Refused", problems=notes)
    if error.code == HTTPStatus.UNAUTHORIZED:
        return Failure("the API server does not know you", code=NOT_ALLOWED, remedy="renew your credentials")
    if error.code == HTTPStatus.FORBIDDEN:
        return Failure(error.message, code=NOT_ALLOWED, reason="Forbidden", remedy=_role_for(error), problems=notes)
    if not_installed(error):
        remedy = "ask an administrator of the cluster: kubectl apply --server-side -k deploy/kustomize"
        return Failure("Fairlease is not installed in this cluster", code=BAD_INPUT, remedy=remedy)
    if error.code == HTTPStatus.UNPROCESSABLE_ENTITY:
        wrong = [f"{name}: {told}" if name and name != "<nil>" else told for name, told in error.fields]
        message = error.message.partition(": ")[0] if wrong else error.message
        return Failure(message, code=BAD_INPUT, reason="Invalid", problems=(*wrong, *notes))
    if error.transient or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Failure(f"the API server cannot answer now: {error}", code=BROKEN, remedy="try again", problems=notes)
    return Failure(error.message, code=BAD_INPUT, reason=error.reason, problems=notes)


def _role_for(error: ApiError) -> str:
    if any(f"cannot {verb} " in error.message for verb in ("create", "update", "patch", "delete")):
        return _WRITE
    if "at the cluster scope" not in error.message:
        return _IN_NAMESPACE
    return _READ if "ledgerentries" in error.message else _ONE


def _notes(error: BaseException) -> tuple[str, ...]:
    return tuple(getattr(error, "__notes__", ()))
