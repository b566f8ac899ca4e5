"""Everything in `config/` that follows from the code, as files: what `tools/generate.py` writes and `kubectl apply -k` takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from fairlease.kube.manifests.crd import definitions
from fairlease.kube.manifests.policy import policies
from fairlease.kube.manifests.rbac import roles

NOTE = "# Written by tools/generate.py from the code; `make fix` writes it anew.\n"


def files() -> Iterator[tuple[str, str]]:
    """Path below `config/` and text of each file."""
    folders = {
        "crd": [(name, [each]) for name, each in definitions()],
        "policy": list(policies()),
        "rbac": list(roles()),
    }
    for folder, made in folders.items():
        for name, manifests in made:
            yield f"{folder}/{name}", _text(manifests)
        yield f"{folder}/kustomization.yaml", _kustomization(name for name, _ in made)
    yield "kustomization.yaml", _kustomization(folders)


def _kustomization(resources: Iterable[str]) -> str:
    return _text(
        [{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(resources)}]
    )


class _Dumper(yaml.SafeDumper):
    """Writes lists indented under their key and never refers back to what stands above."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - the signature is PyYAML's
        del indentless
        super().increase_indent(flow=flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _text(manifests: Iterable[Any]) -> str:
    return NOTE + yaml.dump_all(
        manifests, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True, default_flow_style=False
    )
