"""Instance profiles, which give a node's IAM role to its EC2 instance.

An EC2NodeClass sets `spec.instanceProfile` or `spec.role`. For a profile, Joiner never calls IAM.
For a role, Joiner uses the profile with the role's name, if it contains the role and is tagged for
this cluster (the Pulumi program creates one). Otherwise Joiner creates a profile for the
EC2NodeClass, which requires `joiner:instanceProfiles: managed`. Without permission to read
profiles, Joiner uses the profile with the role's name, and EC2 refuses the launch if it is wrong.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.aws.errors import ALREADY_EXISTS, AwsError
from controller.aws.nodeclass import nodeclasstags
from controller.aws.selectors import tag_list, tags_of
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

COLLECT_PERIOD = 1800.0
"""Seconds between two garbage collections of unused profiles."""

CACHED_SECONDS = 900.0
"""Seconds for which the state of a profile is cached; a refusal by EC2 ends it earlier."""

DENIED_BACKOFF = 900.0
"""Seconds without calls to IAM after IAM denied access to a profile."""

FIRST_RETRY, LAST_RETRY = 10.0, 300.0
"""Seconds until the next call to IAM if EC2, too, refused the profile.

IAM is asked again because a user may have granted the permissions. The time doubles with each
consecutive denial, from the first value to the second.
"""

HOW_TO_GRANT = "set joiner:instanceProfiles to managed to grant the permissions"
"""How to grant the permissions to manage instance profiles, by a setting of the stack."""

PROTECTED = timedelta(hours=1)
"""Minimum age of a profile that is garbage-collected.

