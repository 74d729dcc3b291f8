"""The tools that apply an object, identified by the labels and annotations that they set.

Each tool finds its own objects by a label or annotation, so every object that it applies has one.
An object that a user applied by hand has none.
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
    """The tool, and kind and name of what applies the object, such as `Helm's release web`."""

    restores: bool
    """Whether the tool reverts changes and deletions by others."""


def appliers(labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[Applier]:
    """Return the tools that apply an object with these labels and annotations."""
    found: list[Applier] = []
    if stack := annotations.get(STACK):
        found.append(Applier(f"Pulumi's stack {stack}", restores=False))
    for group, kind in _FLUX.items():
        if name := labels.get(f"{group}/name"):
            namespace = labels.get(f"{group}/namespace", "")
            found.append(Applier(f"{kind} {namespace}/{name}", restores=True))
    application = annotations.get(_ARGO_TRACKING, "").partition(":")[0]
    if application := application or labels.get(_ARGO_INSTANCE, ""):
        found.append(Applier(f"Argo CD's Application {application}", restores=True))
    # Flux installs charts with Helm, so objects of a HelmRelease have Helm's annotation too.
    release = annotations.get(_HELM)
    if release and not any(
        applier.name.startswith(_FLUX["helm.toolkit.fluxcd.io"]) for applier in found
    ):
        found.append(Applier(f"Helm's release {release}", restores=False))
    return found
