"""Typed client of the test cloud's control API, for tests and the demo."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

T = TypeVar("T")


class ControlError(RuntimeError):
    """The control API refused a request; the message gives the reason."""


class InstanceView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An instance as the test cloud's control API describes it."""

    instance_id: str
    state: str
    reboots: int
    instance_type: str
    architecture: str
    zone: str
    zone_id: str
    subnet_id: str
    security_group_ids: list[str]
    image_id: str
    image_name: str
    private_ip: str
    private_dns_name: str
    user_data: str
    role_arn: str | None
    capacity_type: str
    price: float
    """Price in $/h."""

    tags: Mapping[str, str]
    revision: int


class Instances(msgspec.Struct, frozen=True):
    """Every instance that EC2 still describes, and the revision of the last change."""

    revision: int
    instances: tuple[InstanceView, ...]


@dataclass(frozen=True, slots=True)
class CloudControl:
    """Client of the control API at a URL. Every method raises ControlError if refused."""

    url: str

    def instances(self, *, since: int | None = None, timeout: float = 0.0) -> Instances:
        """Return the instances; with `since`, wait up to `timeout` seconds for a later revision."""
        query = {} if since is None else {"since": since, "timeout": timeout}
        return self._get("instances", Instances, query, timeout=timeout)

    def order_fault(
        self,
        *,
        service: str = ".*",
        action: str = ".*",
        code: str | None = None,
        message: str | None = None,
        status: int = 400,
        times: int | None = 1,
        delay: float = 0.0,
        principal: str | None = None,
        after: bool = False,
    ) -> None:
        """Make the next matching calls fail, answer with a delay, or lose their answer.

        Args:
            service: Regular expression of the services that the fault matches.
            action: Regular expression of the operations that the fault matches.
            code: The AWS error code to return, or None to return no error.
            message: The error message.
            status: The HTTP status of the error.
            times: Number of calls that the fault affects; None is every call.
            delay: Seconds to wait before the answer.
            principal: A part of the ARNs of the callers that the fault matches; None is every
                caller.
            after: Whether the call takes effect before its answer is late or lost.

        """
        self._send(
            "POST",
            "faults",
            {
                "service": service,
                "action": action,
                "code": code,
                "message": message,
                "status": status,
                "times": times,
                "delay": delay,
                "principal": principal,
                "after": after,
            },
        )

    def clear_faults(self) -> None:
        """Remove every fault that is still active."""
        self._send("DELETE", "faults", None)

    def set_capacity(
        self,
        *,
        capacity_type: str,
        available: int | None,
        instance_type: str = "*",
        zone: str = "*",
        code: str | None = None,
        message: str | None = None,
    ) -> None:
        """Limit the instances that EC2 can still launch; None removes the limit.

        EC2 refuses more with `code` and `message`, by default those of insufficient capacity.

        The limit applies to each pair of a matching instance type and zone; `*` matches all.
        `capacity_type` is `spot` or `on-demand`.
        """
        content = {
            "capacityType": capacity_type,
            "instanceType": instance_type,
            "zone": zone,
            "available": available,
            "code": code,
            "message": message,
        }
        self._send("POST", "capacity", content)

    def set_free_addresses(self, subnet_id: str, free: int) -> None:
        """Set the number of free IP addresses of a subnet."""
        self._send("POST", "addresses", {"subnetId": subnet_id, "free": free})

    def interrupt(
        self, instance_id: str, *, kind: str = "spot", delay_seconds: float | None = None
    ) -> None:
        """Send a notice about an instance: `spot`, `rebalance`, `reservation`, `maintenance`.

        `delay_seconds` is the time from a spot or reservation notice to the termination; None is
        the region's setting.
        """
        content = {"instanceId": instance_id, "kind": kind, "delaySeconds": delay_seconds}
        self._send("POST", "interrupt", content)

    def impair(
        self,
        instance_id: str,
        *,
        instance: bool = False,
        system: bool = False,
        since_seconds: float = 0.0,
        event_code: str | None = None,
    ) -> None:
        """Set the impairments of an instance, in place of its earlier ones.

        `instance` and `system` fail that status check, since `since_seconds` ago. `event_code`
        schedules an event with that code for tomorrow. Without any of them, the instance is
        healthy.
        """
        content = {
            "instanceId": instance_id,
            "instance": instance,
            "system": system,
            "sinceSeconds": since_seconds,
            "eventCode": event_code,
        }
        self._send("POST", "impair", content)

    def change_settings(self, **seconds: float) -> None:
        """Change delays, in seconds; the names are those of `world.Settings`."""
        self._send("POST", "settings", seconds)

    def limit_pages(self, largest: int | None) -> None:
        """Set the largest page size of list operations; None leaves it to the caller."""
        self._send("POST", "pages", {"largest": largest})

    def set_authentication_mode(self, mode: str) -> None:
        """Set the cluster's authentication mode, in any direction.

        EKS itself only allows changes towards `API`; tests use this for an older cluster.
        """
        self._send("POST", "authentication-mode", {"mode": mode})

    def publish_images(self, release: str) -> list[str]:
        """Publish a new AL2023 release as the recommended one, and return its image IDs."""
        return msgspec.json.decode(
            self._send("POST", "images", {"release": release}), type=list[str]
        )

    def shift_zone(self, zone_id: str, *, active: bool = True) -> None:
        """Start or end a zonal shift away from a zone."""
        self._send("POST", "zonal-shift", {"zoneId": zone_id, "active": active})

    def access_entries(self) -> list[dict[str, Any]]:
        """Return the access entries that grant access.

        Each has clusterName, principalArn, type, username and kubernetesGroups.
        """
        return self._get("access-entries", list[dict[str, Any]])

    def pod_identity_associations(self) -> list[dict[str, Any]]:
        """Return each association: clusterName, namespace, serviceAccount, roleArn, isSeen."""
        return self._get("pod-identity-associations", list[dict[str, Any]])

    def price(self, *, instance_type: str, zone: str, capacity_type: str) -> float:
        """Return the price of an offering in $/h. Raises ControlError if it is not offered."""
        query = {"type": instance_type, "zone": zone, "capacityType": capacity_type}
        return self._get("price", float, query)

    def calls(self) -> dict[str, dict[str, int]]:
        """Return the number of calls by principal, then by `service:Operation`."""
        return self._get("calls", dict[str, dict[str, int]])

    def clear_calls(self) -> None:
        """Reset the counts of calls, the denials, the rights and the unimplemented calls."""
        self._send("DELETE", "calls", None)

    def denied_calls(self) -> list[dict[str, str]]:
        """Return principal, action, resource and reason of each denied call, oldest first."""
        return self._get("denied", list[dict[str, str]])

    def rights(self) -> dict[str, dict[str, list[str]]]:
        """Return the resources that IAM allowed, by the role's ARN, then by action."""
        return self._get("rights", dict[str, dict[str, list[str]]])

    def unimplemented_calls(self) -> dict[str, int]:
        """Return the number of calls that the cloud does not implement, by operation."""
        return self._get("unimplemented", dict[str, int])

    def leftovers(self) -> dict[str, list[str]]:
        """Return names of resources that did not exist at the cloud's start, by type.

        Empty if there are none.
        """
        return self._get("leftovers", dict[str, list[str]])

    def _get(
        self,
        path: str,
        answer: type[T],
        query: Mapping[str, Any] | None = None,
        *,
        timeout: float = 0.0,
    ) -> T:
        suffix = f"?{urlencode(query)}" if query else ""
        sent = self._send("GET", f"{path}{suffix}", None, timeout=timeout)
        return msgspec.json.decode(sent, type=answer)

    def _send(self, method: str, path: str, content: Any, *, timeout: float = 0.0) -> bytes:
        request = urllib.request.Request(  # noqa: S310
            f"{self.url}/testbed/{path}",
            data=None if content is None else json.dumps(content).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout + 30) as answer:  # noqa: S310
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise ControlError(json.load(error).get("error", str(error))) from error
