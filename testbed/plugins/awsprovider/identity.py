"""The functions at the provider's root: caller identity and partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import Function
from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag


def get_caller_identity(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.get_caller_identity`."""
    del arguments
    caller = session.client("sts").get_caller_identity()
    return {
        "accountId": caller["Account"],
        "arn": caller["Arn"],
        "userId": caller["UserId"],
        "id": caller["Account"],
    }


def get_partition(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.get_partition`."""
    del arguments
    is_china = session.partition == "aws-cn"
    return {
        "partition": session.partition,
        "id": session.partition,
        "dnsSuffix": "amazonaws.com.cn" if is_china else "amazonaws.com",
        "reverseDnsPrefix": "cn.com.amazonaws" if is_china else "com.amazonaws",
    }


FUNCTIONS: Final[Mapping[str, Function]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": get_caller_identity,
    "aws:index/getPartition:getPartition": get_partition,
}
