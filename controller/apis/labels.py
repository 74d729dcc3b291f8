"""Names of labels, annotations, taints, finalizers and tags; Joiner's own are in `joiner.dev`."""

from __future__ import annotations

GROUP = "karpenter.sh"
AWS_GROUP = "karpenter.k8s.aws"

# Labels of Kubernetes.
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
ZONE_ID = "topology.k8s.aws/zone-id"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
HOSTNAME = "kubernetes.io/hostname"
WINDOWS_BUILD = "node.kubernetes.io/windows-build"

# Labels of Karpenter.
NODEPOOL = "karpenter.sh/nodepool"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
REGISTERED = "karpenter.sh/registered"
INITIALIZED = "karpenter.sh/initialized"
DO_NOT_SYNC_TAINTS = "karpenter.sh/do-not-sync-taints"
EC2NODECLASS = "karpenter.k8s.aws/ec2nodeclass"

LIFECYCLE = {REGISTERED: "true", INITIALIZED: "true"}
"""The labels that Joiner sets on every node while it starts. No NodeClaim has them."""

ON_DEMAND = "on-demand"
SPOT = "spot"
RESERVED = "reserved"

RESERVATION_ID = f"{AWS_GROUP}/capacity-reservation-id"
RESERVATION_TYPE = f"{AWS_GROUP}/capacity-reservation-type"
RESERVATION_INTERRUPTIBLE = f"{AWS_GROUP}/capacity-reservation-interruptible"
RESERVATION_LABELS = (RESERVATION_ID, RESERVATION_TYPE, RESERVATION_INTERRUPTIBLE)

PLACEMENT_GROUP_ID = f"{AWS_GROUP}/placement-group-id"
PLACEMENT_GROUP_PARTITION = f"{AWS_GROUP}/placement-group-partition"
"""The partition of the placement group in which the instance runs.

On a NodeClaim it is empty until EC2 has returned the partition.
"""

WELL_KNOWN_CORE = frozenset(
    {NODEPOOL, ZONE, REGION, INSTANCE_TYPE, ARCH, OS, CAPACITY_TYPE, WINDOWS_BUILD}
)
_AWS_NAMES = (
    "instance-hypervisor",
    "instance-encryption-in-transit-supported",
    "nitro-sandbox",
    "instance-category",
    "instance-capability-flex",
    "instance-family",
    "instance-generation",
    "instance-size",
    "instance-local-nvme",
    "instance-cpu",
    "instance-cpu-manufacturer",
    "instance-cpu-sustained-clock-speed-mhz",
    "instance-memory",
    "instance-ebs-bandwidth",
    "instance-network-bandwidth",
    "instance-gpu-name",
    "instance-gpu-manufacturer",
    "instance-gpu-count",
    "instance-gpu-memory",
    "instance-accelerator-name",
    "instance-accelerator-manufacturer",
    "instance-accelerator-count",
    "instance-tenancy",
    "capacity-reservation-id",
    "capacity-reservation-type",
    "capacity-reservation-interruptible",
    "placement-group-id",
    "placement-group-partition",
)
WELL_KNOWN_AWS = frozenset({f"{AWS_GROUP}/{name}" for name in _AWS_NAMES} | {ZONE_ID})
WELL_KNOWN = WELL_KNOWN_CORE | WELL_KNOWN_AWS
"""Label keys that a NodeClaim may leave undefined: the cloud provider sets them at launch."""

RESTRICTED_DOMAINS = (GROUP, AWS_GROUP)

ALIASES = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
    "beta.kubernetes.io/arch": ARCH,
    "beta.kubernetes.io/os": OS,
    "beta.kubernetes.io/instance-type": INSTANCE_TYPE,
    "topology.ebs.csi.aws.com/zone": ZONE,
}
"""Deprecated label names and their current ones; every reader normalizes them."""

# Annotations.
DO_NOT_REPAIR = "karpenter.sh/do-not-repair"
REBOOT_PRE_BOOT_ID = "karpenter.sh/reboot-pre-boot-id"
REBOOT_TERMINATION_GRACE_PERIOD = "karpenter.sh/reboot-termination-grace-period"
REBOOTED_AT = "joiner.dev/rebooted-at"
"""On a NodeClaim: the times at which its node was rebooted for repair, separated by commas."""

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""On a PersistentVolumeClaim: its volume is bound to it, too."""

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""On a PersistentVolumeClaim: the node for which its volume is created."""

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
EVICTION_PRICE = "joiner.dev/eviction-price"
PREFERENCE_PRICE = "joiner.dev/preference-price"
NODE_PRICE_PER_HOUR = "joiner.dev/node-price-per-hour"
"""On a NodePool: the fee per node in $/h, in place of the setting NODE_PRICE_PER_HOUR."""

