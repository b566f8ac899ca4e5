"""`fairlease drill`: a swap that is rehearsed, and timed."""

from __future__ import annotations

import click

from fairlease.cli.failure import answer_is_no
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import NO_MORE, READ, run_argument, verb
from fairlease.cli.verbs.leases import ranges

_EXAMPLE = """
fairlease drill my-run
fairlease drill my-run --rank 3 -o json | jq .runningMs
"""


@verb("drill", example=_EXAMPLE, formats=READ, namespace=True, wide=NO_MORE)
@run_argument(living=True)
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="N", help="Which rank is lost; by default the lowest with a spare."
)
def command(session: Session, run: str, rank: int | None) -> None:
    """Rehearse a swap, and tell how long it takes.

    One rank is treated as if its node had failed: its process is killed, and it starts again on a spare of its group,
    with the same rank. No node is marked as failed, and the GPUs that it left become the spare.
    """
    answer = session.call("drill", run=session.key(run), rank=rank)
    session.show(answer, _draw)
    if answer["runningMs"] is None:
        raise answer_is_no()


def _draw(answer: Answer) -> None:
    left, taken = (f"{answer[end]['node']}[{ranges(answer[end]['slots'])}]" for end in ("from", "to"))
    click.echo(f"run/{bare(answer['name'])} rank {answer['rank']}: {left} → {taken}")
    for name, key in (("decided", "decidedMs"), ("old process gone", "goneMs"), ("new process running", "runningMs")):
        took = "not yet" if answer[key] is None else f"after {answer[key]:g} ms"
        click.echo(f"  {name + ':':<21}{took}")
    click.echo(f"  {'spare now:':<21}{answer['spare'] or 'none; it was used up'}")
