"""The vCPU quota that an instance type counts against.

EC2 counts vCPUs per group of instance families, separately for on-demand and spot. Each group has a
quota in Service Quotas with the name given here. If EC2 refuses an instance for its quota, the
remaining quota is too small for every instance type of the group with as many vCPUs or more.
"""

from __future__ import annotations

import re

STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"
_G_AND_VT = "G and VT"
_OWN = {
    "dl": "DL",
    "f": "F",
    "g": _G_AND_VT,
    "gr": _G_AND_VT,
    "hpc": "HPC",
    "inf": "Inf",
    "p": "P",
    "trn": "Trn",
    "u": "High Memory",
    "vt": _G_AND_VT,
    "x": "X",
}
_KIND = re.compile(r"[a-z]+")


def quota_of(instance_type: str) -> str:
    """Return the name of the quota that counts the vCPUs of the instance type."""
    kind = _KIND.match(instance_type)
    return _OWN.get(kind[0], STANDARD) if kind else STANDARD
