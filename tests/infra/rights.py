"""Compare the rights in docs/how-to/clusters.md with the AWS calls that the program makes."""

from __future__ import annotations

from fnmatch import fnmatchcase

from infra.rights import ROWS
from testbed.cloud.control import CloudControl

ALWAYS = ("always", "destroy")


def granted(*when: str) -> set[str]:
    """Return the patterns of the actions in the table's rows for these cases."""
    patterns = {action for row in ROWS if row.when in when for action in row.actions}
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
