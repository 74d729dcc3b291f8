"""The nodes on which a CSI driver has storage for a new volume, by its CSIStorageCapacities."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from controller.apis import labels
from controller.apis.kubernetes.pods import PersistentVolumeClaimSpec
from controller.apis.kubernetes.quantities import parse
from controller.apis.kubernetes.taints import Requirement
from controller.apis.kubernetes.workloads import CSIStorageCapacity
from controller.constraints import requirements
from controller.constraints.requirements import ValueSet, value_set
from controller.scheduling.pods.staticvolumes import requested_size


def nodes_with_storage(
    spec: PersistentVolumeClaimSpec,
    capacities: Sequence[CSIStorageCapacity],
    initialized: Collection[str],
) -> Iterator[dict[str, ValueSet]]:
    """Yield requirements, of which a node must meet one to have storage for a claim.

    `capacities` are those of the claim's StorageClass, `initialized` the names of the initialized
    nodes. A driver publishes the storage of a node some time after it starts there. So a node that
    is new or starts has storage, unless the storage of its zone is published and does not suffice.

    Raises:
        ValueError: a quantity or a selector is malformed.

    """
    size = requested_size(spec)
    if not size:
        yield {}
        return
    unknown = {labels.HOSTNAME: value_set("NotIn", sorted(initialized))}
    for capacity in capacities:
        topology = capacity.node_topology
        if topology is None:
            continue
        terms = requirements.of_labels(topology.match_labels)
        expressions = requirements.read(
            Requirement(key=one.key, operator=one.operator, values=one.values)
            for one in topology.match_expressions
        )
        limit = capacity.maximum_volume_size or capacity.capacity
        if limit is not None and parse(limit) >= size:
            yield requirements.conjunction(terms, expressions)
        if len(topology.match_labels) == 1 and not expressions:
            ((key, value),) = topology.match_labels.items()
            if labels.normalize(key) in labels.WELL_KNOWN:
                requirements.narrow(unknown, labels.normalize(key), value_set("NotIn", [value]))
    yield unknown
