"""The rules by which Joiner's program checks itself, for any other program."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
)

# If you copy this folder, copy `infra/policypack/rules.py` too. The rules import nothing else.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from infra.policypack.rules import CHECKS, violations


def no_rights_opened(args: ResourceValidationArgs, report: ReportViolation) -> None:
    """Report what a resource opens that must stay closed."""
    checked: Mapping[str, Any] = {
        name: args.props[name] for name in CHECKS.get(args.resource_type, {}) if name in args.props
    }
    for problem in violations(args.resource_type, checked):
        report(problem)


PolicyPack(
    name="joiner",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        ResourceValidationPolicy(
            name="no-rights-opened",
            description="Policies, trust, queues and roles in the cluster open no more than "
            "docs/explanation/security.md allows.",
            validate=no_rights_opened,
        )
    ],
)
