"""IAM: roles, policies, instance profiles, identity providers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import (
    Function,
    Resource,
    api_arguments,
    canonical,
    from_tag_list,
    name_of,
    to_tag_list,
)
from testbed.plugins.awsprovider.session import Session, unless_gone
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

POLICY_VERSIONS: Final = 5  # IAM refuses another version of a policy that has this many


class IamResource(Resource):
    """An IAM resource; IAM is global, so it has no region."""

    service = "iam"
    is_regional = False


class Role(IamResource):
    """`aws.iam.Role`."""

    token = "aws:iam/role:Role"
    source = "iam/role.go"
    is_taggable = True
    automatic_name = "name"
    fixed = ("name", "namePrefix", "path")
    computed = ("arn", "uniqueId", "createDate", "managedPolicyArns")
    defaults = {"forceDetachPolicies": False, "maxSessionDuration": 3600, "path": "/"}
    documents = ("assumeRolePolicy",)

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_role(
            RoleName=name_of(inputs),
            AssumeRolePolicyDocument=inputs["assumeRolePolicy"],
            Tags=to_tag_list(inputs.get("tags")),
            **api_arguments(
                inputs,
                Path="path",
                Description="description",
                MaxSessionDuration="maxSessionDuration",
                PermissionsBoundary="permissionsBoundary",
            ),
        )
        return str(answer["Role"]["RoleName"])

    def complete(self, identity: str, inputs: Bag) -> None:
        for arn in inputs.get("managedPolicyArns") or []:
            self.api.attach_role_policy(RoleName=identity, PolicyArn=arn)

    def read(self, identity: str, state: Bag) -> Bag | None:
        role = role_properties(self.api.get_role(RoleName=identity)["Role"])
        # Those of other resources, too: a refresh after the first `up` shows them as a change.
        return {**role, "managedPolicyArns": sorted(self._attachments(identity))}

    def _attachments(self, identity: str) -> list[str]:
        """Return the managed policies of the role."""
        pages = self.api.get_paginator("list_attached_role_policies").paginate(RoleName=identity)
        return [policy["PolicyArn"] for page in pages for policy in page["AttachedPolicies"]]

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        if old.get("assumeRolePolicy") != new["assumeRolePolicy"]:
            self.api.update_assume_role_policy(
                RoleName=identity, PolicyDocument=new["assumeRolePolicy"]
            )
        self.api.update_role(
            RoleName=identity,
            Description=new.get("description") or "",
            MaxSessionDuration=new["maxSessionDuration"],
        )
        self._change_boundary(identity, old, new)
        self._change_attachments(identity, old, new)
        self.retag("role", old, new, RoleName=identity)

    def _change_boundary(self, identity: str, old: Bag, new: Bag) -> None:
        boundary = new.get("permissionsBoundary")
        if boundary == old.get("permissionsBoundary"):
            return
        if boundary:
            self.api.put_role_permissions_boundary(RoleName=identity, PermissionsBoundary=boundary)
        else:
            self.api.delete_role_permissions_boundary(RoleName=identity)

    def _change_attachments(self, identity: str, old: Bag, new: Bag) -> None:
        before, after = old.get("managedPolicyArns") or [], new.get("managedPolicyArns") or []
        for arn in sorted(set(before) - set(after)):
            self.api.detach_role_policy(RoleName=identity, PolicyArn=arn)
        for arn in sorted(set(after) - set(before)):
            self.api.attach_role_policy(RoleName=identity, PolicyArn=arn)

    def delete(self, identity: str, state: Bag) -> None:
        holding = self.api.list_instance_profiles_for_role(RoleName=identity)["InstanceProfiles"]
        for name in [profile["InstanceProfileName"] for profile in holding]:
            self.api.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=identity)
        attached = []
        if state.get("forceDetachPolicies") or state.get("managedPolicyArns"):
            attached = self._attachments(identity)  # those of others, too
        if state.get("forceDetachPolicies"):
            pages = self.api.get_paginator("list_role_policies").paginate(RoleName=identity)
            for name in [name for page in pages for name in page["PolicyNames"]]:
                self.api.delete_role_policy(RoleName=identity, PolicyName=name)
        for arn in attached:
            self.api.detach_role_policy(RoleName=identity, PolicyArn=arn)
        self.api.delete_role(RoleName=identity)


def role_properties(role: Mapping[str, Any]) -> Bag:
    """Return a role of IAM's answers as the properties of `aws.iam.Role`."""
    return {
        "arn": role["Arn"],
        "name": role["RoleName"],
        "path": role["Path"],
        "uniqueId": role["RoleId"],
        "createDate": role["CreateDate"].isoformat(),
        "assumeRolePolicy": canonical(json.dumps(role["AssumeRolePolicyDocument"])),
        "maxSessionDuration": role.get("MaxSessionDuration", 3600),
        "description": role.get("Description") or None,
        "permissionsBoundary": (role.get("PermissionsBoundary") or {}).get(
            "PermissionsBoundaryArn"
        ),
        "tags": from_tag_list(role.get("Tags")),
    }


