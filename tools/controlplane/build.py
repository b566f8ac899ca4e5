"""Build the control plane from Go modules, once for each set of versions, into the user's cache.

The versions stand in `modules/*/go.mod`, their hashes in the `go.sum` beside it: what is built here is the same
everywhere. Where `KUBEBUILDER_ASSETS` is set, binaries found there are taken instead.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MODULES = Path(__file__).resolve().parent / "modules"


class Missing(Exception):  # noqa: N818 - what is missing is a tool, and no mistake was made
    """Something that the control plane is made of or with is not on this machine."""


class Recipe(NamedTuple):
    """How one binary is made: from which module, and which package of it."""

    module: str
    package: str


RECIPES = {
    "etcd": Recipe("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": Recipe("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kubectl": Recipe("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kwok": Recipe("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "kube-controller-manager": Recipe("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": Recipe("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
}
"""In the order in which they are wanted."""


def version(module: str) -> str:
    """The version of a module that its go.mod asks for."""
    found = re.search(r"^require \S+ v(\S+)$", (MODULES / module / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, f"{module}/go.mod requires one module, on a line of its own"
    return found[1]


def cache() -> Path:
    """Where binaries are kept: one folder for each set of versions, and `bin`, which points to the one in use."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fairlease" / "controlplane"


def folder() -> Path:
    """Where the binaries of today's versions lie."""
    return cache() / "_".join(f"{each}-{version(each)}" for each in ("kubernetes", "etcd", "kwok"))


def ensure(*names: str) -> dict[str, Path]:
    """The binaries by name (all, where none is named), built where they are not there yet; raises `Missing`."""
    wanted = names or tuple(RECIPES)
    found = {name: path for name in wanted if (path := _given(name)) is not None}
    lacking = [name for name in wanted if name not in found]
    if any(not (folder() / name).exists() for name in lacking):
        with _alone():
            for name in lacking:
                if not (folder() / name).exists():
                    _build(name)
            _point()
    return found | {name: folder() / name for name in lacking}


def _given(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(assets) / name if assets else None
    return path if path is not None and os.access(path, os.X_OK) else None


@contextmanager
def _alone() -> Iterator[None]:
    """One builder at a time; the others wait, and then find what they came for."""
    folder().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str) -> None:
    go = shutil.which("go")
    if go is None:
        raise Missing(
            f"{name} is built from Go modules, and there is no `go` on the path: "
            "install Go 1.26 or newer, or set KUBEBUILDER_ASSETS to a folder with the binaries"
        )
    recipe = RECIPES[name]
    print(f"building {name} {version(recipe.module)} (once; minutes on a small machine)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder()) as scratch:
        made = Path(scratch) / name
        argv = [go, "build", "-mod=readonly", "-trimpath", "-ldflags", _linked(recipe), "-o", str(made), recipe.package]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
        done = subprocess.run(
            argv, cwd=MODULES / recipe.module, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Missing(f"{name} could not be built:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        made.replace(folder() / name)


def _linked(recipe: Recipe) -> str:
    """Flags of the linker. Without a version of its own an API server takes itself for v0.0.0 and refuses its features."""
    flags = ["-s", "-w"]
    if recipe.module == "kubernetes":
        number = version("kubernetes")
        major, minor, _ = number.split(".")
        facts = {
            "gitVersion": f"v{number}",
            "gitMajor": major,
            "gitMinor": minor,
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
        }
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
            flags += [f"-X {package}.{name}={value}" for name, value in facts.items()]
    return " ".join(flags)


def _point() -> None:
    """Let `bin` point to this folder, without a moment in which it points nowhere."""
    with tempfile.TemporaryDirectory(prefix=".link-", dir=cache()) as scratch:
        link = Path(scratch) / "bin"
        link.symlink_to(folder().name)
        link.replace(cache() / "bin")
