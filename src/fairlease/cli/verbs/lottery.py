"""`fairlease lottery`: the draws, repeated from the record alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlease.cli.failure import BAD_INPUT, Failure, answer_is_no
from fairlease.cli.render.output import NOTHING, TableCell, show_table
from fairlease.cli.render.visits import heading
from fairlease.cli.session import Answer, Session, bare, not_found
from fairlease.cli.verb import HELP, READ, VerbGroup, completes, verb
from fairlease.cli.verbs.outcomes import claimant

if TYPE_CHECKING:
    from fairlease.engine.preempt.lottery_proof import Proof

ALL = 10_000
"""More outcomes than anybody looks through: the chain is checked over so many."""

_PRINTED = "give what `fairlease outcomes -o json` prints"

_EXAMPLE = """
fairlease lottery verify
fairlease lottery verify outcome-7
fairlease lottery verify --file outcomes.json
"""

command = VerbGroup("lottery", help="Repeat the draws of the record.", example=_EXAMPLE, context_settings=HELP)


@verb("verify", example=_EXAMPLE, formats=READ, wide="every token, where several outcomes are shown")
@click.argument("name", metavar="[OUTCOME]", required=False, shell_complete=completes("outcomes"))
@click.option(
    "--file", "file", metavar="FILE", help="Outcomes as JSON in a file (`-`: standard input); no daemon is needed."
)
def verify(session: Session, name: str | None, file: str | None) -> None:
    """Repeat the draws of outcomes and compare them with the record.

    Prints the inputs of the seed, the tokens with their odds of being drawn first, the draws and the victims, and whether
    each is as recorded; and whether each outcome holds the digest of the one before it. Everything is computed here, from
    the record: the daemon is only asked for it. `docs/verify_lottery.py` does the same without any code of ours. Exits
    with 1 where something is not as recorded.
    """
    outcomes = _from_file(file) if file is not None else session.call("outcomes", limit=ALL)["outcomes"]
    answer = _proved(outcomes, whole=len(outcomes) < ALL and file is None)
    if name is not None:
        known = [each["name"] for each in answer["outcomes"]]
        answer["outcomes"] = [each for each in answer["outcomes"] if each["name"] == name]
        if not answer["outcomes"]:
            raise not_found("outcome", name, known, f"look at `{session.program} outcomes`")
    answer["ok"] = all(each["ok"] for each in answer["outcomes"])
    session.show(answer, lambda found: _draw(session, found["outcomes"], full=name is not None))
    if not answer["ok"]:
        raise answer_is_no()


command.add_command(verify)


def _from_file(path: str) -> list[Answer]:
    """The outcomes of a file: one, a list, or a list under one of the names under which they are printed."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        document = json.loads(text)
        if isinstance(document, dict):
            names = ("outcomes", "resolverOutcomes", "items")
            listed = "items" in document
            document = next((document[each] for each in names if each in document), [document])
            if listed:  # kubectl lists by name: outcome-10 stands before outcome-2
                document = sorted(document, key=lambda each: (len(each["metadata"]["name"]), each["metadata"]["name"]))
        return [
            {"name": each.get("name") or each.get("metadata", {}).get("name", "outcome"), "spec": dict(each["spec"])}
            for each in document
        ]
    except OSError as error:
        raise Failure(f"--file: {path} cannot be read: {error.strerror}", code=BAD_INPUT, remedy=_PRINTED) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Failure(f"{path} holds no ResolverOutcome", code=BAD_INPUT, remedy=_PRINTED) from None


