#!/usr/bin/env python3
"""Check ResolverOutcomes from their records alone. Standard library only; it shares no code with Fairlease.

    python3 docs/verify_lottery.py outcomes.json
    fairlease outcomes -o json | python3 docs/verify_lottery.py -

The file (`-`: standard input) holds one ResolverOutcome, a list of them in order, or an object with such a list: under "outcomes"
(what `fairlease outcomes -o json` prints), "resolverOutcomes" (`fairlease simulate -o json`) or "items" (`kubectl get
resolveroutcomes -o json`). Every draw is made again. Where a record disagrees with itself, or with the one before it, that is
told. What no record can tell of itself (such as the names of leases) is vouched for by its digest, which the next outcome holds.

It was written from docs/design/oversubscription.md, which says what has to hold.
Exit code: 0 all is as recorded, 1 something is not, 2 it cannot be read.
"""

import hashlib
import hmac
import json
import re
import sys
from collections import Counter
from itertools import islice

WITHOUT_CLAIM = {"ReclaimOpportunistic", "ReclaimOverdrawn"}
FUNDED = {"DropSpare", "Shrink", "RandomPreempt"}
DIGEST = re.compile("[0-9a-f]{64}")
UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)


class UnreadableError(Exception):
    """What was given is no ResolverOutcome."""


# --- reading a record ---------------------------------------------------------------------------------------------------


def field(record, name, kind, default=None):
    """A field of the right kind; without a default it has to be there."""
    if not isinstance(record, dict):
        raise UnreadableError(f"where {name!r} is looked for there is no object")
    value = record.get(name, default)
    if value is None:
        raise UnreadableError(f"{name!r} is missing")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UnreadableError(f"{name!r} is no {kind.__name__}")
    return value


def texts(record, name):
    """A list of strings."""
    found = field(record, name, list, [])
    if not all(isinstance(each, str) for each in found):
        raise UnreadableError(f"{name!r} is no list of names")
    return found