class Policy(IamResource):
    """`aws.iam.Policy`."""

    token = "aws:iam/policy:Policy"
    source = "iam/policy.go"
    is_taggable = True
    automatic_name = "name"
    name_limit = 128
    fixed = ("name", "namePrefix", "path", "description")
    computed = ("arn", "policyId", "attachmentCount")
    defaults = {"path": "/"}
    documents = ("policy",)

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_policy(
            PolicyName=name_of(inputs),
            PolicyDocument=inputs["policy"],
            Tags=to_tag_list(inputs.get("tags")),
            **api_arguments(inputs, Path="path", Description="description"),
        )
        return str(answer["Policy"]["Arn"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        policy = self.api.get_policy(PolicyArn=identity)["Policy"]
        version = self.api.get_policy_version(
            PolicyArn=identity, VersionId=policy["DefaultVersionId"]
        )["PolicyVersion"]
        return {
            "arn": identity,
            "name": policy["PolicyName"],
            "path": policy["Path"],
            "policyId": policy["PolicyId"],
            "attachmentCount": policy.get("AttachmentCount", 0),
            "description": policy.get("Description") or None,
            "policy": canonical(json.dumps(version["Document"])),
            "tags": from_tag_list(policy.get("Tags")),
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        if old.get("policy") != new["policy"]:
            self._delete_oldest_version(identity)
            self.api.create_policy_version(
                PolicyArn=identity, PolicyDocument=new["policy"], SetAsDefault=True
            )
        self.retag("policy", old, new, PolicyArn=identity)

    def _versions(self, identity: str) -> list[Any]:
        pages = self.api.get_paginator("list_policy_versions").paginate(PolicyArn=identity)
        return [version for page in pages for version in page["Versions"]]

    def _delete_oldest_version(self, identity: str) -> None:
        versions = self._versions(identity)
        if len(versions) >= POLICY_VERSIONS:
            spare = (version for version in versions if not version["IsDefaultVersion"])
            oldest = min(spare, key=lambda version: version["CreateDate"])
            self.api.delete_policy_version(PolicyArn=identity, VersionId=oldest["VersionId"])

    def delete(self, identity: str, state: Bag) -> None:
        for version in self._versions(identity):
            if not version["IsDefaultVersion"]:
                self.api.delete_policy_version(PolicyArn=identity, VersionId=version["VersionId"])
        self.api.delete_policy(PolicyArn=identity)


class RolePolicy(IamResource):
    """`aws.iam.RolePolicy`: an inline policy of a role."""

    token = "aws:iam/rolePolicy:RolePolicy"
    source = "iam/role_policy.go"
    automatic_name = "name"
    name_limit = 128
    fixed = ("name", "namePrefix", "role")
    documents = ("policy",)

    def create(self, inputs: Bag) -> str:
        identity = f"{inputs['role']}:{name_of(inputs)}"
        self._put(identity, inputs)
        return identity

    def _put(self, identity: str, inputs: Bag) -> None:
        role, name = identity.split(":", 1)
        self.api.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=inputs["policy"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        role, name = identity.split(":", 1)
        answer = self.api.get_role_policy(RoleName=role, PolicyName=name)
        document = canonical(json.dumps(answer["PolicyDocument"]))
        return {"role": role, "name": name, "policy": document}

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self._put(identity, new)

    def delete(self, identity: str, state: Bag) -> None:
        role, name = identity.split(":", 1)
        self.api.delete_role_policy(RoleName=role, PolicyName=name)


class RolePolicyAttachment(IamResource):
    """`aws.iam.RolePolicyAttachment`."""

    token = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
    source = "iam/role_policy_attachment.go"
    fixed = ("role", "policyArn")

    def create(self, inputs: Bag) -> str:
        self.api.attach_role_policy(RoleName=inputs["role"], PolicyArn=inputs["policyArn"])
        return f"{inputs['role']}/{inputs['policyArn']}"

    def read(self, identity: str, state: Bag) -> Bag | None:
        role, arn = identity.split("/", 1)
        pages = self.api.get_paginator("list_attached_role_policies").paginate(RoleName=role)
        attached = {policy["PolicyArn"] for page in pages for policy in page["AttachedPolicies"]}
        return {"role": role, "policyArn": arn} if arn in attached else None

    def delete(self, identity: str, state: Bag) -> None:
        role, arn = identity.split("/", 1)
        self.api.detach_role_policy(RoleName=role, PolicyArn=arn)


class InstanceProfile(IamResource):
    """`aws.iam.InstanceProfile`."""

    token = "aws:iam/instanceProfile:InstanceProfile"
    source = "iam/instance_profile.go"
    is_taggable = True
    automatic_name = "name"
    name_limit = 128
    fixed = ("name", "namePrefix", "path")
    computed = ("arn", "uniqueId", "createDate")
    defaults = {"path": "/"}

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_instance_profile(
            InstanceProfileName=name_of(inputs),
            Path=inputs["path"],
            Tags=to_tag_list(inputs.get("tags")),
        )
        return str(answer["InstanceProfile"]["InstanceProfileName"])

    def complete(self, identity: str, inputs: Bag) -> None:
        if inputs.get("role"):
            self._add(identity, inputs["role"])

    def _add(self, identity: str, role: str) -> None:
        self.api.add_role_to_instance_profile(InstanceProfileName=identity, RoleName=role)

    def _remove(self, identity: str, role: str) -> None:
        self.api.remove_role_from_instance_profile(InstanceProfileName=identity, RoleName=role)

    def _roles(self, profile: Mapping[str, Any]) -> list[str]:
        return [role["RoleName"] for role in profile["Roles"]]

    def _get(self, identity: str) -> Mapping[str, Any]:
        answer = self.api.get_instance_profile(InstanceProfileName=identity)
        profile: Mapping[str, Any] = answer["InstanceProfile"]
        return profile

    def read(self, identity: str, state: Bag) -> Bag | None:
        profile = self._get(identity)
        for role in self._roles(profile):
            self._require(identity, role)
        return {
            "arn": profile["Arn"],
            "name": identity,
            "path": profile["Path"],
            "uniqueId": profile["InstanceProfileId"],
            "createDate": profile["CreateDate"].isoformat(),
            "role": next(iter(self._roles(profile)), None),
            "tags": from_tag_list(profile.get("Tags")),
        }

    def _require(self, identity: str, role: str) -> None:
        """Check that a role of the profile exists; remove it from the profile if it does not."""
        try:
            self.api.get_role(RoleName=role)
        except self.api.exceptions.NoSuchEntityException as error:
            self._remove(identity, role)
            raise ProviderError(
                f"reading IAM Role ({role}) attached to IAM Instance Profile ({identity}): {error}"
            ) from error

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        live = self._roles(self._get(identity))
        wanted = [new["role"]] if new.get("role") else []
        for role in live:
            if role not in wanted:
                self._remove(identity, role)
        for role in wanted:
            if role not in live:
                self._add(identity, role)
        self.retag("instance_profile", old, new, InstanceProfileName=identity)

    def delete(self, identity: str, state: Bag) -> None:
        if state.get("role"):
            unless_gone(lambda: self._remove(identity, state["role"]))
        self.api.delete_instance_profile(InstanceProfileName=identity)


class OpenIdConnectProvider(IamResource):
    """`aws.iam.OpenIdConnectProvider`."""

    token = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"
    source = "iam/openid_connect_provider.go"
    is_taggable = True
    fixed = ("url",)
    computed = ("arn", "thumbprintLists")

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_open_id_connect_provider(
            Url=inputs["url"],
            ClientIDList=inputs.get("clientIdLists") or [],
            ThumbprintList=inputs.get("thumbprintLists") or [],
            Tags=to_tag_list(inputs.get("tags")),
        )
        return str(answer["OpenIDConnectProviderArn"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        provider = open_id_connect_provider(self.api, identity)
        if _without_scheme(state.get("url", "")) == provider["url"]:
            provider["url"] = state["url"]  # IAM does not keep the URL's scheme
        return provider

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        before, after = set(old.get("clientIdLists") or []), set(new.get("clientIdLists") or [])
        for client in sorted(after - before):
            self.api.add_client_id_to_open_id_connect_provider(
                OpenIDConnectProviderArn=identity, ClientID=client
            )
        for client in sorted(before - after):
            self.api.remove_client_id_from_open_id_connect_provider(
                OpenIDConnectProviderArn=identity, ClientID=client
            )
        if new.get("thumbprintLists") and new["thumbprintLists"] != old.get("thumbprintLists"):
            self.api.update_open_id_connect_provider_thumbprint(
                OpenIDConnectProviderArn=identity, ThumbprintList=new["thumbprintLists"]
            )
        self.retag("open_id_connect_provider", old, new, OpenIDConnectProviderArn=identity)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_open_id_connect_provider(OpenIDConnectProviderArn=identity)


def _without_scheme(url: str) -> str:
    return url.removeprefix("https://")


def open_id_connect_provider(api: Any, arn: str) -> Bag:
    """Return an identity provider as the properties of `aws.iam.OpenIdConnectProvider`."""
    answer = api.get_open_id_connect_provider(OpenIDConnectProviderArn=arn)
    return {
        "arn": arn,
        "url": answer["Url"],
        "clientIdLists": answer.get("ClientIDList") or [],
        "thumbprintLists": answer.get("ThumbprintList") or [],
        "tags": from_tag_list(answer.get("Tags")),
    }


def get_role(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.iam.get_role`."""
    role = role_properties(session.client("iam").get_role(RoleName=arguments["name"])["Role"])
    return {
        **role,
        "id": role["name"],
        "description": role["description"] or "",
        "permissionsBoundary": role["permissionsBoundary"] or "",
        "roleLastUseds": [],
    }


RESOURCES: Final = (
    InstanceProfile,
    OpenIdConnectProvider,
    Policy,
    Role,
    RolePolicy,
    RolePolicyAttachment,
)
FUNCTIONS: Final[Mapping[str, Function]] = {"aws:iam/getRole:getRole": get_role}