def _proved(outcomes: list[Answer], *, whole: bool) -> Answer:
    """Each outcome with what its record gives; `whole`: the list begins with the first outcome there ever was."""
    from fairlease.engine.preempt.lottery_proof import digest, prove
    from fairlease.model.reservation import NO_OUTCOME

    told, before = [], NO_OUTCOME if whole else None
    for outcome in outcomes:
        spec = outcome["spec"]
        try:
            proof = prove(spec)
            wrong = list(proof.wrong)
            if before is not None and spec["previous"] != before:
                wrong.append("it does not follow the outcome before it")
            told.append(_told(outcome, proof, wrong))
            before = digest(spec)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"{outcome['name']} is no ResolverOutcome: {_what_is_wrong(error)}"
            raise Failure(message, code=BAD_INPUT, remedy="give the record as it was printed") from None
    return {"ok": True, "outcomes": told}


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"a string in it is no text (U+{ord(error.object[error.start]):04X} stands alone)"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _told(outcome: Answer, proof: Proof, wrong: list[str]) -> Answer:
    spec = outcome["spec"]
    lottery = spec.get("lottery")
    answer: Answer = {"name": outcome["name"], "ok": not wrong, "wrong": wrong, "claim": claimant(spec)}
    answer["victims"] = [{"run": cut["run"], "reason": cut["reason"], "gpus": cut["gpus"]} for cut in spec["actions"]]
    if lottery is None:
        return answer | {"seed": None, "inputs": None, "tokens": [], "draws": []}
    inputs = {
        "reservation": spec.get("reservation", ""),
        "at": spec["at"],
        "conflictDigest": lottery["conflictDigest"],
        "previous": spec["previous"],
        "beacon": lottery.get("beacon", ""),
    }
    tokens = [
        {"owner": token.owner, "run": token.run, "attempt": token.attempt, "gpus": token.gpus, "odds": str(odds)}
        for token, odds in zip(proof.tokens, proof.odds, strict=True)
    ]
    back = {each["run"] for each in lottery["draws"] if each.get("givenBack")}
    draws = [{"owner": each.owner, "run": each.run, "givenBack": each.run in back} for each in proof.drawn]
    return answer | {"seed": lottery["seed"], "inputs": inputs, "tokens": tokens, "draws": draws}


def _draw(session: Session, outcomes: list[Answer], *, full: bool) -> None:
    if not full and not session.wide:
        rows = [
            (
                each["name"],
                each["claim"],
                f"{len(each['draws'])} of {len(each['tokens'])}" if each["seed"] else NOTHING,
                _result(each),
            )
            for each in outcomes
        ]
        show_table(
            ("OUTCOME", "CLAIM", "DRAWN", "RESULT"), rows, colour=session.colour, empty="no outcomes", whole=True
        )
        return
    for number, each in enumerate(outcomes):
        if number:
            click.echo()
        _draw_one(session, each)


def _result(outcome: Answer) -> TableCell:
    return TableCell("as recorded", "green") if outcome["ok"] else TableCell("; ".join(outcome["wrong"]), "red")


def _draw_one(session: Session, outcome: Answer) -> None:
    click.echo(f"{outcome['name']}: {_result(outcome).text}")
    cuts = ", ".join(f"{bare(cut['run'])} ({cut['gpus']} GPUs, {cut['reason']})" for cut in outcome["victims"])
    click.echo(f"  {outcome['claim']} claimed; gave way: {cuts}")
    if not outcome["seed"]:
        click.echo("  there was no draw")
        return
    heading("Seed, SHA-256 over these lines:")
    for name, value in outcome["inputs"].items():
        click.echo(f"  {name + ':':<16}{value or '(none: an empty line)'}")
    click.echo(f"  {'seed:':<16}{outcome['seed']}")
    heading("Tokens, with the odds of being drawn first:")
    places = {draw["run"]: place for place, draw in enumerate(outcome["draws"], 1)}
    back = {draw["run"] for draw in outcome["draws"] if draw["givenBack"]}
    rows = [
        (
            token["owner"],
            bare(token["run"]),
            token["attempt"],
            token["gpus"],
            token["odds"],
            places.get(token["run"], NOTHING),
            "given back" if token["run"] in back else TableCell("ended", "red") if token["run"] in places else NOTHING,
        )
        for token in outcome["tokens"]
    ]
    show_table(("OWNER", "RUN", "ATTEMPT", "GPUS", "ODDS", "DRAWN", "RESULT"), rows, colour=session.colour)
