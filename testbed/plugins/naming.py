"""The names of resources that the program leaves unnamed.

`__defaults` in the inputs lists what the provider filled in, so that a name once
given is kept, and so that a replacement knows whose the name is.
"""

from __future__ import annotations

import secrets
from typing import Final

from testbed.plugins.codec import Bag, plain
from testbed.plugins.provider import Proposal

DEFAULTS: Final = "__defaults"


def is_default(inputs: Bag, key: str) -> bool:
    """Whether the provider, not the program, chose this input."""
    return key in (plain(inputs.get(DEFAULTS)) or [])


def set_default(inputs: Bag, key: str, value: object) -> None:
    """Fill in an input that the program leaves out."""
    if inputs.get(key) is None:
        inputs[key] = value
        inputs.setdefault(DEFAULTS, []).append(key)


def unique_name(proposal: Proposal, *, digits: int, limit: int) -> str:
    """A name nobody else has, built on the resource's name in the program."""
    if proposal.proposed_name:
        return proposal.proposed_name
    return f"{proposal.name[: limit - digits - 1]}-{random_digits(proposal, digits)}"


def random_digits(proposal: Proposal, count: int) -> str:
    """Hexadecimal digits, the same ones whenever the engine asks with the same seed."""
    return (proposal.random_seed or secrets.token_bytes(16)).hex()[:count]


def name_automatically(proposal: Proposal, inputs: Bag, key: str, *, limit: int) -> None:
    """Give the inputs a name, the one of last time if there was one."""
    kept = proposal.old.get(key) if is_default(proposal.old, key) else None
    set_default(inputs, key, kept or unique_name(proposal, digits=7, limit=limit))
