"""EventBridge: rules and targets, which the SDK still names `cloudwatch`."""

from __future__ import annotations

from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import (
    Resource,
    api_arguments,
    canonical,
    from_tag_list,
    name_of,
    to_tag_list,
)
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

DEFAULT_BUS: Final = "default"


def _on_bus(name: str, bus: str) -> str:
    return name if bus == DEFAULT_BUS else f"{bus}/{name}"


class EventRule(Resource):
    """`aws.cloudwatch.EventRule`."""

    token = "aws:cloudwatch/eventRule:EventRule"
    source = "events/rule.go"
    service = "events"
    is_taggable = True
    automatic_name = "name"
    fixed = ("name", "namePrefix", "eventBusName")
    computed = ("arn",)
    defaults = {"eventBusName": DEFAULT_BUS, "forceDestroy": False}
    documents = ("eventPattern",)

    def create(self, inputs: Bag) -> str:
        name = name_of(inputs)
        self._put(name, inputs, Tags=to_tag_list(inputs.get("tags")))
        return _on_bus(name, inputs["eventBusName"])

    def _put(self, name: str, inputs: Bag, **more: Any) -> None:
        self.api.put_rule(
            Name=name,
            EventBusName=inputs["eventBusName"],
            State=inputs.get("state") or "ENABLED",
            **api_arguments(
                inputs,
                EventPattern="eventPattern",
                ScheduleExpression="scheduleExpression",
                Description="description",
                RoleArn="roleArn",
            ),
            **more,
        )

    def read(self, identity: str, state: Bag) -> Bag | None:
        bus, _, name = identity.rpartition("/")
        rule = self.api.describe_rule(Name=name, EventBusName=bus or DEFAULT_BUS)
        pattern = rule.get("EventPattern")
        tags = self.api.list_tags_for_resource(ResourceARN=rule["Arn"])["Tags"]
        return {
            "arn": rule["Arn"],
            "name": name,
            "eventBusName": bus or DEFAULT_BUS,
            "eventPattern": canonical(pattern) if pattern else None,
            "scheduleExpression": rule.get("ScheduleExpression") or None,
            "state": rule["State"],
            "description": rule.get("Description") or None,
            "roleArn": rule.get("RoleArn") or None,
            "tags": from_tag_list(tags),
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        name = identity.rpartition("/")[2]
        self._put(name, new)
        arn = self.api.describe_rule(Name=name, EventBusName=new["eventBusName"])["Arn"]
        self.retag("resource", old, new, ResourceARN=arn)

    def delete(self, identity: str, state: Bag) -> None:
        bus, _, name = identity.rpartition("/")
        where = {"EventBusName": bus or DEFAULT_BUS}
        if state.get("forceDestroy"):
            targets = targets_of(self.api, name, where["EventBusName"])
            if targets:
                ids = [target["Id"] for target in targets]
                self.api.remove_targets(Rule=name, Ids=ids, **where)
        self.api.delete_rule(Name=name, **where)


def targets_of(api: Any, rule: str, bus: str) -> list[dict[str, Any]]:
    """Return the targets that a rule sends events to."""
    pages = api.get_paginator("list_targets_by_rule").paginate(Rule=rule, EventBusName=bus)
    return [target for page in pages for target in page["Targets"]]


class EventTarget(Resource):
    """`aws.cloudwatch.EventTarget`."""

    token = "aws:cloudwatch/eventTarget:EventTarget"
    source = "events/target.go"
    service = "events"
    automatic_name = "targetId"
    fixed = ("rule", "targetId", "eventBusName")
    exclusive = (("input", "inputPath"),)
    defaults = {"eventBusName": DEFAULT_BUS, "forceDestroy": False}

    def create(self, inputs: Bag) -> str:
        self._put(inputs)
        return _on_bus(f"{inputs['rule']}-{inputs['targetId']}", inputs["eventBusName"])

    def _put(self, inputs: Bag) -> None:
        target = {
            "Id": inputs["targetId"],
            "Arn": inputs["arn"],
            **api_arguments(inputs, Input="input", InputPath="inputPath", RoleArn="roleArn"),
        }
        answer = self.api.put_targets(
            Rule=inputs["rule"], EventBusName=inputs["eventBusName"], Targets=[target]
        )
        for failed in answer.get("FailedEntries") or ():
            raise ProviderError(
                f"creating EventBridge Target ({failed['TargetId']}): {failed['ErrorCode']}: "
                f"{failed.get('ErrorMessage', '')}"
            )

    def read(self, identity: str, state: Bag) -> Bag | None:
        place = state if state.get("rule") else self._find(identity)
        if place is None:
            return None
        for target in targets_of(self.api, place["rule"], place["eventBusName"]):
            if target["Id"] == place["targetId"]:
                return {
                    "rule": place["rule"],
                    "eventBusName": place["eventBusName"],
                    "targetId": target["Id"],
                    "arn": target["Arn"],
                    "input": target.get("Input"),
                    "inputPath": target.get("InputPath"),
                    "roleArn": target.get("RoleArn"),
                }
        return None

    def _find(self, identity: str) -> Bag | None:
        """Return the rule and the target of an import ID, in which both may contain dashes."""
        bus, _, joined = identity.rpartition("/")
        bus = bus or DEFAULT_BUS
        for page in self.api.get_paginator("list_rules").paginate(EventBusName=bus):
            for rule in page["Rules"]:
                if joined.startswith(f"{rule['Name']}-"):
                    target = joined.removeprefix(f"{rule['Name']}-")
                    return {"rule": rule["Name"], "targetId": target, "eventBusName": bus}
        return None

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self._put(new)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.remove_targets(
            Rule=state["rule"], EventBusName=state["eventBusName"], Ids=[state["targetId"]]
        )


RESOURCES: Final = (EventRule, EventTarget)
