"""Automatic names of resources that the program leaves unnamed.

`__defaults` in the inputs lists the inputs that the provider filled in. A name is therefore kept
once given, and a replacement knows whether the program chose the name.
"""

from __future__ import annotations

import secrets
from typing import Final

from testbed.plugins.codec import Bag, plain
from testbed.plugins.provider import Proposal

DEFAULTS: Final = "__defaults"


def is_default(inputs: Bag, key: str) -> bool:
    """Return whether the provider, not the program, chose this input."""
    return key in (plain(inputs.get(DEFAULTS)) or [])


def set_default(inputs: Bag, key: str, value: object) -> None:
    """Set an input that the program omits, and record it as a default."""
    if inputs.get(key) is None:
        inputs[key] = value
        inputs.setdefault(DEFAULTS, []).append(key)


def unique_name(proposal: Proposal, *, digits: int, limit: int) -> str:
    """Return a unique name, based on the resource's name in the program.

    It ends with `digits` random hexadecimal digits and has at most `limit` characters. A name that
    the engine proposes is returned unchanged.
    """
    if proposal.proposed_name:
        return proposal.proposed_name
    return f"{proposal.name[: limit - digits - 1]}-{random_digits(proposal, digits)}"


def random_digits(proposal: Proposal, count: int) -> str:
    """Return `count` hexadecimal digits; the same seed of the proposal gives the same digits."""
    return (proposal.random_seed or secrets.token_bytes(16)).hex()[:count]


def name_automatically(proposal: Proposal, inputs: Bag, key: str, *, limit: int) -> None:
    """Set the input `key` to an automatic name, unless the program sets it.

    An earlier automatic name is kept. A new one has at most `limit` characters.
    """
    kept = proposal.old.get(key) if is_default(proposal.old, key) else None
    set_default(inputs, key, kept or unique_name(proposal, digits=7, limit=limit))
