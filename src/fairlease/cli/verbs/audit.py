"""`fairlease audit`: replay the ledger and prove what it claims."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fairlease.cli.failure import Failure, answer_is_no
from fairlease.cli.render.output import TableCell, show_table
from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import READ, verb

_EXAMPLE = """
fairlease audit
fairlease audit --db /backup/ledger.db -o json
fairlease audit --kubeconfig ~/.kube/config --context production
"""
_SHOWN = 20


@verb("audit", example=_EXAMPLE, formats=READ)
@click.option("--db", metavar="FILE", help="Audit this ledger's file directly; no daemon is needed.")
@click.option("--kubeconfig", metavar="FILE", help="Audit the ledger of this cluster, and its objects.")
@click.option("--context", metavar="NAME", help="The same; which context of the kubeconfig.")
@click.option("--archive", metavar="DIR", help="Where the cluster's old entries were archived.")
def command(session: Session, db: str | None = None, **cluster: str | None) -> None:
    """Replay the ledger and prove what it claims.

    The hash chain, one payer per GPU-second, payers in the order of cover, no slot doubled, no cap exceeded at admission,
    no lease rewritten, and that the tables which `leases`, `who-pays` and `export` read agree with the entries. Exits
    with 1 where one of them does not hold. Compare the head with a hash you noted elsewhere: a ledger that was cut
    short with care shows it nowhere else.
    """
    if any(cluster.values()):
        session = _cluster(session, db, cluster)
    answer = session.call("audit") if db is None else audit_file(db)
    session.show(answer, lambda found: _draw(session, found))
    if not answer["ok"]:
        raise answer_is_no()


def _cluster(session: Session, db: str | None, told: dict[str, str | None]) -> Session:
    """The same question to a cluster."""
    from fairlease.cli.cluster import ClusterSession, Link

    if db is not None:
        raise click.UsageError(
            "--db is a file; --kubeconfig, --context and --archive are of a cluster: give one or the other"
        )
    if told["archive"] is not None and not Path(told["archive"]).is_dir():
        raise Failure(f"--archive: there is no folder {told['archive']}")
    link = Link(told["kubeconfig"], told["context"])
    return ClusterSession(output=session.output, no_color=session.no_color, archive=told["archive"], link=link)


def audit_file(path: str) -> Answer:
    """Audit a file as it lies on the disk, byte by byte."""
    import msgspec

    from fairlease.ledger.audit.audit_file import audit_store
    from fairlease.ledger.store.sqlite import SqliteStore
    from fairlease.ledger.store.sqlite_file import CannotOpen

    try:
        with SqliteStore(path, readonly=True) as store:
            report = audit_store(store, _progress if sys.stderr.isatty() else None)
    except CannotOpen as error:
        raise Failure(str(error), remedy="give the ledger.db of a daemon's home, or a copy of it") from None
    answer: Answer = msgspec.to_builtins(report)
    return answer


def _progress(entries: int) -> None:
    click.echo(f"\r{entries} entries", nl=False, err=True)


def _draw(session: Session, answer: Answer) -> None:
    rows = [
        (name, TableCell("holds", "green") if held else TableCell("BROKEN", "red"))
        for name, held in answer["checks"].items()
    ]
    show_table(("CHECK", "RESULT"), rows, colour=session.colour)
    findings = answer.get("findings") or []
    if findings:
        click.echo()
        shown = [(each["seq"], each["claim"], each["message"]) for each in findings[:_SHOWN]]
        show_table(("ENTRY", "CHECK", "FINDING"), shown, colour=session.colour, whole=True)
        if len(findings) > _SHOWN:
            click.echo(f"and {len(findings) - _SHOWN} more; `-o json` prints them")
    head = answer.get("head") or {}
    compared = f", {answer['objects']} objects" if "objects" in answer else ""
    verdict = "all holds" if answer["ok"] else "NOT as claimed"
    click.echo(f"\n{answer['entries']} entries, {answer['leases']} leases{compared}; {verdict}")
    if head:
        click.echo(f"head: entry {head.get('seq', 0)}, hash {head.get('hash')}")
