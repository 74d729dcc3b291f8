"""The tools that apply an object from a source of their own, identified by the marks they set.

Each tool finds its own objects by its mark, so every object of it has the mark. An object that was
applied by hand has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STACK = "joiner.dev/stack"
"""Annotation of every NodePool that a Pulumi stack creates: organization/project/stack."""

_FLUX = {
    "kustomize.toolkit.fluxcd.io": "Flux's Kustomization",
    "helm.toolkit.fluxcd.io": "Flux's HelmRelease",
}
_ARGO_TRACKING = "argocd.argoproj.io/tracking-id"
"""Format: application:group/kind:namespace/name."""

_ARGO_INSTANCE = "argocd.argoproj.io/instance"
_HELM = "meta.helm.sh/release-name"


@dataclass(frozen=True, slots=True)
class Applier:
    """A tool that applies an object."""

    name: str
    """Type and name of the applying object, as a user would search for it."""

    restores: bool
    """Whether the tool restores what others change or delete."""


def appliers(labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[Applier]:
    """Return the tools that apply an object with these labels and annotations."""
    marked: list[Applier] = []
    if stack := annotations.get(STACK):
        marked.append(Applier(f"Pulumi's stack {stack}", restores=False))
    for group, what in _FLUX.items():
        if name := labels.get(f"{group}/name"):
            namespace = labels.get(f"{group}/namespace", "")
            marked.append(Applier(f"{what} {namespace}/{name}", restores=True))
    application = annotations.get(_ARGO_TRACKING, "").partition(":")[0]
    if application := application or labels.get(_ARGO_INSTANCE, ""):
        marked.append(Applier(f"Argo CD's Application {application}", restores=True))
    # Flux installs charts with Helm, whose mark is then set beside that of Flux.
    release = annotations.get(_HELM)
    if release and not any(
        applier.name.startswith(_FLUX["helm.toolkit.fluxcd.io"]) for applier in marked
    ):
        marked.append(Applier(f"Helm's release {release}", restores=False))
    return marked
