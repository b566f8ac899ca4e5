#!/usr/bin/env python3
"""Check the lottery of a ResolverOutcome from its record alone. Standard library only; it shares no code with Fairlease.

    python3 docs/verify_lottery.py outcomes.json

The file holds one ResolverOutcome, a list of them in order, an object with a list under "outcomes" (what `fairlease outcomes -o
json` prints), under "resolverOutcomes" (what `fairlease simulate -o json` prints) or under "items" (what `kubectl get
resolveroutcomes -o json` prints). Each draw is repeated, and where several outcomes follow each other the chain between them
is checked. Where a record disagrees with itself, that is told, too; what no record can tell of itself (such as the names of
leases) is vouched for by its digest, which the next outcome holds. docs/design/oversubscription.md says what is computed.

Exit code: 0 all is as recorded, 1 something is not, 2 the file cannot be read.
"""

import hashlib
import hmac
import json
import sys


def outcome_digest(spec):
    """SHA-256 of the record as JSON: keys sorted, no spaces, UTF-8."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def by_owner_and_run(token):
    """The order of tokens: bytes of the owner's name, then bytes of the run's."""
    return token["owner"].encode("utf-8"), token["run"].encode("utf-8")


def conflict_digest(tokens):
    """SHA-256 over one line per token: owner, run, attempt, GPUs, with tabs between them."""
    lines = ["\t".join([t["owner"], t["run"], str(t["attempt"]), str(t["gpus"])]) + "\n" for t in tokens]
    return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


def seed(spec):
    """SHA-256 over five lines."""
    lottery = spec["lottery"]
    lines = [
        spec.get("reservation", ""),
        spec["at"],
        conflict_digest(sorted(lottery["tokens"], key=by_owner_and_run)),
        spec["previous"],
        lottery.get("beacon", ""),
    ]
    return hashlib.sha256("".join(line + "\n" for line in lines).encode("utf-8")).hexdigest()


def numbers(seed_hex):
    """A function that gives the next number below a bound."""
    state = {"count": 0}
    key = bytes.fromhex(seed_hex)

    def below(bound):
        limit = 2**64 - 2**64 % bound
        while True:
            block = hmac.new(key, state["count"].to_bytes(8, "big"), hashlib.sha256).digest()
            state["count"] += 1
            number = int.from_bytes(block[:8], "big")
            if number < limit:
                return number % bound

    return below


def draw(seed_hex, tokens, count):
    """The first `count` tokens that are drawn: an owner first, then one of that owner's tokens, none of them twice."""
    below = numbers(seed_hex)
    remaining = sorted(tokens, key=by_owner_and_run)
    drawn = []
    while remaining and len(drawn) < count:
        owners = sorted({token["owner"] for token in remaining}, key=lambda name: name.encode("utf-8"))
        owner = owners[below(len(owners))]
        theirs = [token for token in remaining if token["owner"] == owner]
        token = theirs[below(len(theirs))]
        remaining.remove(token)
        drawn.append(token)
    return drawn


def contradictions(spec):
    """Where one outcome disagrees with itself, in sentences."""
    wrong = []
    claim, actions = spec.get("claim"), spec["actions"]
    if (claim is None) == (spec.get("byHand") is None):
        wrong.append("it is neither for one claim nor asked for by hand")
    own = None if claim is None else f"{claim['namespace']}/{claim['name']}-reservation"
    name, _, number = spec.get("reservation", "").rpartition("-")
    if spec.get("reservation") and own not in (spec["reservation"], name if number.isdigit() else None):
        wrong.append("its reservation is not the claim's")
    if sum(each["gpus"] for each in spec.get("deficits", [])) != spec.get("deficitGPUs", 0):
        wrong.append("what each group lacks does not add up")
    tokens = {each["run"]: each["gpus"] for each in (spec.get("lottery") or {}).get("tokens", [])}
    stood = spec.get("conflictSet", [])
    if len(set(stood)) != len(stood) or not {cut["run"] for cut in actions} | set(tokens) <= set(stood):
        wrong.append("the conflict set does not name once everybody who stood in it")
    gone = [(cut["run"], lease) for cut in actions for lease in cut["leases"]]
    if len(set(gone)) != len(gone) or not all(cut["leases"] and cut["gpus"] > 0 for cut in actions):
        wrong.append("an action closes nothing, or what another closes")
    drawn = [cut for cut in actions if cut["reason"] == "RandomPreempt"]
    if any(tokens.get(cut["run"], cut["gpus"]) != cut["gpus"] for cut in drawn):
        wrong.append("a run that was ended held other GPUs than its token")
    return wrong


def check(spec):
    """What is wrong with one outcome, in sentences."""
    lottery = spec.get("lottery")
    wrong = contradictions(spec)
    preempted = {cut["run"] for cut in spec["actions"] if cut["reason"] == "RandomPreempt"}
    if lottery is None:
        return wrong + [f"{run} was drawn, but there was no lottery" for run in sorted(preempted)]
    tokens = sorted(lottery["tokens"], key=by_owner_and_run)
    if conflict_digest(tokens) != lottery["conflictDigest"]:
        wrong.append("the digest of the conflict set is another")
    if seed(spec) != lottery["seed"]:
        wrong.append("the seed does not follow from its inputs")
    again = draw(lottery["seed"], tokens, len(lottery["draws"]))
    recorded = [(each["owner"], each["run"]) for each in lottery["draws"]]
    if [(each["owner"], each["run"]) for each in again] != recorded:
        wrong.append("the seed draws others than those recorded")
    ended = {each["run"] for each in lottery["draws"] if not each.get("givenBack", False)}
    if ended != preempted:
        wrong.append("those that were drawn and kept are not those that were ended")
    return wrong


def outcomes_of(document):
    """The outcomes in a document, as (name, spec)."""
    if isinstance(document, dict):
        names = ("outcomes", "resolverOutcomes", "items")
        listed = "items" in document
        document = next((document[name] for name in names if name in document), [document])
        if listed:  # kubectl lists by name: outcome-10 stands before outcome-2
            document = sorted(document, key=lambda each: (len(each["metadata"]["name"]), each["metadata"]["name"]))
    found = []
    for each in document:
        name = each.get("name") or each.get("metadata", {}).get("name", "outcome")
        spec = each["spec"]
        if not isinstance(spec, dict) or "actions" not in spec or "previous" not in spec:
            raise ValueError(f"{name} has no spec of an outcome")
        found.append((name, spec))
    return found


def main(path):
    """Check every outcome of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            outcomes = outcomes_of(json.load(file))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        print(f"{path} holds no ResolverOutcome: {error}", file=sys.stderr)
        return 2
    failed = 0
    before = None  # where a list begins with a later outcome, nobody can say what came before it
    for name, spec in outcomes:
        try:
            wrong = check(spec)
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            print(f"{name} in {path} is no ResolverOutcome: {error!r}", file=sys.stderr)
            return 2
        if before is not None and spec["previous"] != before:
            wrong.append("it does not follow the outcome before it")
        before = outcome_digest(spec)
        failed += bool(wrong)
        lottery = spec.get("lottery")
        told = "no draw" if lottery is None else f"{len(lottery['draws'])} of {len(lottery['tokens'])} tokens drawn"
        print(f"{name}: {'; '.join(wrong) if wrong else f'as recorded ({told})'}")
    if before is not None:
        print(f"the last has the digest {before}: the next outcome holds it as `previous`")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))
