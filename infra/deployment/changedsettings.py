"""Names the settings of the controller that a change sets, changes or resets.

A diff of the Deployment shows them among all other environment variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.options import SETTINGS, text_of
from infra.config.forms import Wire

UNSET = "(unset)"


def changed_settings(before: Iterable[Wire], after: Iterable[Wire]) -> list[str]:
    """Return each variable whose value changes, such as `DISRUPTION_MODE act -> recommend`.

    A variable that is not set has the default of its setting. Variables whose values are secret or
    not known yet are left out.

    Args:
        before: the container's `env` in the state.
        after: the container's `env` as the program declares it now.

    """
    olds, news = _by_name(before), _by_name(after)
    defaults = {setting.variable: text_of(setting.default) for setting in SETTINGS}
    changes = []
    for name in sorted(olds.keys() | news.keys()):
        old, new = (each.get(name, defaults.get(name, UNSET)) for each in (olds, news))
        if old != new and isinstance(old, str) and isinstance(new, str):
            changes.append(f"{name} {old or UNSET} -> {new or UNSET}")
    return changes


def _by_name(entries: Iterable[Wire]) -> Mapping[str, Any]:
    """Return the value of each variable; None if it comes from elsewhere, such as a Secret."""
    return {entry["name"]: entry.get("value") for entry in entries}
