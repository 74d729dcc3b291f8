"""Reads the files that settings name, once, when the controller starts."""

from __future__ import annotations

import yaml

from controller.apis.kubernetes import schedulerconfig
from controller.apis.kubernetes.pods import TopologySpreadConstraint
from controller.options import Options, OptionsError

SCHEDULER_CONFIG = "SCHEDULER_CONFIG"


def default_constraints(options: Options) -> tuple[TopologySpreadConstraint, ...]:
    """Return the default topology spread constraints of the `SCHEDULER_CONFIG` setting.

    Raises:
        OptionsError: the file cannot be read, or has a value that is not allowed.

    """
    given = options.scheduler_config
    try:
        return schedulerconfig.default_constraints(schedulerconfig.document(given))
    except OSError as exc:
        allowed = f"a YAML or JSON document, or the path of a file ({exc.strerror})"
        raise OptionsError(SCHEDULER_CONFIG, given, allowed) from exc
    except (ValueError, yaml.YAMLError) as exc:
        problem = " ".join(str(exc).split())
        allowed = f"podTopologySpread.defaultConstraints as kube-scheduler takes them: {problem}"
        raise OptionsError(SCHEDULER_CONFIG, given, allowed) from exc
