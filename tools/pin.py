"""Write constraints.txt: every dependency of pyproject.toml, pinned, with the hash of each file of its release.

    .venv/bin/python tools/pin.py             keep the versions that are pinned, add what is new, drop what is gone
    .venv/bin/python tools/pin.py --upgrade   move everything to the newest version that fits

pip does the work, as it is configured on the machine at hand, so the file names no index. One set of pins serves all
of TARGETS: pip resolves once for each of them, and they have to agree. Hashes are those of *all* files of a release
(read from the index, through pip's own reader), so that the file serves other machines than the one that wrote it.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pip._vendor.packaging.version import InvalidVersion

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
TARGETS = tuple(product(PYTHONS, MACHINES))
MANYLINUX = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")

HEADER = """\
# Every package Fairlease is run, built and tested with, and the hash of each file of its release.
# Written by tools/pin.py; `make` installs from it with --require-hashes.
"""


def wanted() -> list[str]:
    """All that pyproject.toml asks for: to build, to run, the extras, and to develop."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    return sorted({requirement for each in lists for requirement in each})


def pinned() -> list[str]:
    return re.findall(r"^[\w.-]+==[\w.!+-]+", PINS.read_text(), re.MULTILINE) if PINS.exists() else []


def resolve(requirements: list[str], keep: list[str], python: str, machine: str) -> dict[str, str]:
    """Name and version of everything that a machine with this Python would install; it installs nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        report, constraints = Path(scratch, "report.json"), Path(scratch, "keep.txt")
        constraints.write_text("\n".join(keep))
        target = [f"--python-version={python}", *(f"--platform={libc}_{machine}" for libc in MANYLINUX)]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        pip += ["--only-binary=:all:", f"--target={scratch}", f"--report={report}", f"--constraint={constraints}"]
        subprocess.run([*pip, *target, *requirements], check=True)
        packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    versions = {canonicalize_name(package["name"]): package["version"] for package in packages}
    # pip judges markers by the Python that runs it, not by --python-version: judge again, and ask for what it missed.
    missed = sorted({name for package in packages for name in needs(package, python, machine)} - versions.keys())
    return resolve([*requirements, *missed], keep, python, machine) if missed else versions


def needs(package: dict[str, list[str]], python: str, machine: str) -> Iterator[str]:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    for requirement in map(Requirement, package.get("requires_dist", [])):
        # A requirement of an extra mentions it in its marker; no package of ours is installed with an extra.
        if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": ""}):
            yield canonicalize_name(requirement.name)


def version_of(filename: str) -> str | None:
    try:
        parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
        return str(parse(filename)[1])
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None  # an egg or an installer of old


def hashes(collector: LinkCollector, name: str, version: str) -> list[str]:
    """SHA-256 of each file of a release, as the index tells them."""
    found = set()
    for location in collector.search_scope.get_index_urls_locations(name):
        page = collector.fetch_response(Link(location))
        for link in parse_links(page) if page else ():
            if version_of(link.filename) == version and link.hash_name == "sha256":
                found.add(link.hash)
    if not found:
        sys.exit(f"pin: the index tells no sha256 for {name} {version}; pin another version of it")
    return sorted(found)


def block(name: str, version: str, digests: list[str]) -> str:
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in digests)])


def main() -> None:
    keep = [] if "--upgrade" in sys.argv[1:] else pinned()
    versions: dict[str, str] = {}
    for python, machine in TARGETS:
        for name, version in resolve(wanted(), keep, python, machine).items():
            if versions.setdefault(name, version) != version:
                sys.exit(f"pin: {name} is {versions[name]} elsewhere but {version} on Python {python}; bound it above")
    command = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        collector = LinkCollector.create(command.get_default_session(options), options)
        blocks = [block(name, version, hashes(collector, name, version)) for name, version in sorted(versions.items())]
    PINS.write_text(HEADER + "\n".join(blocks) + "\n")
    print(f"pinned {len(versions)} packages in {PINS.name}")


if __name__ == "__main__":
    main()
