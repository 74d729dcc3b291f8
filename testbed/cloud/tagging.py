"""Resource Groups Tagging API: tagged resources, by ARN.

It covers EC2, SQS and EventBridge, and of EKS clusters, access entries and associations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from testbed.cloud.ec2 import tags
from testbed.cloud.ec2.kinds import kind_of
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.filters import page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World


def _tagged_resources(world: World) -> Iterator[tuple[str, dict[str, str]]]:
    for identity, held in list(backends.ec2(world.region).tags.items()):
        if held and tags.exists(world, identity):
            yield world.arn("ec2", f"{kind_of(identity)}/{identity}"), dict(held)
    for cluster in world.clusters.described.values():
        yield cluster["arn"], cluster["tags"]
    for entry in world.clusters.access_entries.values():
        yield entry["accessEntryArn"], entry["tags"]
    for association in world.clusters.associations.values():
        yield association["associationArn"], association["tags"]
    for queue in list(backends.sqs(world.region).queues.values()):
        yield queue.queue_arn, dict(queue.tags)
    for bus in list(backends.events(world.region).event_buses.values()):
        for rule in list(bus.rules.values()):
            yield rule.arn, {tag["Key"]: tag["Value"] for tag in _rule_tags(world, rule.arn)}


def _rule_tags(world: World, arn: str) -> list[dict[str, str]]:
    tags: list[dict[str, str]] = backends.events(world.region).list_tags_for_resource(arn)["Tags"]
    return tags


@operation("resourcegroupstaggingapi", "GetResources")
def get_resources(world: World, call: Call) -> Mapping[str, Any]:
    """List resources by tag and by type, such as `ec2:instance`.

    IAM resources are not listed. AWS omits only IAM users and roles.
    """
    types = call.get("ResourceTypeFilters", [])
    filters = {item["Key"]: item.get("Values") or [] for item in call.get("TagFilters", [])}

    def is_wanted(arn: str, held: Mapping[str, str]) -> bool:
        service, resource = arn.split(":")[2], arn.split(":", 5)[5]
        kind = f"{service}:{resource.split('/')[0]}"
        if types and not {service, kind} & set(types):
            return False
        return bool(held) and all(
            key in held and (not values or held[key] in values) for key, values in filters.items()
        )

    matching = [each for each in _tagged_resources(world) if is_wanted(*each)]
    size = int(call.get("ResourcesPerPage", 100))
    listed, token = page(matching, call, default=size, token=call.get("PaginationToken"))
    return {
        "PaginationToken": token or "",
        "ResourceTagMappingList": [
            {"ResourceARN": arn, "Tags": [{"Key": k, "Value": v} for k, v in held.items()]}
            for arn, held in listed
        ],
    }
