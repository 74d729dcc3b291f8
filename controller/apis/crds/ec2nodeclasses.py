"""The schema of EC2NodeClasses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.apis import labels
from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, condition, definition
from controller.apis.crds.schemas import (
    INT32,
    INT64,
    QUANTITY,
    Schema,
    array,
    boolean,
    default_of,
    fields,
    int_or_string,
    integer,
    mapping,
    rule,
    string,
)
from controller.apis.ec2nodeclass import (
    CUSTOM,
    EVICTION_SIGNALS,
    FAMILY_OF_ALIAS,
    RESERVABLE,
    CapacityReservationStatus,
    EC2NodeClassSpec,
    MetadataOptions,
)
from controller.apis.kinds import EC2_NODE_CLASS

_ALIAS_FAMILIES = "|".join(FAMILY_OF_ALIAS)
_SWITCH = ("enabled", "disabled")
_VOLUME_SIZE = (
    r"^(([1-9][0-9]{0,3}|[1-4][0-9]{4}|5[0-8][0-9]{3}|59000)Gi"
    r"|([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-3][0-9]{3}|64000)G"
    r"|([1-9]|[1-4][0-9]|5[0-8])Ti"
    r"|([1-9]|[1-5][0-9]|6[0-4])T)$"
)


def ec2_node_class() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return definition(
        EC2_NODE_CLASS,
        "Says how EC2 instances are made.",
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
        "What the user asks for.",
        required=["amiSelectorTerms", "securityGroupSelectorTerms", "subnetSelectorTerms"],
        amiFamily=string(
            "How instances are made to join: the family of the image, or Custom to leave all of "
            "it to userData. Follows from the alias where there is one.",
            enum=sorted([*FAMILY_OF_ALIAS.values(), CUSTOM]),
        ),
        amiSelectorTerms=_ami_terms(),
        associatePublicIPAddress=boolean(
            "Whether instances get a public address; left out, the subnet decides."
        ),
        blockDeviceMappings=_block_devices(),
        capacityReservationSelectorTerms=_reservation_terms(),
        connectionTracking=_connection_tracking(),
        context=string("Passed on to EC2 as the fleet's context; reserved to AWS's uses."),
        cpuOptions=fields(
            "Processor features.",
            nestedVirtualization=string("Virtual machines on the instance.", enum=_SWITCH),
        ),
        detailedMonitoring=boolean("Whether CloudWatch gets figures every minute."),
        enclaveOptions=fields(
            "Nitro Enclaves.",
            required=["enabled"],
            enabled=boolean(
                "Whether instances can make enclaves; then only types that support them serve."
            ),
        ),
        instanceProfile=string(
            "The instance profile of the nodes, where one exists already.",
            rules=[rule("self != ''", "instanceProfile may not be empty")],
        ),
        instanceStorePolicy=string(
            "What becomes of local disks: RAID0 joins them and puts pods' storage on them.",
            enum=["RAID0"],
        ),
        ipPrefixCount=integer(
            "How many IPv4 prefixes each instance gets from the start.", form=INT32, minimum=0
        ),
        kubelet=_kubelet(),
        metadataOptions=_metadata_options(),
        networkInterfaces=_network_interfaces(),
        placementGroupSelector=fields(
            "The placement group that instances start in.",
            id=_identifier("pg", "Its id."),
            name=string("Its name.", minimum=1),
            rules=[
                rule("has(self.id) != has(self.name)", "set either id or name of a placement group")
            ],
        ),
        role=string(
            "The IAM role of the nodes; the controller makes the instance profile.",
            rules=[rule("self != ''", "role may not be empty")],
        ),
        securityGroupSelectorTerms=_security_group_terms(),
        subnetSelectorTerms=_subnet_terms(),
        tags=mapping("Tags of everything that is made.", {"type": "string"}, rules=_tag_rules()),
        userData=string("What the instance runs when it starts, merged into what joining needs."),
        rules=[
            rule(
                "has(self.role) != has(self.instanceProfile)",
                "set exactly one of role and instanceProfile",
            ),
            rule(
                "has(self.amiFamily) || self.amiSelectorTerms.exists(x, has(x.alias))",
                "set amiFamily, or an alias in amiSelectorTerms that says the family",
            ),
            rule(
                "!has(self.amiFamily) || self.amiFamily == 'Custom' || "
                "self.amiSelectorTerms.all(x, !has(x.alias) || "
                "x.alias.startsWith(self.amiFamily.lowerAscii() + '@'))",
                "amiFamily must be the family of the alias, or Custom",
            ),
        ],
    )


def _identifier(prefix: str, about: str) -> Schema:
    return string(about, pattern=rf"^{prefix}-[0-9a-z]+$")


def _tags() -> Schema:
    return mapping(
        "Tags it must have; the value `*` asks for the key alone.",
        {"type": "string"},
        maximum=20,
        rules=[
            rule(
                "self.all(k, k != '' && self[k] != '')",
                "tags with an empty key or value say nothing",
            )
        ],
    )


def _terms(
    about: str, *, minimum: int | None = None, rules: Sequence[Schema], **properties: Schema
) -> Schema:
    term = fields("One way to find them; the parts of a term must all hold.")
    term["properties"] = properties
    return array(about, term, minimum=minimum, maximum=30, rules=rules)


def _one_of(subject: str, names: Sequence[str]) -> Schema:
    return rule(
        "self.all(x, " + " || ".join(f"has(x.{name})" for name in names) + ")",
        f"each term of {subject} needs one of " + ", ".join(names),
    )


def _not_all_with(name: str, others: Sequence[str]) -> Schema:
    # Karpenter refuses a list only when every term is at fault; a manifest that it
    # takes must be taken here too.
    mixed = " || ".join(f"has(x.{other})" for other in others)
    return rule(
        f"!self.all(x, has(x.{name}) && ({mixed}))",
        f"{name} already says which one: do not combine it with " + ", ".join(others),
    )


def _never_with(name: str, others: Sequence[str]) -> Schema:
    mixed = " || ".join(f"has(x.{other})" for other in others)
    return rule(
        f"!self.exists(x, has(x.{name}) && ({mixed}))",
        f"{name} already says which one: do not combine it with " + ", ".join(others),
    )


def _subnet_terms() -> Schema:
    return _terms(
        "The subnets that instances start in; what any term finds counts.",
        minimum=1,
        id=_identifier("subnet", "The subnet's id."),
        tags=_tags(),
        rules=[_one_of("subnetSelectorTerms", ["tags", "id"]), _not_all_with("id", ["tags"])],
    )


def _security_group_terms() -> Schema:
    return _terms(
        "The security groups of the instances; what any term finds counts.",
        minimum=1,
        id=_identifier("sg", "The group's id."),
        name=string("The group's name (not its Name tag)."),
        tags=_tags(),
        rules=[
            _one_of("securityGroupSelectorTerms", ["tags", "id", "name"]),
            _not_all_with("id", ["tags", "name"]),
            _not_all_with("name", ["tags", "id"]),
        ],
    )


def _ami_terms() -> Schema:
    return _terms(
        "The images that instances run; what any term finds counts, the newest first.",
        minimum=1,
        alias=string(
            "A family and a version of EKS's own images, such as al2023@latest.",
            maximum=30,
            rules=[
                rule(
                    f"self.matches('^({_ALIAS_FAMILIES})@.+$')",
                    "an alias is family@version, the family one of "
                    + _ALIAS_FAMILIES.replace("|", ", "),
                ),
                rule(
                    "!self.startsWith('windows') || self.endsWith('@latest')",
                    "Windows images come in version latest only",
                ),
            ],
        ),
        id=_identifier("ami", "The image's id."),
        name=string("The image's name."),
        owner=string(
            "The account that owns the image, as id or alias; self and amazon by default."
        ),
        ssmParameter=string("The SSM parameter that holds the image's id."),
        tags=_tags(),
        rules=[
            _one_of("amiSelectorTerms", ["tags", "id", "name", "alias", "ssmParameter"]),
            _never_with("id", ["alias", "tags", "name", "owner"]),
            _never_with("alias", ["id", "tags", "name", "owner"]),
            rule(
                "!self.exists(x, has(x.alias)) || size(self) == 1",
                "an alias stands alone in amiSelectorTerms",
            ),
        ],
    )


def _reservation_terms() -> Schema:
    return _terms(
        "The capacity reservations that are used up first; what any term finds counts.",
        id=_identifier("cr", "The reservation's id."),
        instanceMatchCriteria=string("Its way of matching.", enum=["open", "targeted"]),
        ownerID=string("The account that owns it.", pattern=r"^[0-9]{12}$"),
        tags=_tags(),
        rules=[
            _one_of("capacityReservationSelectorTerms", ["tags", "id", "instanceMatchCriteria"]),
            _not_all_with("id", ["tags", "instanceMatchCriteria", "ownerID"]),
        ],
    )


def _block_devices() -> Schema:
    volume = fields(
        "An EBS volume.",
        deleteOnTermination=boolean("Whether it goes with the instance."),
        encrypted=boolean("Whether it is encrypted."),
        iops=integer("Operations per second.", form=INT64),
        kmsKeyID=string("The key it is encrypted with."),
        snapshotID=string("The snapshot it is made from."),
        throughput=integer("MiB per second.", form=INT64),
        volumeInitializationRate=integer(
            "MiB per second at which the snapshot is loaded.",
            form=INT32,
            minimum=100,
            maximum=300,
        ),
        volumeSize=string("Its size, such as 100Gi.", pattern=_VOLUME_SIZE),
        volumeType=string("Its type.", enum=["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"]),
        rules=[
            rule(
                "has(self.snapshotID) || has(self.volumeSize)",
                "a volume needs a volumeSize or a snapshotID",
            ),
            rule(
                "!has(self.volumeInitializationRate) || has(self.snapshotID)",
                "volumeInitializationRate needs a snapshotID to load from",
            ),
        ],
    )
    return array(
        "The volumes of an instance; left out, those of its image.",
        fields(
            "A device name and what is behind it.",
            deviceName=string("The device, such as /dev/xvda."),
            ebs=volume,
            rootVolume=boolean(
                "Whether the kubelet's and containers' storage is on it; its size is what pods get."
            ),
        ),
        maximum=50,
        rules=[
            rule(
                "self.filter(x, has(x.rootVolume) && x.rootVolume).size() <= 1",
                "only one volume can be the root volume",
            )
        ],
    )


def _metadata_options() -> Schema:
    default: dict[str, Any] = default_of(EC2NodeClassSpec, "metadataOptions")
    return fields(
        "The instance metadata service.",
        default=default,
        httpEndpoint=string("Whether there is one.", enum=_SWITCH, default=default["httpEndpoint"]),
        httpProtocolIPv6=string(
            "Whether it answers on IPv6.",
            enum=_SWITCH,
            default=default_of(MetadataOptions, "httpProtocolIPv6"),
        ),
        httpPutResponseHopLimit=integer(
            "How many hops an answer may travel; 1 keeps it from pods.",
            form=INT64,
            minimum=1,
            maximum=64,
            default=default["httpPutResponseHopLimit"],
        ),
        httpTokens=string(
            "Whether a session token is needed.",
            enum=["required", "optional"],
            default=default["httpTokens"],
        ),
    )


def _network_interfaces() -> Schema:
    return array(
        "The network interfaces of an instance; left out, one.",
        fields(
            "One interface.",
            required=["networkCardIndex", "deviceIndex", "interfaceType"],
            deviceIndex=integer("Its place among the card's devices.", form=INT32, minimum=0),
            interfaceType=string("What it carries.", enum=["interface", "efa-only"]),
            networkCardIndex=integer("Its network card.", form=INT32, minimum=0),
        ),
        maximum=150,
        rules=[
            rule(
                "self.exists(x, x.networkCardIndex == 0 && x.deviceIndex == 0 && "
                "x.interfaceType == 'interface')",
                "card 0, device 0 must be there, and of type interface",
            ),
            rule(
                "self.all(x, self.exists_one(y, x.networkCardIndex == y.networkCardIndex && "
                "x.deviceIndex == y.deviceIndex))",
                "each pair of card and device may be used once",
            ),
            rule(
                "self.all(x, x.interfaceType != 'efa-only' || self.exists_one(y, "
                "y.interfaceType == 'efa-only' && x.networkCardIndex == y.networkCardIndex))",
                "a card takes one efa-only interface",
            ),
        ],
    )


def _kubelet() -> Schema:
    return fields(
        "Settings of the kubelet, as in its own configuration file. Those that Joiner reads are "
        "checked here, all others by the controller.",
        others=True,
        clusterDNS=array("Addresses of the cluster's DNS.", {"type": "string"}),
        cpuCFSQuota=boolean("Whether CPU limits of containers are enforced."),
        evictionHard=_thresholds("evictionHard", "Below these pods go at once."),
        evictionMaxPodGracePeriod=integer(
            "The longest that a pod may take to end when it is evicted softly, in seconds.",
            form=INT32,
        ),
        evictionSoft=_thresholds("evictionSoft", "Below these pods go after a while."),
        evictionSoftGracePeriod=_named(
            "evictionSoftGracePeriod", "How long that while is.", {"type": "string"}
        ),
        imageGCHighThresholdPercent=_percent("Above it images that nobody uses are removed."),
        imageGCLowThresholdPercent=_percent("Below it no image is removed."),
        kubeReserved=_reserved("kubeReserved", "What is kept back for the kubelet."),
        maxPods=_count(
            "The most pods on a node; with the gate NodeClassCEL an expression, such as "
            "`(default_enis - 1) * (ips_per_eni - 1) + 2`."
        ),
        podsPerCore=_count("The most pods for each core."),
        systemReserved=_reserved("systemReserved", "What is kept back for the system."),
        rules=[
            rule(
                "!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent)"
                " || self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent",
                "imageGCHighThresholdPercent must be above imageGCLowThresholdPercent",
            ),
            *(
                rule(
                    f"!has(self.{signals}) || self.{signals}.all(k, "
                    f"has(self.{named}) && k in self.{named})",
                    f"{named} must name the signals of {signals}",
                )
                for signals, named in (
                    ("evictionSoft", "evictionSoftGracePeriod"),
                    ("evictionSoftGracePeriod", "evictionSoft"),
                )
            ),
        ],
    )


def _count(about: str) -> Schema:
    # Text is let through for the controller to judge, as it is by Karpenter 1.15.
    return int_or_string(about, minimum=0, maximum=2**31 - 1)


def _percent(about: str) -> Schema:
    return integer(about, form=INT32, minimum=0, maximum=100)


def _thresholds(name: str, about: str) -> Schema:
    percent = r"(\d{1,2}(\.\d{1,2})?|100(\.0{1,2})?)%"
    return _named(name, about, {"type": "string", "pattern": rf"^({percent}|{QUANTITY})$"})


def _named(name: str, about: str, values: Schema) -> Schema:
    return _keyed(name, about, values, EVICTION_SIGNALS)


def _reserved(name: str, about: str) -> Schema:
    # With the gate NodeClassCEL an amount may be an expression: the controller tells them apart.
    amounts = {"type": "string"}
    negative = rule(
        "self.all(k, !self[k].startsWith('-'))", f"amounts of {name} may not be negative"
    )
    return _keyed(name, about, amounts, RESERVABLE, negative)


def _keyed(name: str, about: str, values: Schema, allowed: Sequence[str], *rules: Schema) -> Schema:
    keys = ", ".join(f"'{key}'" for key in allowed)
    known = rule(f"self.all(k, k in [{keys}])", f"keys of {name} are " + ", ".join(allowed))
    return mapping(about, values, rules=[known, *rules])


def _connection_tracking() -> Schema:
    names = ("tcpEstablishedTimeout", "udpStreamTimeout", "udpTimeout")
    return fields(
        "How long idle connections are remembered, in seconds.",
        tcpEstablishedTimeout=integer(
            "Established TCP connections.", form=INT32, minimum=60, maximum=432000
        ),
        udpStreamTimeout=integer(
            "UDP flows that have seen more than one request.", form=INT32, minimum=60, maximum=180
        ),
        udpTimeout=integer("UDP flows in one direction.", form=INT32, minimum=30, maximum=60),
        rules=[
            rule(
                " || ".join(f"has(self.{name})" for name in names),
                "connectionTracking needs one of " + ", ".join(names),
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
        rule("self.all(k, k != '')", "a tag's key may not be empty"),
        rule(
            "self.all(k, !k.startsWith('kubernetes.io/cluster'))",
            "tags under kubernetes.io/cluster are set by the controller",
        ),
        *(
            rule(f"self.all(k, k != '{key}')", f"the tag {key} is set by the controller")
            for key in owned
        ),
    ]


def _status() -> Schema:
    return fields(
        "What the controller found.",
        amis=array("Images, newest first.", _found_image()),
        capacityReservations=array("Capacity reservations.", _found_reservation()),
        conditions=fragments.conditions(),
        instanceProfile=string("The instance profile of the nodes."),
        securityGroups=array(
            "Security groups.",
            fields(
                "A security group.",
                required=["id"],
                id=string("Its id."),
                name=string("Its name."),
            ),
        ),
        subnets=array(
            "Subnets.",
            fields(
                "A subnet.",
                required=["id", "zone"],
                id=string("Its id."),
                zone=string("Its availability zone."),
                zoneID=string("The zone's id, which means the same in every account."),
            ),
        ),
    )


def _found_image() -> Schema:
    return fields(
        "An image and the instance types it serves.",
        required=["id", "requirements"],
        deprecated=boolean("Whether its owner has deprecated it."),
        id=string("Its id."),
        name=string("Its name."),
        requirements=array(
            "Which instance types it serves.",
            fields(
                "One term over a label.",
                required=["key", "operator"],
                key=string("The label."),
                operator=string("How the label's value relates to the values."),
                values=array("The values.", {"type": "string"}, kind="atomic"),
            ),
        ),
    )


def _found_reservation() -> Schema:
    kind = CapacityReservationStatus
    return fields(
        "A capacity reservation.",
        required=["availabilityZone", "id", "instanceMatchCriteria", "instanceType", "ownerID"],
        availabilityZone=string("Its availability zone."),
        endTime=string("When it ends, if it does.", form="date-time"),
        id=_identifier("cr", "Its id."),
        instanceMatchCriteria=string("Its way of matching.", enum=["open", "targeted"]),
        instanceType=string("The instance type it holds."),
        interruptible=boolean("Whether its owner may take it back."),
        ownerID=string("The account that owns it.", pattern=r"^[0-9]{12}$"),
        reservationType=string(
            "What was bought.",
            enum=["default", "capacity-block"],
            default=default_of(kind, "reservationType"),
        ),
        state=string(
            "Whether it is about to end.",
            enum=["active", "expiring"],
            default=default_of(kind, "state"),
        ),
    )