A launch with a newer one may be in progress.
"""


log = logging.getLogger(__name__)


class InstanceProfileError(CloudProviderError):
    """The EC2NodeClass has no usable instance profile; the message says what to change."""

    reason = "InstanceProfileNotReady"


@dataclass
class InstanceProfiles:
    """Finds or creates the instance profiles of EC2NodeClasses."""

    aws: Aws
    cluster_name: str
    installation: str
    isolated: bool = False
    clock: Callable[[], float] = time.monotonic
    _checked: dict[tuple[str, str], float] = field(default_factory=dict)
    _current: dict[str, str] = field(default_factory=dict)
    _denied_until: float = -math.inf
    _denied_at: float = -math.inf
    _denials: int = 0
    """Number of consecutive denials by IAM."""
    _assumed: dict[str, str] = field(default_factory=dict)
    """The profile that was reported as assumed to be valid, by the UID of its EC2NodeClass."""

    async def ensure(self, node_class: EC2NodeClass) -> str:
        """Return the name of the EC2NodeClass's instance profile.

        Raises:
            InstanceProfileError: there is none, and the controller cannot create one.

        """
        name = await self._ensure(node_class)
        if not node_class.spec.instance_profile and not self._lacks_permission:
            self._current[node_class.metadata.uid] = name
        return name

    def remedy(self, node_class: EC2NodeClass) -> str:
        """Return what the user must do if EC2 does not find the EC2NodeClass's profile, or "".

        It is empty if Joiner may read profiles, or if the EC2NodeClass sets the profile.
        """
        if node_class.spec.instance_profile or not self._lacks_permission:
            return ""
        return (
            "the controller isn't authorized to create an instance profile for spec.role: set "
            f"spec.instanceProfile, or {HOW_TO_GRANT}"
        )

    @property
    def _lacks_permission(self) -> bool:
        return self.clock() < self._denied_until

    async def _ensure(self, node_class: EC2NodeClass) -> str:
        spec = node_class.spec
        if spec.instance_profile:
            return spec.instance_profile
        role = (spec.role or "").rpartition("/")[2]
        if not role:
            raise InstanceProfileError(
                "neither spec.role nor spec.instanceProfile is set; set one of them"
            )
        if self.isolated:
            raise InstanceProfileError(
                "IAM cannot be reached with ISOLATED_VPC=true: "
                "set spec.instanceProfile instead of spec.role"
            )
        made = self.name(node_class, role)
        unseen = made if node_class.status.instance_profile == made else role
        if self._lacks_permission:
            return unseen
        try:
            for name in (role, made):
                if await self._is_usable(name, role):
                    return name
        except AwsError as exc:
            if not exc.is_unauthorized:
                raise
            self._assume(node_class, unseen, exc)
            return unseen
        await self._make(node_class, made, role)
        self._checked[made, role] = self.clock()
        return made

    def _assume(self, node_class: EC2NodeClass, profile: str, denial: AwsError) -> None:
        """Assume that a profile that IAM denies access to is valid; report it once per profile."""
        self._denials += 1
        self._denied_at = self.clock()
        self._denied_until = self._denied_at + DENIED_BACKOFF
        if self._assumed.get(node_class.metadata.uid) == profile:
            return
        self._assumed[node_class.metadata.uid] = profile
        log.warning(
            "not authorized to call iam:GetInstanceProfile; assuming that the instance profile "
            "is valid: allow the action in the controller's IAM role",
            extra={
                "EC2NodeClass": node_class.metadata.name,
                "profile": profile,
                "error": str(denial),
            },
        )

    async def _is_usable(self, name: str, role: str) -> bool:
        since = self._checked.get((name, role))
        if since is not None and self.clock() - since < CACHED_SECONDS:
            return True
        try:
            usable = await self._is_valid(name, role)
        except CloudProviderError as exc:
            if since is None:
                raise
            log.warning(
                "iam:GetInstanceProfile failed; keeping the profile's last known state",
                extra={"profile": name, "error": str(exc)},
            )
            usable = True
        if usable:
            self._checked[name, role] = self.clock()
        else:
            self._checked.pop((name, role), None)
        return usable

    def forget(self, node_class: EC2NodeClass) -> None:
        """Drop the cached state of the EC2NodeClass's profile, after EC2 did not find it."""
        self._forget(node_class.status.instance_profile)
        if self._denials:
            # The permissions may have been granted meanwhile.
            retry = min(FIRST_RETRY * 2.0 ** (self._denials - 1), LAST_RETRY)
            self._denied_until = min(self._denied_until, self._denied_at + retry)

    def _forget(self, name: str) -> None:
        self._checked = {pair: at for pair, at in self._checked.items() if pair[0] != name}

    def name(self, node_class: EC2NodeClass, role: str) -> str:
        """Return the name of the profile that Joiner creates for an EC2NodeClass and a role."""
        meta = node_class.metadata
        text = "/".join((self.aws.region, meta.name, meta.uid, role))
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        return f"{self.cluster_name}_{digest}"[:128]

    async def release(self, node_class: EC2NodeClass) -> None:
        """Delete the profiles that Joiner created for an EC2NodeClass, and no others."""
        self._current.pop(node_class.metadata.uid, None)
        self._assumed.pop(node_class.metadata.uid, None)
        if node_class.spec.instance_profile or self.isolated:
            return
        path = self._path(node_class)
        for profile in await self._profiles_under(path):
            if profile["Path"] == path and await self._made_here(profile):
                await self._delete(profile)

    async def collect(self, in_use: Callable[[], Awaitable[Set[str]]]) -> None:
        """Delete this installation's profiles that a change of an EC2NodeClass's role left unused.

        It keeps profiles of EC2NodeClasses that have not been resolved yet, those younger than
        1 hour, and those in use by instances. `in_use` returns the names of the latter.
        """
        if self.isolated or not self._current:
            return
        root = self._root
        listed = await self._profiles_under(root)
        left = [p for p in listed if p["Path"].startswith(root) and self._is_left(p)]
        if not left:
            return
        used = await in_use()
        for profile in left:
            if profile["InstanceProfileName"] not in used and await self._made_here(profile):
                await self._delete(profile)

    async def _profiles_under(self, path: str) -> list[dict[str, Any]]:
        """Return the profiles below a path; none if the controller isn't authorized to list."""
        try:
            return await self.aws.pages(
                "iam", "list_instance_profiles", "InstanceProfiles", PathPrefix=path
            )
        except AwsError as exc:
            if not exc.is_unauthorized:
                raise
            log.warning(
                "not authorized to call iam:ListInstanceProfiles; unused instance profiles are not "
                "deleted: allow the action in the controller's IAM role",
                extra={"path": path, "error": str(exc)},
            )
            return []

    def _is_left(self, profile: Mapping[str, Any]) -> bool:
        current = self._current.get(profile["Path"].removeprefix(self._root).strip("/"))
        age = datetime.now(UTC) - profile["CreateDate"]
        return current not in (None, profile["InstanceProfileName"]) and age > PROTECTED

    async def _made_here(self, profile: Mapping[str, Any]) -> bool:
        """Whether a listed profile still exists and this installation created it."""
        try:
            # list_instance_profiles returns no tags.
            response = await self.aws.call(
                "iam", "get_instance_profile", InstanceProfileName=profile["InstanceProfileName"]
            )
        except AwsError as exc:
            if exc.is_not_found:
                return False
            raise
        made_by = tags_of(response["InstanceProfile"]).get(labels.TAG_INSTALLATION)
        return made_by == self.installation

    @property
    def _root(self) -> str:
        return f"/karpenter/{self.aws.region}/{self.cluster_name}/"

    def _path(self, node_class: EC2NodeClass) -> str:
        return f"{self._root}{node_class.metadata.uid}/"

    async def _is_valid(self, name: str, role: str) -> bool:
        """Whether the profile exists, is tagged for this cluster, and contains only this role."""
        try:
            response = await self.aws.call("iam", "get_instance_profile", InstanceProfileName=name)
        except AwsError as exc:
            if exc.is_not_found:
                self._record_permission()
                return False
            raise
        self._record_permission()
        profile = response["InstanceProfile"]
        tags = tags_of(profile)
        ours = (
            tags.get(labels.tag_cluster_owned(self.cluster_name)) == "owned"
            or tags.get(labels.TAG_CLUSTER_NAME) == self.cluster_name
        )
        return ours and [r["RoleName"] for r in profile.get("Roles", [])] == [role]

    def _record_permission(self) -> None:
        """Record that IAM answered, so that the next denial is reported again."""
        self._denials = 0
        self._assumed.clear()

    async def _make(self, node_class: EC2NodeClass, name: str, role: str) -> None:
        tags = {
            **nodeclasstags.owner_tags(node_class, self.cluster_name, self.installation),
            nodeclasstags.REGION: self.aws.region,
        }
        try:
            await self.aws.call(
                "iam",
                "create_instance_profile",
                InstanceProfileName=name,
                Path=self._path(node_class),
                Tags=tag_list(tags),
            )
        except AwsError as exc:
            if exc.is_unauthorized:
                raise InstanceProfileError(
                    f"there is no instance profile {role} that contains the role {role} and has "
                    f"the tag {labels.tag_cluster_owned(self.cluster_name)}=owned, and the "
                    f"controller isn't authorized to create one: {HOW_TO_GRANT}: {exc}"
                ) from exc
            if exc.code not in ALREADY_EXISTS:
                raise
        await self._add_role(name, role)

    async def _add_role(self, name: str, role: str) -> None:
        try:
            await self.aws.call(
                "iam", "add_role_to_instance_profile", InstanceProfileName=name, RoleName=role
            )
        except AwsError as exc:
            if exc.is_not_found:
                raise InstanceProfileError(
                    f"spec.role: IAM role {role!r} does not exist; create it or correct spec.role"
                ) from exc
            if exc.is_unauthorized:
                raise InstanceProfileError(
                    f"the controller isn't authorized to pass the role {role}; allow "
                    f"iam:PassRole in its IAM role: {exc}"
                ) from exc
            # A profile contains one role at most; an earlier process may have added it.
            if exc.code != "LimitExceeded" or not await self._is_valid(name, role):
                raise

    async def _delete(self, profile: dict[str, Any]) -> None:
        name = profile["InstanceProfileName"]
        self._forget(name)
        for role in profile.get("Roles", []):
            await self._call_if_exists(
                "remove_role_from_instance_profile",
                InstanceProfileName=name,
                RoleName=role["RoleName"],
            )
        await self._call_if_exists("delete_instance_profile", InstanceProfileName=name)

    async def _call_if_exists(self, operation: str, **parameters: str) -> None:
        try:
            await self.aws.call("iam", operation, **parameters)
        except AwsError as exc:
            if not exc.is_not_found:
                raise
