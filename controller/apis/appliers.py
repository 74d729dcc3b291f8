"""Who applies an object: whatever keeps it as it stands elsewhere, by the mark that it leaves.

Each of them finds its own objects again by its mark, so none is missing. What is applied by
hand bears none, and is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STACK = "joiner.dev/stack"
"""On every NodePool that a stack of Pulumi makes: organization/project/stack."""

_FLUX = {
    "kustomize.toolkit.fluxcd.io": "Flux's Kustomization",
    "helm.toolkit.fluxcd.io": "Flux's HelmRelease",
}
_ARGO_TRACKING = "argocd.argoproj.io/tracking-id"
"""application:group/kind:namespace/name."""

_ARGO_INSTANCE = "argocd.argoproj.io/instance"
_HELM = "meta.helm.sh/release-name"


@dataclass(frozen=True, slots=True)
class Applier:
    """One of them."""

    name: str
    """What it is and what it is called, as a user would look for it."""

    restores: bool
    """Whether it puts back by itself what others change or delete."""


def appliers(labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[Applier]:
    """Return who applies what bears these labels and annotations."""
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
    # Flux installs charts by Helm, which leaves its own mark beside Flux's.
    release = annotations.get(_HELM)
    if release and not any(
        applier.name.startswith(_FLUX["helm.toolkit.fluxcd.io"]) for applier in marked
    ):
        marked.append(Applier(f"Helm's release {release}", restores=False))
    return marked
