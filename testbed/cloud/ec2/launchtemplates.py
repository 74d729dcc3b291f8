"""Launch templates and their versions."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping
from typing import Any

from testbed.cloud.ec2.kinds import no_such
from testbed.cloud.operations import operation
from testbed.cloud.protocol.errors import AwsError, invalid_value
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.inventory import LaunchTemplate
from testbed.cloud.state.world import World, now

USER_DATA_LIMIT = 16384
"""Largest user data in bytes, before base64 encoding."""


def find(world: World, named: Mapping[str, Any]) -> LaunchTemplate:
    """Return the launch template that a LaunchTemplateId or a LaunchTemplateName names.

    Raises AwsError if both or neither is given, or if the template does not exist.
    """
    identity, name = named.get("LaunchTemplateId"), named.get("LaunchTemplateName")
    if identity and name:
        raise AwsError(
            "InvalidParameterCombination",
            "You may specify a launch template name or ID, but not both.",
        )
    if identity:
        template = world.launch_templates.get(identity)
        if template is None or not world.is_seen(identity):
            raise no_such("lt", identity)
        return template
    if not name:
        raise AwsError("MissingParameter", "A launch template ID or name must be specified.")
    for template in world.launch_templates.values():
        if template.name == name and world.is_seen(template.identity):
            return template
    raise AwsError(
        "InvalidLaunchTemplateName.NotFoundException",
        f"The specified launch template, with template name {name}, does not exist.",
    )


def check_user_data(encoded: str | None) -> None:
    """Raise AwsError if user data is not valid base64 or exceeds the size limit."""
    if not encoded:
        return
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error) as error:
        raise AwsError(
            "InvalidUserData.Malformed", "Invalid BASE64 encoding of user data."
        ) from error
    if len(decoded) > USER_DATA_LIMIT:
        raise invalid_value("User data is limited to 16384 bytes")


def tags_for(specifications: list[Mapping[str, Any]] | None, kind: str) -> dict[str, str]:
    """Return the tags that tag specifications set on one resource type."""
    tags: dict[str, str] = {}
    for specification in specifications or []:
        if specification.get("ResourceType") == kind:
            for tag in specification.get("Tags", []):
                tags[tag["Key"]] = tag.get("Value", "")
    return tags


def as_api(world: World, template: LaunchTemplate) -> dict[str, Any]:
    """Return a launch template as DescribeLaunchTemplates describes it."""
    return {
        "LaunchTemplateId": template.identity,
        "LaunchTemplateName": template.name,
        "CreateTime": template.created,
        "CreatedBy": template.creator,
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": len(template.versions),
        "Tags": world.tag_list(template.identity),
    }


@operation("ec2", "CreateLaunchTemplate")
def create_launch_template(world: World, call: Call) -> Mapping[str, Any]:
    """Create a launch template with its first version."""
    name, data = call.require("LaunchTemplateName"), call.require("LaunchTemplateData")
    check_user_data(data.get("UserData"))
    if any(template.name == name for template in world.launch_templates.values()):
        raise AwsError(
            "InvalidLaunchTemplateName.AlreadyExistsException",
            "Launch template name already in use.",
        )
    call.stop_if_dry_run()
    template = LaunchTemplate(
        identity=f"lt-0{secrets.token_hex(8)}",
        name=name,
        created=now(),
        creator=call.principal,
        versions=[data],
        description=call.get("VersionDescription"),
    )
    world.launch_templates[template.identity] = template
    world.delay_visibility(template.identity)
    world.tag(template.identity, tags_for(call.get("TagSpecifications"), "launch-template"))
    return {"LaunchTemplate": as_api(world, template)}


@operation("ec2", "CreateLaunchTemplateVersion")
def create_launch_template_version(world: World, call: Call) -> Mapping[str, Any]:
    """Add a version to a launch template; the default version stays."""
    template, data = find(world, call.parameters), call.require("LaunchTemplateData")
    check_user_data(data.get("UserData"))
    call.stop_if_dry_run()
    template.versions.append(data)
    return {"LaunchTemplateVersion": _version(template, len(template.versions))}


@operation("ec2", "DeleteLaunchTemplate")
def delete_launch_template(world: World, call: Call) -> Mapping[str, Any]:
    """Delete a template."""
    template = find(world, call.parameters)
    call.stop_if_dry_run()
    answer = {"LaunchTemplate": as_api(world, template)}
    del world.launch_templates[template.identity]
    world.untag(template.identity)
    return answer


@operation("ec2", "DescribeLaunchTemplates")
def describe_launch_templates(world: World, call: Call) -> Mapping[str, Any]:
    """Describe launch templates by ID, name and tag, in pages."""
    call.stop_if_dry_run()
    wanted = [
        *(find(world, {"LaunchTemplateId": i}) for i in call.get("LaunchTemplateIds", [])),
        *(find(world, {"LaunchTemplateName": n}) for n in call.get("LaunchTemplateNames", [])),
    ]
    listed, token = select_page(
        wanted or [t for t in world.launch_templates.values() if world.is_seen(t.identity)],
        call,
        attributes={},
        tags=lambda t: world.tags(t.identity),
        default=200,
    )
    return {"LaunchTemplates": [as_api(world, each) for each in listed], "NextToken": token}


@operation("ec2", "DescribeLaunchTemplateVersions")
def describe_launch_template_versions(world: World, call: Call) -> Mapping[str, Any]:
    """Describe versions of one template, the latest first."""
    call.stop_if_dry_run()
    template = find(world, call.parameters)
    wanted = call.get("Versions") or range(1, len(template.versions) + 1)
    numbers = {template.number(str(each)) for each in wanted}
    return {
        "LaunchTemplateVersions": [_version(template, n) for n in sorted(numbers, reverse=True)]
    }


def _version(template: LaunchTemplate, number: int) -> dict[str, Any]:
    return {
        "LaunchTemplateId": template.identity,
        "LaunchTemplateName": template.name,
        "VersionNumber": number,
        "VersionDescription": template.description,
        "CreateTime": template.created,
        "CreatedBy": template.creator,
        "DefaultVersion": number == 1,
        "LaunchTemplateData": template.versions[number - 1],
    }
