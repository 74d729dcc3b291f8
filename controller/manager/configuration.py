"""What settings name but do not hold: files read once, when the controller starts."""

from __future__ import annotations

from pathlib import Path

import yaml

from controller.apis import schedulerconfig
from controller.apis.pods import TopologySpreadConstraint
from controller.options import Options, OptionsError

SCHEDULER_CONFIG = "SCHEDULER_CONFIG"


def default_constraints(options: Options) -> tuple[TopologySpreadConstraint, ...]:
    """Return the default topology spread constraints that the settings name.

    Raises:
        OptionsError: the file cannot be read, or says something that is not allowed.

    """
    given = options.scheduler_config
    try:
        text = given if given.startswith("{") else Path(given).read_text() if given else ""
        return schedulerconfig.default_constraints(yaml.safe_load(text))
    except OSError as exc:
        allowed = f"the path of a file that can be read ({exc.strerror}), or YAML in braces"
        raise OptionsError(SCHEDULER_CONFIG, given, allowed) from exc
    except (ValueError, yaml.YAMLError) as exc:
        problem = " ".join(str(exc).split())
        allowed = f"podTopologySpread.defaultConstraints as kube-scheduler takes them: {problem}"
        raise OptionsError(SCHEDULER_CONFIG, given, allowed) from exc
