"""The CustomResourceDefinition of EC2NodeClass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.apis import labels
from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, condition, definition
from controller.apis.crds.schemas import (
    INT32,
    INT64,
    Schema,
    anything,
    array,
    boolean,
    default_of,
    fields,
    integer,
    mapping,
    rule,
    string,
)
from controller.apis.karpenter.ec2nodeclass import (
    CUSTOM,
    FAMILY_OF_ALIAS,
    CapacityReservationStatus,
    EC2NodeClassSpec,
    MetadataOptions,
)
from controller.apis.kinds import EC2_NODE_CLASS

_SWITCH = ("enabled", "disabled")
_VOLUME_SIZE = (
    r"^(([1-9][0-9]{0,3}|[1-4][0-9]{4}|5[0-8][0-9]{3}|59000)Gi"
    r"|([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-3][0-9]{3}|64000)G"
    r"|([1-9]|[1-4][0-9]|5[0-8])Ti"
    r"|([1-9]|[1-5][0-9]|6[0-4])T)$"
)


def ec2_node_class() -> dict[str, Any]:
    """Return the CustomResourceDefinition of EC2NodeClass."""
    return definition(
        EC2_NODE_CLASS,
        "Configures the EC2 instances that Joiner launches for NodePools.",
        spec=_spec(),
        status=_status(),
        category="karpenter",
        short_names=["ec2nc", "ec2ncs"],
        columns=[
            Column("Ready", condition("Ready")),
            AGE,
            Column("Role", ".spec.role", wide=True),
        ],
    )


def _spec() -> Schema:
    return fields(
        "The desired configuration of the EC2 instances.",
        required=["amiSelectorTerms", "securityGroupSelectorTerms", "subnetSelectorTerms"],
        amiFamily=string(
            "AMI family: determines the format of the user data and the default block devices. "
            "With Custom, userData alone must join the node to the cluster. Required without an "
            "alias; with an alias it is the alias's family, or Custom.",
            enum=sorted([*FAMILY_OF_ALIAS.values(), CUSTOM]),
        ),
        amiSelectorTerms=_ami_terms(),
        associatePublicIPAddress=boolean(
            "Whether instances get a public IPv4 address. If unset, the subnet's setting applies."
        ),
        blockDeviceMappings=_block_devices(),
        capacityReservationSelectorTerms=_reservation_terms(),
        connectionTracking=_connection_tracking(),
        context=string("Value of the field Context of CreateFleet, which EC2 reserves."),
        cpuOptions=fields(
            "CPU options of the instances.",
            nestedVirtualization=string(
                "Whether the instances can run virtual machines.", enum=_SWITCH
            ),
        ),
        detailedMonitoring=boolean(
            "Whether EC2 sends metrics to CloudWatch every minute (detailed monitoring)."
        ),
        enclaveOptions=fields(
            "AWS Nitro Enclaves.",
            required=["enabled"],
            enabled=boolean(
                "Whether instances are enabled for Nitro Enclaves. If true, Joiner launches only "
                "instance types that support them."
            ),
        ),
        instanceProfile=string(
            "Name of an existing instance profile of the nodes. Mutually exclusive with role.",
            rules=[rule("self != ''", "instanceProfile cannot be empty")],
        ),
        instanceStorePolicy=string(
            "How instance-store disks are used. RAID0 combines them into one array for the state "
            "directories of containerd and the kubelet; the node's ephemeral-storage is its size.",
            enum=["RAID0"],
        ),
        ipPrefixCount=integer(
            "Number of IPv4 prefixes that EC2 assigns to the instance's network interface.",
            form=INT32,
            minimum=0,
        ),
        kubelet=_kubelet(),
        metadataOptions=_metadata_options(),
        networkInterfaces=_network_interfaces(),
        placementGroupSelector=fields(
            "The placement group in which instances are launched.",
            id=_identifier("pg", "ID of the placement group."),
            name=string("Name of the placement group.", minimum=1),
            rules=[
                rule(
                    "has(self.name) || has(self.id)",
                    "expected at least one, got none, ['name', 'id']",
                ),
                rule("!(has(self.name) && has(self.id))", "'name' and 'id' are mutually exclusive"),
            ],
        ),
        role=string(
            "Name of the IAM role of the nodes. The controller uses the instance profile with the "
            "role's name. If there is none, it creates one, which requires that the stack's "
            "setting instanceProfiles is managed. Mutually exclusive with instanceProfile.",
            rules=[rule("self != ''", "role cannot be empty")],
        ),
        securityGroupSelectorTerms=_security_group_terms(),
        subnetSelectorTerms=_subnet_terms(),
        tags=mapping(
            "Tags of the EC2 resources that the controller creates, such as instances, volumes "
            "and launch templates.",
            {"type": "string"},
            rules=_tag_rules(),
        ),
        userData=string(
            "User data of the instances, in the format of the AMI family. Joiner merges into it "
            "what the node needs to join the cluster; Custom passes it on unchanged."
        ),
        rules=[
            rule(
                "has(self.role) != has(self.instanceProfile)",
                "must specify exactly one of ['role', 'instanceProfile']",
            ),
            rule(
                "has(self.amiFamily) || self.amiSelectorTerms.exists(x, has(x.alias))",
                "must specify amiFamily if amiSelectorTerms does not contain an alias",
            ),
            *(_family_of_alias(alias, family) for alias, family in FAMILY_OF_ALIAS.items()),
        ],
    )


def _family_of_alias(alias: str, family: str) -> Schema:
    article = "an" if family.startswith("A") else "a"
    return rule(
        f"!has(self.amiFamily) || self.amiFamily in ['{family}', 'Custom'] || "
        f"self.amiSelectorTerms.all(x, !has(x.alias) || !x.alias.startsWith('{alias}@'))",
        f"if set, amiFamily must be '{family}' or 'Custom' when using {article} {family} alias",
    )


def _identifier(prefix: str, about: str) -> Schema:
    return string(about, pattern=rf"^{prefix}-[0-9a-z]+$")


def _tags() -> Schema:
    return mapping(
        "Tags that the resource must have; the value `*` matches every value of the key.",
        {"type": "string"},
        maximum=20,
        rules=[
            rule(
                "self.all(k, k != '' && self[k] != '')",
                "empty tag keys or values aren't supported",
            )
        ],
    )


def _terms(
    about: str, *, minimum: int | None = None, rules: Sequence[Schema], **properties: Schema
) -> Schema:
    term = fields("A selector term. The fields of a term are ANDed.")
    term["properties"] = properties
    return array(about, term, minimum=minimum, maximum=30, rules=rules)


def _one_of(*names: str) -> Schema:
    return rule(
        "self.all(x, " + " || ".join(f"has(x.{name})" for name in names) + ")",
        f"expected at least one, got none, {list(names)!r}",
    )


def _not_all_with(name: str, others: Sequence[str], among: str) -> Schema:
    # Karpenter refuses a list only if every term violates the rule. A manifest that
    # Karpenter accepts must be accepted here too.
    return _never_with(name, others, among, refused="all")


def _never_with(name: str, others: Sequence[str], among: str, *, refused: str = "exists") -> Schema:
    mixed = " || ".join(f"has(x.{other})" for other in others)
    return rule(
        f"!self.{refused}(x, has(x.{name}) && ({mixed}))",
        f"'{name}' is mutually exclusive, cannot be set {among}",
    )


_OTHER_FIELDS = "with a combination of other fields in"


def _subnet_terms() -> Schema:
    return _terms(
        "Select the subnets in which instances are launched. The terms are ORed.",
        minimum=1,
        id=_identifier("subnet", "ID of the subnet."),
        tags=_tags(),
        rules=[
            _one_of("tags", "id"),
            _not_all_with("id", ["tags"], _OTHER_FIELDS + " a subnet selector term"),
        ],
    )


def _security_group_terms() -> Schema:
    among = _OTHER_FIELDS + " a security group selector term"
    return _terms(
        "Select the security groups of the instances. The terms are ORed.",
        minimum=1,
        id=_identifier("sg", "ID of the security group."),
        name=string("Name of the security group; its tag Name is a different thing."),
        tags=_tags(),
        rules=[
            _one_of("tags", "id", "name"),
            _not_all_with("id", ["tags", "name"], among),
            _not_all_with("name", ["tags", "id"], among),
        ],
    )


def _ami_terms() -> Schema:
    among = _OTHER_FIELDS + " amiSelectorTerms"
    return _terms(
        "Select the AMIs of the instances. The terms are ORed. Of the AMIs that are compatible "
        "with an instance type, the newest is used.",
        minimum=1,
        alias=string(
            "AMI family and version of an EKS optimized AMI, such as al2023@v20240807 or "
            "al2023@latest. With latest, nodes drift when AWS releases a new AMI.",
            maximum=30,
            rules=[
                rule(
                    "self.matches('^[a-zA-Z0-9]+@.+$')",
                    "'alias' is improperly formatted, must match the format 'family@version'",
                ),
                rule(
                    f"self.matches('^({'|'.join(FAMILY_OF_ALIAS)})@')",
                    "family is not supported, must be one of the following: "
                    + ", ".join(map(repr, FAMILY_OF_ALIAS)),
                ),
                rule(
                    "!self.startsWith('windows') || self.endsWith('@latest')",
                    "windows families may only specify version 'latest'",
                ),
            ],
        ),
        id=_identifier("ami", "ID of the AMI."),
        name=string("Name of the AMI; its tag Name is a different thing."),
        owner=string(
            "Owner of the AMI: an account ID, self, amazon or aws-marketplace. If unset, AMIs of "
            "self and amazon are selected."
        ),
        ssmParameter=string("Name or ARN of the SSM parameter that contains the AMI's ID."),
        tags=_tags(),
        rules=[
            _one_of("tags", "id", "name", "alias", "ssmParameter"),
            _never_with("id", ["alias", "tags", "name", "owner"], among),
            _never_with("alias", ["id", "tags", "name", "owner"], among),
            rule(
                "!self.exists(x, has(x.alias)) || size(self) == 1",
                "'alias' is mutually exclusive, cannot be set with a combination of other "
                "amiSelectorTerms",
            ),
        ],
    )


def _reservation_terms() -> Schema:
    return _terms(
        "Select the capacity reservations into which Joiner launches first. The terms are ORed.",
        id=_identifier("cr", "ID of the capacity reservation."),
        instanceMatchCriteria=_match_criteria(),
        ownerID=_reservation_owner(),
        tags=_tags(),
        rules=[
            _one_of("tags", "id", "instanceMatchCriteria"),
            _not_all_with(
                "id",
                ["tags", "instanceMatchCriteria", "ownerID"],
                "along with other fields in a capacity reservation selector term",
            ),
        ],
    )


def _match_criteria() -> Schema:
    return string("How the reservation matches instances.", enum=["open", "targeted"])


def _reservation_owner() -> Schema:
    return string("ID of the account that owns the reservation.", pattern=r"^[0-9]{12}$")


def _block_devices() -> Schema:
    volume = fields(
        "An EBS volume.",
        deleteOnTermination=boolean(
            "Whether EC2 deletes the volume when the instance is terminated."
        ),
        encrypted=boolean("Whether the volume is encrypted."),
        iops=integer("I/O operations per second, for gp3, io1 and io2 volumes.", form=INT64),
        kmsKeyID=string("KMS key that encrypts the volume: key ID, alias or ARN."),
        snapshotID=string("ID of the EBS snapshot from which the volume is created."),
        throughput=integer("Throughput in MiB/s, for gp3 volumes.", form=INT64),
        volumeInitializationRate=integer(
            "Rate in MiB/s at which EBS loads the snapshot's blocks; needs snapshotID.",
            form=INT32,
            minimum=100,
            maximum=300,
        ),
        volumeSize=string("Size of the volume in Gi, G, Ti or T.", pattern=_VOLUME_SIZE),
        volumeType=string(
            "Type of the volume.", enum=["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"]
        ),
        rules=[
            rule(
                "has(self.snapshotID) || has(self.volumeSize)",
                "snapshotID or volumeSize must be defined",
            ),
            rule(
                "!has(self.volumeInitializationRate) || has(self.snapshotID)",
                "snapshotID must be set when volumeInitializationRate is set",
            ),
        ],
    )
    return array(
        "Block devices of the instances. If unset, the defaults of the AMI family apply.",
        fields(
            "A block device.",
            deviceName=string("Name of the device, such as /dev/xvda."),
            ebs=volume,
            rootVolume=boolean(
                "Whether the kubelet's root directory is on this volume; the node's "
                "ephemeral-storage is then its size."
            ),
        ),
        maximum=50,
        rules=[
            rule(
                "self.filter(x, has(x.rootVolume) && x.rootVolume).size() <= 1",
                "must have only one blockDeviceMappings with rootVolume",
            )
        ],
    )


def _metadata_options() -> Schema:
    default: dict[str, Any] = default_of(EC2NodeClassSpec, "metadataOptions")
    return fields(
        "Options of the instance metadata service (IMDS).",
        default=default,
        httpEndpoint=string(
            "Whether the HTTP endpoint is enabled.", enum=_SWITCH, default=default["httpEndpoint"]
        ),
        httpProtocolIPv6=string(
            "Whether the IPv6 endpoint is enabled.",
            enum=_SWITCH,
            default=default_of(MetadataOptions, "httpProtocolIPv6"),
        ),
        httpPutResponseHopLimit=integer(
            "Number of network hops that a response may travel. With 1, pods cannot reach the "
            "service, except those with hostNetwork.",
            form=INT64,
            minimum=1,
            maximum=64,
            default=default["httpPutResponseHopLimit"],
        ),
        httpTokens=string(
            "Whether requests need a session token (IMDSv2).",
            enum=["required", "optional"],
            default=default["httpTokens"],
        ),
    )


def _network_interfaces() -> Schema:
    return array(
        "Network interfaces of the instances. If unset, instances have one.",
        fields(
            "A network interface.",
            required=["networkCardIndex", "deviceIndex", "interfaceType"],
            deviceIndex=integer("Index of the device on its network card.", form=INT32, minimum=0),
            interfaceType=string("Type of the interface.", enum=["interface", "efa-only"]),
            networkCardIndex=integer("Index of the network card.", form=INT32, minimum=0),
        ),
        maximum=150,
        rules=[
            rule(
                "self.size() == 0 || "
                "self.exists(x, x.networkCardIndex == 0 && x.deviceIndex == 0 && "
                "x.interfaceType == 'interface')",
                "networkInterfaces must include a primary interface with interfaceType='interface'",
            ),
            rule(
                "self.all(x, self.exists_one(y, x.networkCardIndex == y.networkCardIndex && "
                "x.deviceIndex == y.deviceIndex) && "
                "(x.interfaceType != 'efa-only' || self.exists_one(y, "
                "y.interfaceType == 'efa-only' && x.networkCardIndex == y.networkCardIndex)))",
                "networkInterfaces must not have duplicate networkCardIndex and deviceIndex "
                "pairs, and can have at most one efa device per network card",
            ),
        ],
    )


def _kubelet() -> Schema:
    # As in Karpenter 1.15, the API server accepts any map. The fields of the kubelet differ between
    # its versions, and the controller knows more of them than a schema could say.
    return mapping(
        "Configuration of the kubelet: fields of KubeletConfiguration v1beta1. With AL2023 any of "
        "them can be set. The other AMI families support clusterDNS (one address), cpuCFSQuota, "
        "evictionHard, evictionMaxPodGracePeriod, evictionSoft, evictionSoftGracePeriod, "
        "imageGCHighThresholdPercent, imageGCLowThresholdPercent, kubeReserved, maxPods, "
        "podsPerCore (not Bottlerocket) and systemReserved. With the feature gate NodeClassCEL, "
        "maxPods and the quantities of kubeReserved and systemReserved may be expressions, such as "
        "`(default_enis - 1) * (ips_per_eni - 1) + 2`. The API server accepts any map; the "
        "controller validates it, and reports errors in the condition ValidationSucceeded.",
        anything(),
    )


def _connection_tracking() -> Schema:
    names = ("tcpEstablishedTimeout", "udpStreamTimeout", "udpTimeout")
    return fields(
        "Idle timeouts of the connection tracking of security groups.",
        tcpEstablishedTimeout=integer(
            "Idle timeout of established TCP connections, in seconds.",
            form=INT32,
            minimum=60,
            maximum=432000,
        ),
        udpStreamTimeout=integer(
            "Idle timeout, in seconds, of UDP flows with more than one request and response.",
            form=INT32,
            minimum=60,
            maximum=180,
        ),
        udpTimeout=integer(
            "Idle timeout, in seconds, of UDP flows with traffic in one direction or with a "
            "single request and response.",
            form=INT32,
            minimum=30,
            maximum=60,
        ),
        rules=[
            rule(
                " || ".join(f"has(self.{name})" for name in names),
                "at least one of tcpEstablishedTimeout, udpStreamTimeout, or udpTimeout "
                "must be set",
            )
        ],
    )


def _tag_rules() -> list[Schema]:
    owned = (
        labels.TAG_CLUSTER_NAME,
        labels.NODEPOOL,
        labels.TAG_NODECLAIM,
        labels.EC2NODECLASS,
    )
    return [
        rule("self.all(k, k != '')", "empty tag keys aren't supported"),
        rule(
            "self.all(k, !k.startsWith('kubernetes.io/cluster'))",
            "tag contains a restricted tag matching kubernetes.io/cluster/",
        ),
        *(
            rule(f"self.all(k, k != '{key}')", f"tag contains a restricted tag matching {key}")
            for key in owned
        ),
    ]


def _status() -> Schema:
    return fields(
        "The resolved state of the EC2NodeClass.",
        amis=array("AMIs that the selector terms match, newest first.", _found_image()),
        capacityReservations=array(
            "Capacity reservations that the selector terms match.", _found_reservation()
        ),
        conditions=fragments.conditions(),
        instanceProfile=string("Name of the instance profile of the nodes."),
        securityGroups=array(
            "Security groups that the selector terms match.",
            fields(
                "A security group.",
                required=["id"],
                id=string("ID of the security group."),
                name=string("Name of the security group."),
            ),
        ),
        subnets=array(
            "Subnets that the selector terms match.",
            fields(
                "A subnet.",
                required=["id", "zone"],
                id=string("ID of the subnet."),
                zone=string("Availability zone of the subnet."),
                zoneID=string("ID of that zone, such as usw2-az1; it is the same in all accounts."),
            ),
        ),
    )


def _found_image() -> Schema:
    return fields(
        "An AMI and the instance types with which it is compatible.",
        required=["id", "requirements"],
        deprecated=boolean("Whether the AMI is deprecated."),
        id=string("ID of the AMI."),
        name=string("Name of the AMI."),
        requirements=array(
            "Requirements on instance types that are compatible with the AMI.",
            fields(
                "A requirement on a label.",
                required=["key", "operator"],
                key=string("Key of the label."),
                operator=string("Relationship of the label's value to the values."),
                values=array("Values of the requirement.", {"type": "string"}, kind="atomic"),
            ),
        ),
    )


def _found_reservation() -> Schema:
    kind = CapacityReservationStatus
    return fields(
        "A capacity reservation.",
        required=["availabilityZone", "id", "instanceMatchCriteria", "instanceType", "ownerID"],
        availabilityZone=string("Availability zone of the reservation."),
        endTime=string(
            "Time at which the reservation expires. If unset, it has no end.", form="date-time"
        ),
        id=_identifier("cr", "ID of the reservation."),
        instanceMatchCriteria=_match_criteria(),
        instanceType=string("Instance type of the reservation."),
        interruptible=boolean("Whether the owner can reclaim the reserved capacity."),
        ownerID=_reservation_owner(),
        reservationType=string(
            "Type of the reservation.",
            enum=["default", "capacity-block"],
            default=default_of(kind, "reservationType"),
        ),
        state=string(
            "State of the reservation; expiring if it is about to end.",
            enum=["active", "expiring"],
            default=default_of(kind, "state"),
        ),
    )