FAST_IMAGE_PULL = "joiner.dev/fast-image-pull"
"""On the template of a NodePool: `true` lets its nodes pull image layers in parallel."""

IMAGE_SNAPSHOT = "joiner.dev/image-snapshot"
"""On the template of a NodePool: the EBS snapshot with the container images of its nodes."""

SURGE = "joiner.dev/surge"
SURGED_FOR = "joiner.dev/surged-for"
REPLACES = "joiner.dev/replaces"
DISRUPTION_MODE = "joiner.dev/disruption-mode"
APPROVED = "joiner.dev/approved"
RETRY = "joiner.dev/retry"
SHARED_LAUNCH = "joiner.dev/shared-launch"
"""On an instance: the ClientToken of the CreateFleet call that launched it with others."""

ADOPT = "joiner.dev/adopt"
"""On a NodeClaim whose instance another controller launched: `true` lets Joiner manage it.

Joiner writes `false` if it found the NodeClaim while it was leader, and does not manage it.
"""

OWN_INSTANCE = "joiner.dev/instance"
"""On a NodeClaim: provider ID of the instance to which its `joiner.dev/installation` applies.

If two controllers launch for one NodeClaim, its status may name the other's instance.
"""

GANG = "joiner.dev/gang"
"""On a NodeClaim: the gangs for which it was created, `namespace/name`, separated by commas."""

NODEPOOL_HASH = "karpenter.sh/nodepool-hash"
NODEPOOL_HASH_VERSION = "karpenter.sh/nodepool-hash-version"
TERMINATION_TIMESTAMP = "karpenter.sh/nodeclaim-termination-timestamp"
PRICE_OVERLAY_APPLIED = "karpenter.sh/price-overlay-applied"
CAPACITY_OVERLAY_APPLIED = "karpenter.sh/capacity-overlay-applied"
BUFFER_POD = "karpenter.sh/capacity-buffer-fake-pod"
BUFFER_NAME = "karpenter.sh/capacity-buffer-name"
BUFFER_NAMESPACE = "karpenter.sh/capacity-buffer-namespace"
REQUESTED_DRA_DRIVERS = "karpenter.sh/requested-dra-drivers"
NVIDIA_CONSUMABLE_CAPACITY = "karpenter.k8s.aws/nvidia-consumable-capacity"
"""On an EC2NodeClass: the setting `consumableShares` of the NVIDIA DRA driver on its nodes."""

MIN_VALUES_RELAXED = "karpenter.sh/nodeclaim-min-values-relaxed"
NODECLASS_HASH = "karpenter.k8s.aws/ec2nodeclass-hash"
NODECLASS_HASH_VERSION = "karpenter.k8s.aws/ec2nodeclass-hash-version"
INSTANCE_PROFILE_NAME = "karpenter.k8s.aws/instance-profile-name"
TAGGED = "karpenter.k8s.aws/tagged"
CLUSTER_NAME_TAGGED = "compatibility.karpenter.k8s.aws/cluster-name-tagged"
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
"""Label of the coscheduling plugin of kube-scheduler: name of the pod's PodGroup."""

KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"
"""Annotation of Kueue on the pods of an admitted job: name of its Workload."""

KUEUE_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
DISRUPTION_COST = "karpenter.sh/disruption-cost"

# Taints.
REBOOTING_TAINT = "karpenter.sh/rebooting"
DISRUPTED_TAINT = "karpenter.sh/disrupted"
UNREGISTERED_TAINT = "karpenter.sh/unregistered"
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
UNINITIALIZED_TAINT = "node.cloudprovider.kubernetes.io/uninitialized"
READINESS_TAINT_PREFIX = "readiness.k8s.io/"

NOMINATING_TAINT = "joiner.dev/nominating"
"""A taint of Joiner on new nodes that were launched together, until their pods are nominated."""

EXCLUDE_FROM_LOAD_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"

# Finalizers.
TERMINATION_FINALIZER = "karpenter.sh/termination"
NODECLASS_FINALIZER = "karpenter.k8s.aws/termination"

# EC2 tags.
TAG_CLUSTER_NAME = "eks:eks-cluster-name"
TAG_NODECLAIM = "karpenter.sh/nodeclaim"
TAG_DISCOVERY = "karpenter.sh/discovery"
TAG_INSTALLATION = "joiner.dev/installation"
"""A tag of Joiner: the installation (a deployment of Joiner) that created a resource.

Karpenter's tags do not distinguish installations. As an annotation of a NodeClaim: the installation
that launched or adopted its instance.
"""


def tag_cluster_owned(cluster_name: str) -> str:
    """Return the key of the tag that marks a resource as owned by a cluster."""
    return f"kubernetes.io/cluster/{cluster_name}"


def normalize(key: str) -> str:
    """Return the current name of a deprecated label key; other keys are returned unchanged."""
    return ALIASES.get(key, key)
