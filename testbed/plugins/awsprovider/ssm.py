"""Systems Manager: parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import Function
from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag, Secret


def get_parameter(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.ssm.get_parameter`; the value is a secret, as in the real provider."""
    region = arguments.get("region") or session.region
    decrypt = arguments.get("withDecryption") is not False
    api = session.client("ssm", region)
    parameter = api.get_parameter(Name=arguments["name"], WithDecryption=decrypt)["Parameter"]
    is_hidden = parameter["Type"] == "SecureString"
    return {
        "arn": parameter["ARN"],
        "id": parameter["Name"],
        "name": parameter["Name"],
        "region": region,
        "type": parameter["Type"],
        "value": Secret(parameter["Value"]),
        "insecureValue": "" if is_hidden else parameter["Value"],
        "version": parameter["Version"],
        "withDecryption": decrypt,
    }


FUNCTIONS: Final[Mapping[str, Function]] = {"aws:ssm/getParameter:getParameter": get_parameter}
