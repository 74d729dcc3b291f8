"""Where the volumes of pods are reachable, and which driver attaches them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.oracle.nodeinfos import ZONE, NodeInfo
from tests.oracle.rules import Object, key_of, node_term

EBS = "ebs.csi.aws.com"
UNSTATED_ATTACHMENTS = 25
"""The EBS volumes of a node whose instance type states none: 27 attachments that the root volume
and a second network interface share."""


class Volumes:
    """Where the volumes of pods are reachable, and which driver attaches them."""

    def __init__(self, world: Object) -> None:
        """Read the claims, volumes and classes."""
        self._claims = {key_of(claim): claim for claim in world.get("persistentVolumeClaims", [])}
        self._volumes = {
            volume["metadata"]["name"]: volume for volume in world.get("persistentVolumes", [])
        }
        self._classes = {
            storage_class["metadata"]["name"]: storage_class
            for storage_class in world.get("storageClasses", [])
        }

    def claims(self, pod: Object) -> Iterator[tuple[str, Object]]:
        """Yield the name and the claim of each volume.

        An ephemeral volume has the claim of its template.
        """
        namespace = pod["metadata"].get("namespace", "default")
        for volume in pod["spec"].get("volumes") or []:
            if "persistentVolumeClaim" in volume:
                name = f"{namespace}/{volume['persistentVolumeClaim']['claimName']}"
                yield name, self._claims.get(name, {"spec": {}})
            elif "ephemeral" in volume:
                name = f"{namespace}/{pod['metadata']['name']}-{volume['name']}"
                made = self._claims.get(name, {"spec": {}})
                is_bound = bool(made["spec"].get("volumeName"))
                yield name, made if is_bound else volume["ephemeral"]["volumeClaimTemplate"]

    def reachable(self, pod: Object, node_info: NodeInfo) -> bool:
        """Whether every volume of the pod exists, or can be provisioned, where the node is."""
        return all(self._reachable(claim, node_info) for _, claim in self.claims(pod))

    def _reachable(self, claim: Object, node_info: NodeInfo) -> bool:
        if bound := claim["spec"].get("volumeName"):
            return _attaches(self._volumes[bound], node_info)
        storage_class = self._class(claim)
        if storage_class.get("provisioner") == "kubernetes.io/no-provisioner":
            return any(
                _attaches(volume, node_info)
                for volume in self._volumes.values()
                if volume.get("status", {}).get("phase") == "Available"
                and volume["spec"]["storageClassName"] == storage_class["metadata"]["name"]
            )
        terms = storage_class.get("allowedTopologies") or []
        return not terms or any(
            all(
                node_info.labels.get(expression["key"]) in expression["values"]
                for expression in term["matchLabelExpressions"]
            )
            for term in terms
        )

    def attached(self, pod: Object) -> set[tuple[str, str]]:
        """Return the driver and the identity of each volume that the pod attaches."""
        drivers = set()
        for name, claim in self.claims(pod):
            if bound := claim["spec"].get("volumeName"):
                driver = self._volumes[bound]["spec"].get("csi", {}).get("driver", "")
            else:
                driver = self._class(claim).get("provisioner", "")
            drivers.add((driver, name))
        return drivers

    def _class(self, claim: Object) -> Object:
        storage_class: Object = self._classes.get(claim["spec"].get("storageClassName", ""), {})
        return storage_class


def _attaches(volume: Object, node_info: NodeInfo) -> bool:
    """Whether node affinity and zone label of a volume admit the node."""
    required = volume["spec"].get("nodeAffinity", {}).get("required")
    zones = volume["metadata"].get("labels", {}).get(ZONE)
    if zones is not None and node_info.labels.get(ZONE) not in zones.split("__"):
        return False
    return required is None or any(
        node_term(term, node_info.labels, node_info.name) for term in required["nodeSelectorTerms"]
    )
