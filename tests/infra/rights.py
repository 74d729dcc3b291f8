"""Compare the rights in docs/how-to/clusters.md with the AWS calls that the program makes."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from testbed.cloud.control import CloudControl
from testbed.environment import CHECKOUT

HEAD = "## Which rights does Pulumi need?"
ALWAYS = ("always", "destroy")
RIGHT = re.compile(r"`([a-z0-9-]+:[A-Za-z*]+)`")


def granted(*when: str) -> set[str]:
    """Return the patterns of the actions in the table's rows for these cases."""
    page = (CHECKOUT / "docs" / "how-to" / "clusters.md").read_text()
    section = page.partition(HEAD)[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")]
    patterns = {right for row in rows for right in RIGHT.findall(row[0]) if row[2] in when}
    assert patterns
    return patterns


def beyond(cloud: CloudControl, *when: str) -> set[str]:
    """Return the actions called since the counts were cleared that no row contains."""
    patterns = granted(*ALWAYS, *when)
    return {
        action
        for action in called(cloud)
        if not any(fnmatchcase(action, pattern) for pattern in patterns)
    }


def called(cloud: CloudControl) -> set[str]:
    """Return the actions called since the counts were cleared."""
    actions = {action for actions in cloud.calls().values() for action in actions}
    assert actions
    return actions
