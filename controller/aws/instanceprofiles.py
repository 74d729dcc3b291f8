"""Instance profiles: the role a machine bears, in the form EC2 takes it.

A class names a profile, or a role. For a profile IAM is never called. For a role, a
profile of the role's own name that carries it and belongs to this cluster is used as it
is (the bundle makes one); otherwise one is made for the class, which takes rights that the
bundle grants when asked to. A controller without them takes the profile of the role's name
at its word: EC2 refuses what is not so.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.apis import labels
from controller.apis.ec2nodeclass import EC2NodeClass
from controller.aws import nodeclasstags
from controller.aws.errors import ALREADY_EXISTS, AwsError
from controller.aws.selectors import tag_list, tags_of
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

COLLECT_PERIOD = 1800.0
"""Seconds between two looks for profiles that nobody uses any more."""

CHECKED = 900.0
"""Seconds for which a profile is taken to be as it was found; EC2 may say otherwise sooner."""

BARRED = 900.0
"""Seconds for which IAM is not asked again after it has refused to show a profile."""

RIGHTS_BY = "set joiner:instanceProfiles to managed for the rights"
"""How a stack grants them."""

PROTECTED = timedelta(hours=1)
"""How long a new profile is left alone: a launch with it may be under way."""


log = logging.getLogger(__name__)


class InstanceProfileError(CloudProviderError):
    """No profile can be had; the message says what to change."""

    reason = "InstanceProfileNotReady"


class InstanceProfiles:
    """Finds the profile for a class, or makes it."""

    def __init__(
        self,
        aws: Aws,
        cluster_name: str,
        *,
        installation: str,
        isolated: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        self._clock = clock
        self._cluster = cluster_name
        self._installation = installation
        self._isolated = isolated
        self._checked: dict[tuple[str, str], float] = {}
        self._current: dict[str, str] = {}
        self._barred_until = -math.inf

    async def ensure(self, node_class: EC2NodeClass) -> str:
        """Return the name of the class's profile.

        Raises:
            InstanceProfileError: there is none and none can be made.

        """
        name = await self._ensured(node_class)
        if not node_class.spec.instance_profile and not self._is_barred:
            self._current[node_class.metadata.uid] = name
        return name

    def lacking(self, node_class: EC2NodeClass) -> str:
        """Say what to do when EC2 knows no profile of the name that a class was given."""
        if node_class.spec.instance_profile or not self._is_barred:
            return ""
        return (
            f"the controller may not make a profile for spec.role: name one in "
            f"spec.instanceProfile, or {RIGHTS_BY}"
        )

    @property
    def _is_barred(self) -> bool:
        return self._clock() < self._barred_until

    async def _ensured(self, node_class: EC2NodeClass) -> str:
        spec = node_class.spec
        if spec.instance_profile:
            return spec.instance_profile
        role = (spec.role or "").rpartition("/")[2]
        if not role:
            raise InstanceProfileError("set spec.role or spec.instanceProfile")
        if self._isolated:
            raise InstanceProfileError(
                "IAM cannot be reached with ISOLATED_VPC=true: "
                "set spec.instanceProfile instead of spec.role"
            )
        made = self.name(node_class, role)
        unseen = made if node_class.status.instance_profile == made else role
        if self._is_barred:
            return unseen
        try:
            for name in (role, made):
                if await self._is_usable(name, role):
                    return name
        except AwsError as exc:
            if not exc.is_unauthorized:
                raise
            self._barred_until = self._clock() + BARRED
            log.warning(
                "taking an instance profile at its word: the controller may not look at it",
                extra={"profile": unseen, "error": str(exc)},
            )
            return unseen
        await self._make(node_class, made, role)
        self._checked[made, role] = self._clock()
        return made

    async def _is_usable(self, name: str, role: str) -> bool:
        since = self._checked.get((name, role))
        if since is not None and self._clock() - since < CHECKED:
            return True
        try:
            usable = await self._carries(name, role)
        except CloudProviderError as exc:
            if since is None:
                raise
            log.warning("keeping an instance profile as it was known", extra={"error": str(exc)})
            usable = True
        if usable:
            self._checked[name, role] = self._clock()
        else:
            self._checked.pop((name, role), None)
        return usable

    def forget(self, node_class: EC2NodeClass) -> None:
        """Look at the class's profile anew next time: EC2 says there is none of its name."""
        self._forget(node_class.status.instance_profile)
        self._barred_until = -math.inf  # The rights may have come since.

    def _forget(self, name: str) -> None:
        self._checked = {pair: at for pair, at in self._checked.items() if pair[0] != name}

    def name(self, node_class: EC2NodeClass, role: str) -> str:
        """Return the name of the profile that is made for a class and a role."""
        meta = node_class.metadata
        text = "/".join((self._aws.region, meta.name, meta.uid, role))
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        return f"{self._cluster}_{digest}"[:128]

    async def release(self, node_class: EC2NodeClass) -> None:
        """Delete the profiles that were made here for a class, and none that were found."""
        self._current.pop(node_class.metadata.uid, None)
        if node_class.spec.instance_profile or self._isolated:
            return
        path = self._path(node_class)
        for profile in await self._under(path):
            if profile["Path"] == path and await self._made_here(profile):
                await self._delete(profile)

    async def collect(self, in_use: Callable[[], Awaitable[Set[str]]]) -> None:
        """Delete what classes have left behind by changing their role.

        Only profiles of classes that have been looked at are judged, and none that is
        younger than an hour or that `in_use`, the names of living instances' profiles, has.
        """
        if self._isolated or not self._current:
            return
        root = self._root
        listed = await self._under(root)
        left = [p for p in listed if p["Path"].startswith(root) and self._is_left(p)]
        if not left:
            return
        used = await in_use()
        for profile in left:
            if profile["InstanceProfileName"] not in used and await self._made_here(profile):
                await self._delete(profile)

    async def _under(self, path: str) -> list[dict[str, Any]]:
        """Return the profiles below a path; none where we may not look, nor could have made one."""
        try:
            return await self._aws.pages(
                "iam", "list_instance_profiles", "InstanceProfiles", PathPrefix=path
            )
        except AwsError as exc:
            if not exc.is_unauthorized:
                raise
            log.warning(
                "not looking for instance profiles to delete: the controller may not list them",
                extra={"path": path, "error": str(exc)},
            )
            return []

    def _is_left(self, profile: Mapping[str, Any]) -> bool:
        current = self._current.get(profile["Path"].removeprefix(self._root).strip("/"))
        age = datetime.now(UTC) - profile["CreateDate"]
        return current not in (None, profile["InstanceProfileName"]) and age > PROTECTED

    async def _made_here(self, profile: Mapping[str, Any]) -> bool:
        """Whether this installation made a profile that was listed, if it is still there."""
        try:
            # Listings leave the tags out.
            answer = await self._aws.call(
                "iam", "get_instance_profile", InstanceProfileName=profile["InstanceProfileName"]
            )
        except AwsError as exc:
            if exc.is_not_found:
                return False
            raise
        made_by = tags_of(answer["InstanceProfile"]).get(labels.TAG_INSTALLATION)
        return made_by == self._installation

    @property
    def _root(self) -> str:
        return f"/karpenter/{self._aws.region}/{self._cluster}/"

    def _path(self, node_class: EC2NodeClass) -> str:
        return f"{self._root}{node_class.metadata.uid}/"

    async def _carries(self, name: str, role: str) -> bool:
        """Whether there is a profile of this name, of our cluster, with this role and no other."""
        try:
            answer = await self._aws.call("iam", "get_instance_profile", InstanceProfileName=name)
        except AwsError as exc:
            if exc.is_not_found:
                return False
            raise
        profile = answer["InstanceProfile"]
        tags = tags_of(profile)
        ours = (
            tags.get(labels.tag_cluster_owned(self._cluster)) == "owned"
            or tags.get(labels.TAG_CLUSTER_NAME) == self._cluster
        )
        return ours and [r["RoleName"] for r in profile.get("Roles", [])] == [role]

    async def _make(self, node_class: EC2NodeClass, name: str, role: str) -> None:
        tags = {
            **nodeclasstags.owned(node_class, self._cluster, self._installation),
            nodeclasstags.REGION: self._aws.region,
        }
        try:
            await self._aws.call(
                "iam",
                "create_instance_profile",
                InstanceProfileName=name,
                Path=self._path(node_class),
                Tags=tag_list(tags),
            )
        except AwsError as exc:
            if exc.is_unauthorized:
                raise InstanceProfileError(
                    f"there is no instance profile named {role} that carries the role {role} and "
                    f"is tagged {labels.tag_cluster_owned(self._cluster)}=owned, and the "
                    f"controller may not make one: {RIGHTS_BY}: {exc}"
                ) from exc
            if exc.code not in ALREADY_EXISTS:
                raise
        await self._add_role(name, role)

    async def _add_role(self, name: str, role: str) -> None:
        try:
            await self._aws.call(
                "iam", "add_role_to_instance_profile", InstanceProfileName=name, RoleName=role
            )
        except AwsError as exc:
            if exc.is_not_found:
                raise InstanceProfileError(f"spec.role names {role}, which does not exist") from exc
            if exc.is_unauthorized:
                raise InstanceProfileError(f"the controller may not pass on {role}: {exc}") from exc
            # A profile takes one role; a process before us may have added it.
            if exc.code != "LimitExceeded" or not await self._carries(name, role):
                raise

    async def _delete(self, profile: dict[str, Any]) -> None:
        name = profile["InstanceProfileName"]
        self._forget(name)
        for role in profile.get("Roles", []):
            await self._ending(
                "remove_role_from_instance_profile",
                InstanceProfileName=name,
                RoleName=role["RoleName"],
            )
        await self._ending("delete_instance_profile", InstanceProfileName=name)

    async def _ending(self, operation: str, **parameters: str) -> None:
        try:
            await self._aws.call("iam", operation, **parameters)
        except AwsError as exc:
            if not exc.is_not_found:
                raise
