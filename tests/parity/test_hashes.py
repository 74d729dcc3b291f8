"""Hashes equal Karpenter's, so that migrating a cluster from or to Karpenter keeps its nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from bench.parity import engines
from controller.apis.karpenter import hashes
from controller.apis.karpenter.ec2nodeclass import FAMILY_OF_ALIAS, EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool

pytestmark = pytest.mark.needs("karpenter")

SEEDS = range(400)
CA = "LS0tLS1CRUdJTi=="

WORDS = ("", "a", "team", "näm€", "a&b<c>", "x" * 70, "two words", "\u2028", '"\\\t\b\x01')
SIZES = ("1Gi", "20Gi", "1024Gi", "1536Gi", "2048Gi", "59000Gi", "58Ti", "1G", "1000G", "1500G")

Maker = Callable[[random.Random], Any]


def test_nodepool_hashes_equal_karpenters() -> None:
    pools = [node_pool(random.Random(seed)) for seed in SEEDS]

    ours = [hashes.node_pool_hash(msgspec.convert(pool, NodePool)) for pool in pools]

    assert_same(pools, ours)


def test_nodeclass_hashes_equal_karpenters() -> None:
    classes = [node_class(random.Random(seed)) for seed in SEEDS]

    ours = [
        hashes.node_class_hash(msgspec.convert(node_class, EC2NodeClass), ca_bundle=CA)
        for node_class in classes
    ]

    assert_same(classes, ours)


def assert_same(objects: Sequence[dict[str, Any]], ours: Sequence[str]) -> None:
    theirs = engines.karpenter_hashes(objects, ca_bundle=CA)
    both = zip(objects, ours, theirs, strict=True)
    assert [(name, our, their) for name, our, their in both if our != their] == []
    assert len(set(theirs)) > len(objects) * 0.9  # or the specs would be too much alike to tell


def some(dice: random.Random, **makers: Maker) -> dict[str, Any]:
    """Draw fields, each with a generated value or left out."""
    return {name: make(dice) for name, make in makers.items() if dice.random() < 0.5}


def of(*values: Any) -> Maker:
    return lambda dice: dice.choice(values)


def listed(make: Maker) -> Maker:
    return lambda dice: [make(dice) for _ in range(dice.choice((0, 1, 2, 3)))]


def mapped(make: Maker) -> Maker:
    return lambda dice: {dice.choice(WORDS): make(dice) for _ in range(dice.choice((0, 1, 2, 3)))}


word, switch, whole = of(*WORDS), of(True, False), of(0, 1, 2, 110, 3000)


def fields(**makers: Maker) -> Maker:
    return lambda dice: some(dice, **makers)


def taint(dice: random.Random) -> dict[str, Any]:
    moments = of("2026-01-02T03:04:05Z", "1999-12-31T23:59:59+02:00", "2026-01-02T03:04:05.5Z")
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    optional = some(dice, value=word, timeAdded=moments)
    return {"key": word(dice), "effect": dice.choice(effects), **optional}


def node_pool(dice: random.Random) -> dict[str, Any]:
    """A pool as the API server has it: what left out takes a default has it."""
    reference = {
        "group": dice.choice(("karpenter.k8s.aws", "eks.amazonaws.com")),
        "kind": dice.choice(("EC2NodeClass", "NodeClass")),
        "name": word(dice),
    }
    spec = {
        "requirements": [{"key": word(dice), "operator": "Exists"}],
        "nodeClassRef": reference,
        "expireAfter": dice.choice(("Never", "0s", "720h", "1h30m", "90m", "5400s", "17520h")),
        **some(
            dice,
            taints=listed(taint),
            startupTaints=listed(taint),
            terminationGracePeriod=of("0s", "1h", "24h", "1h1m1s"),
        ),
    }
    metadata = fields(labels=mapped(word), annotations=mapped(word))
    template = {"spec": spec, **some(dice, metadata=metadata)}
    disruption = {"consolidateAfter": dice.choice(("0s", "1h", "Never"))}
    return {
        "kind": "NodePool",
        "metadata": {"name": "pool"},
        "spec": {
            "template": template,
            "disruption": disruption,
            **some(dice, weight=of(0, 1, 100)),
        },
    }


def node_class(dice: random.Random) -> dict[str, Any]:
    """A class as the API server has it: what left out takes a default has it."""
    volume = fields(
        deleteOnTermination=switch,
        encrypted=switch,
        iops=whole,
        kmsKeyID=word,
        snapshotID=word,
        throughput=whole,
        volumeInitializationRate=whole,
        volumeSize=of(*SIZES),
        volumeType=of("gp3", "io2"),
    )
    device = fields(deviceName=word, ebs=volume, rootVolume=switch)
    settings = fields(
        maxPods=of(0, 110, "vcpus * 10"),
        evictionHard=mapped(of("5%", "100Mi")),
        clusterDNS=listed(word),
        memoryThrottlingFactor=of(0.5, 1.25, 1e-05, 1e-07, 123456789012345680000.0),
        cpuCFSQuota=switch,
        nothing=of(None),
        nested=mapped(fields(b=whole, a=word, c=switch)),
    )
    tracking = fields(tcpEstablishedTimeout=whole, udpStreamTimeout=whole, udpTimeout=whole)
    metadata = {
        "httpEndpoint": dice.choice(("enabled", "disabled")),
        "httpProtocolIPv6": dice.choice(("enabled", "disabled")),
        "httpPutResponseHopLimit": dice.randint(1, 64),
        "httpTokens": dice.choice(("required", "optional")),
    }
    families = tuple(FAMILY_OF_ALIAS.values())
    spec = {
        "subnetSelectorTerms": [{"id": word(dice)}],
        "securityGroupSelectorTerms": [{"id": word(dice)}],
        "amiSelectorTerms": [dice.choice(({"alias": "al2023@latest"}, {"id": "ami-1"}))],
        "metadataOptions": metadata,
        **some(
            dice,
            amiFamily=of(*families, "Custom"),
            associatePublicIPAddress=switch,
            blockDeviceMappings=listed(device),
            capacityReservationSelectorTerms=listed(fields(id=word)),
            connectionTracking=tracking,
            context=word,
            cpuOptions=fields(nestedVirtualization=of("enabled", "disabled")),
            detailedMonitoring=switch,
            instanceProfile=word,
            instanceStorePolicy=of("RAID0"),
            ipPrefixCount=whole,
            kubelet=settings,
            networkInterfaces=listed(network_interface),
            placementGroupSelector=of({"name": "group"}, {"id": "pg-1"}),
            role=word,
            tags=mapped(word),
            userData=word,
        ),
    }
    return {"kind": "EC2NodeClass", "metadata": {"name": "class"}, "spec": spec}


def network_interface(dice: random.Random) -> dict[str, Any]:
    kind = dice.choice(("interface", "efa-only"))
    card, device = dice.randint(0, 2), dice.randint(0, 2)
    return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