def sha256(text):
    """In lower-case hexadecimal, over UTF-8."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_of(spec):
    """What the next outcome holds as `previous`."""
    return sha256(json.dumps(spec, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


# --- the draw -----------------------------------------------------------------------------------------------------------


def token_of(raw):
    """(owner, run, attempt, gpus)."""
    return field(raw, "owner", str), field(raw, "run", str), field(raw, "attempt", int), field(raw, "gpus", int)


def place_of(token):
    """Tokens stand in the order of these bytes."""
    return token[0].encode("utf-8"), token[1].encode("utf-8")


def numbers_from(seed):
    """Eight bytes at a time, for ever."""
    key, count = bytes.fromhex(seed), 0
    while True:
        mac = hmac.new(key, count.to_bytes(8, "big"), hashlib.sha256)
        yield int.from_bytes(mac.digest()[:8], "big")
        count += 1


def pick(numbers, bound):
    """The next number below a bound."""
    usable = (1 << 64) // bound * bound
    return next(number for number in numbers if number < usable) % bound


def drawn_from(seed, tokens):
    """Every token, in the order in which the seed draws them, as (owner, run)."""
    numbers = numbers_from(seed)
    bowl = {}
    for owner, run, _, _ in sorted(tokens, key=place_of):
        bowl.setdefault(owner, []).append(run)
    while bowl:
        owner = list(bowl)[pick(numbers, len(bowl))]
        run = bowl[owner].pop(pick(numbers, len(bowl[owner])))
        if not bowl[owner]:
            del bowl[owner]
        yield owner, run


def draw_again(spec, lottery, ended):
    """What is not as recorded about a lottery, whose victims are said to be `ended`."""
    tokens = [token_of(raw) for raw in field(lottery, "tokens", list)]
    draws = [(field(raw, "owner", str), field(raw, "run", str)) for raw in field(lottery, "draws", list)]
    kept = [raw["run"] for raw in lottery["draws"] if not field(raw, "givenBack", bool, default=False)]
    in_order = sorted(tokens, key=place_of)
    if tokens != in_order:
        yield "its tokens are not in their order"
    if len({run for _, run, _, _ in tokens}) < len(tokens):
        yield "a run has two tokens"
    if any(attempt < 1 or gpus < 1 for _, _, attempt, gpus in tokens):
        yield "a token stands for no GPUs, or for no attempt"
    lines = ["\t".join(map(str, token)) for token in in_order]
    conflict = sha256("".join(f"{line}\n" for line in lines))
    if conflict != field(lottery, "conflictDigest", str):
        yield "the digest of its tokens is another"
    beacon, reservation = field(lottery, "beacon", str, ""), field(spec, "reservation", str, "")
    inputs = [reservation, field(spec, "at", str), conflict, field(spec, "previous", str), beacon]
    seed = sha256("".join(f"{line}\n" for line in inputs))
    if seed != field(lottery, "seed", str):
        yield "its seed does not follow from its inputs"
    if not draws:
        yield "nobody was drawn"
    if draws != list(islice(drawn_from(seed, tokens), len(draws))):
        yield "its inputs draw others than those recorded"
    if sorted(kept) != sorted(ended):
        yield "those that were drawn and kept are not those that were ended"


# --- whether a record agrees with itself --------------------------------------------------------------------------------


def for_whom(spec, reasons):
    """A claim with its own reservation, or an administrator without one."""
    claim, by_hand, reservation = spec.get("claim"), spec.get("byHand"), field(spec, "reservation", str, "")
    if claim is not None and "/" in field(claim, "name", str):
        yield "its claim has a name that no run can have"
    if (claim is None) is (by_hand is None):
        yield "it is not for either a claim or an administrator"
    if by_hand is not None:
        who, _why = field(by_hand, "by", str), field(by_hand, "reason", str, "")
        asked = field(by_hand, "gpus", int), field(by_hand, "gpusPerPod", int, 1), field(by_hand, "groupGPUs", int, 1)
        if not who or min(asked) < 1:
            yield "nobody asked by hand, or for no GPUs"
    if reservation:
        whose = "" if claim is None else f"{field(claim, 'namespace', str)}/{field(claim, 'name', str)}-reservation"
        number = reservation.removeprefix(whose) if claim is not None and reservation.startswith(whose) else "none"
        if number and (not re.fullmatch("-[1-9][0-9]*", number) or number == "-1"):
            yield "its reservation is another's than the claim's"
    elif by_hand is None and FUNDED & reasons:
        yield "funded work was cut, and no reservation was due"


def what_lacked(spec, actions):
    """GPUs by group."""
    lacking = [(field(raw, "group", int), field(raw, "gpus", int)) for raw in field(spec, "deficits", list, [])]
    total = field(spec, "deficitGPUs", int)
    if sum(gpus for _, gpus in lacking) != total:
        yield "its groups do not lack, together, what it says"
    if any(group < 0 or gpus < 1 for group, gpus in lacking):
        yield "a group is said to lack nothing"
    groups = [group for group, _ in lacking]
    if groups != sorted(set(groups)):
        yield "a group is named twice among those that lack, or out of order"
    if actions and total < 1:
        yield "nothing lacked, and yet somebody was cut"


def who_gave(spec, actions, tokens):
    """Leases that were closed, of runs that stood in question."""
    stood, reasons = texts(spec, "conflictSet"), {reason for _, _, reason, _ in actions}
    claim = spec.get("claim")
    claimant = None if claim is None else f"{field(claim, 'namespace', str)}/{field(claim, 'name', str)}"
    if max(Counter(stood).values(), default=1) > 1:
        yield "the conflict set names somebody twice"
    if not stood or {run for run, _, _, _ in actions} - set(stood) or tokens.keys() - set(stood):
        yield "the conflict set does not name everybody who stood in it"
    if claimant in stood:
        yield "the claim is said to be in its own way"
    if reasons - WITHOUT_CLAIM - FUNDED:
        yield "somebody was cut for a reason that there is not"
    if not actions or any(not leases or gpus < 1 for _, leases, _, gpus in actions):
        yield "an action closes nothing"
    closed = Counter((run, lease) for run, leases, _, _ in actions for lease in leases)
    if max(closed.values(), default=1) > 1:
        yield "a lease is closed twice"
    for run in [run for run, _, reason, _ in actions if reason == "RandomPreempt"]:
        if sum(run == each[0] for each in actions) > 1:
            yield f"{run} goes whole, and is cut once more"
        elif any(run == each[0] and tokens.get(run, each[3]) != each[3] for each in actions):
            yield f"{run} held other GPUs than its token"


def wrong_with(spec):
    """What is wrong with one outcome, in sentences."""
    actions = [
        (field(raw, "run", str), texts(raw, "leases"), field(raw, "reason", str), field(raw, "gpus", int))
        for raw in field(spec, "actions", list)
    ]
    ended = [run for run, _, reason, _ in actions if reason == "RandomPreempt"]
    lottery, tokens = spec.get("lottery"), {}
    if lottery is not None:
        tokens = {field(raw, "run", str): field(raw, "gpus", int) for raw in field(lottery, "tokens", list)}
    if not DIGEST.fullmatch(field(spec, "previous", str)):
        yield "what it holds of the outcome before it is no digest"
    if not UTC.fullmatch(field(spec, "at", str)):
        yield "its time is not in UTC"
    scope = field(spec, "scope", dict)
    labels = field(scope, "location", dict, {}).values()
    if not field(scope, "flavor", str) or not all(isinstance(label, str) for label in labels):
        yield "it does not say where it might cut"
    yield from for_whom(spec, {reason for _, _, reason, _ in actions})
    yield from what_lacked(spec, actions)
    yield from who_gave(spec, actions, tokens)
    if lottery is not None:
        yield from draw_again(spec, lottery, ended)
    elif ended:
        yield f"{', '.join(sorted(ended))} went by lot, and there was no lottery"


# --- files --------------------------------------------------------------------------------------------------------------


def outcomes_in(document):
    """(name, spec) of every outcome, in order."""
    if isinstance(document, dict):
        lists = [document[name] for name in ("outcomes", "resolverOutcomes", "items") if name in document]
        listed, document = "items" in document, lists[0] if lists else [document]
    else:
        listed = False
    if not isinstance(document, list):
        raise UnreadableError("it is no object and no list of them")
    found = []
    for each in document:
        spec = field(each, "spec", dict)
        name = each.get("name") or field(each, "metadata", dict, {}).get("name") or "outcome"
        found.append((str(name), spec))
    if listed:  # kubectl sorts names as text: outcome-10 before outcome-2
        found.sort(key=lambda each: (len(each[0]), each[0]))
    return found


def read(path):
    """The outcomes of a file."""
    try:
        if path == "-":
            raw = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                raw = file.read()
        return outcomes_in(json.loads(raw.decode("utf-8")))
    except FileNotFoundError:
        raise UnreadableError(f"{path} is missing: there is no such file") from None
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path} holds no ResolverOutcome: {error}") from None
    except UnreadableError as error:
        raise UnreadableError(f"{path} holds no ResolverOutcome: {error}") from None


def looked_at(name, spec):
    """(what is wrong with an outcome, its digest)."""
    try:
        return list(wrong_with(spec)), digest_of(spec)
    except UnicodeEncodeError as error:
        odd = f"U+{ord(error.object[error.start]):04X}"
        raise UnreadableError(f"{name} is no ResolverOutcome: a string in it is no text ({odd} stands alone)") from None
    except UnreadableError as error:
        raise UnreadableError(f"{name} is no ResolverOutcome: {error}") from None


def main(path):
    """Check every outcome of a file, and the chain that they make."""
    sys.stdout.reconfigure(errors="backslashreplace")
    failed, before = False, None  # Where a list begins with a later outcome, nobody can say what came before it.
    try:
        outcomes = read(path)
        for name, spec in outcomes:
            wrong, digest = looked_at(name, spec)
            if before not in (None, spec["previous"]):
                wrong.append("it does not follow the outcome before it")
            failed, before = failed or bool(wrong), digest
            lottery = spec.get("lottery")
            told = f"{len(lottery['draws'])} of {len(lottery['tokens'])} tokens drawn" if lottery else "no draw"
            print(f"{name}: {'; '.join(wrong) or f'as recorded ({told})'}")
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return 2
    told = f"the last has the digest {before}: the next outcome holds it as `previous`"
    print(told if outcomes else "there are no outcomes in it")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))
