"""Which of an account's quotas a machine counts against.

EC2 counts vCPUs per kind of machine, on demand and on spot apart; each kind has a quota
in Service Quotas by the name given here. Where a machine is refused for its quota, what
is left of that holds no machine of its kind that is as large or larger.
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
    """Return the name of the quota that counts the machine's vCPUs."""
    kind = _KIND.match(instance_type)
    return _OWN.get(kind[0], STANDARD) if kind else STANDARD
