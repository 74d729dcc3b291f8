"""Reads and checks the settings of the running stack."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pulumi

from controller.options import OptionsError, ignored_gates
from infra.config.checks import alternatives, contradictions, without_effect
from infra.config.forms import PROJECT, ConfigError
from infra.config.settings import KEYS, TYPES, StackConfig
from infra.config.values import value_from

NO_REGIONS: Mapping[str, str] = {}


def read() -> StackConfig:
    """Read the settings of the running stack.

    Raises:
        ConfigError: settings are unknown, missing or invalid; lists all of them.

    """
    config = pulumi.Config(PROJECT)
    given = {
        name.partition(":")[2]: config.require(name.partition(":")[2])
        for name in pulumi.runtime.config.CONFIG.get()
        if name.startswith(f"{PROJECT}:")
    }
    if problems := [*_unusable_aws_settings(), *_unusable_secrets()]:
        raise ConfigError(*problems)
    elsewhere = {
        "aws:region": pulumi.Config("aws").get("region") or "",
        "AWS_REGION": os.environ.get("AWS_REGION", ""),
    }
    stack = parse(given, regions=elsewhere)
    for warning in ignored_gates([], stack.settings):
        pulumi.log.warn(f"{PROJECT}:settings: {warning}")
    return stack


def is_secret(key: str) -> bool:
    """Whether a setting of the running stack was set with `pulumi config set --secret`."""
    return pulumi.runtime.is_config_secret(f"{PROJECT}:{key}")


SECRET = ("env",)
"""Settings that may be secret. Others appear in names and properties of resources."""


def _unusable_secrets() -> Iterator[str]:
    for key in KEYS:
        if key not in SECRET and is_secret(key):
            yield (
                f"{PROJECT}:{key} is set as a secret, but the stack's state would show it in plain "
                f"text: set it without --secret; only {PROJECT}:env can be secret"
            )


AWS_SETTINGS = {
    "profile": "export AWS_PROFILE={value} where Pulumi runs",
    "assumeRole": "name the role in a profile (role_arn) and export AWS_PROFILE",
    "assumeRoles": "name the role in a profile (role_arn) and export AWS_PROFILE",
    "assumeRoleWithWebIdentity": "export AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE",
    "accessKey": "export AWS_ACCESS_KEY_ID",
    "secretKey": "export AWS_SECRET_ACCESS_KEY",
    "token": "export AWS_SESSION_TOKEN",
    "defaultTags": "set joiner:tags",
    "endpoints": "set joiner:awsEndpoint",
}
"""Settings of Pulumi's AWS provider that this program does not support, and what to do instead.
The program also calls AWS outside the provider, with the credentials of the AWS SDK."""

HONOURED = ("region", "allowedAccountIds", "forbiddenAccountIds")


def _unusable_aws_settings() -> Iterator[str]:
    for name in sorted(pulumi.runtime.config.CONFIG.get()):
        project, _, key = name.partition(":")
        if project == "aws" and key not in HONOURED:
            value = pulumi.Config("aws").get(key) if key == "profile" else ""
            instead = AWS_SETTINGS.get(key, "use the environment variables of the AWS SDK")
            yield f"{name} is not supported: {instead.format(value=value)}"


def refuse_disallowed(account: pulumi.Input[str]) -> None:
    """Check the account against `aws:allowedAccountIds` and `aws:forbiddenAccountIds`.

    Raises:
        ConfigError: the account is forbidden, or not among the allowed ones.

    """
    config = pulumi.Config("aws")
    allowed = [str(one) for one in config.get_object("allowedAccountIds") or ()]
    forbidden = [str(one) for one in config.get_object("forbiddenAccountIds") or ()]
    if account in forbidden or (allowed and account not in allowed):
        key = "forbiddenAccountIds" if account in forbidden else "allowedAccountIds"
        raise ConfigError(
            f"aws:{key} excludes the account {account} of the current AWS credentials: use "
            "credentials of another account or change this setting"
        )


def parse(given: Mapping[str, str], *, regions: Mapping[str, str] = NO_REGIONS) -> StackConfig:
    """Return the settings from their text, by key without the project's name.

    Args:
        given: the stack's settings; objects and lists are JSON.
        regions: other sources of the region, by the name of the source. The first one with a value
            is used if the stack sets none.

    Raises:
        ConfigError: settings are unknown, missing or invalid; lists all of them.

    """
    keys = {key: f"{PROJECT}:{key}" for key in KEYS}
    if not given.get("region"):
        for where, region in regions.items():
            if region:
                given, keys["region"] = {**given, "region": region}, where
                break
    values: dict[str, Any] = {}
    problems = [_unknown(key, text) for key, text in given.items() if key not in KEYS]
    for key, member in KEYS.items():
        if not given.get(key):
            continue
        try:
            values[member.name] = value_from(given[key], TYPES[member.name], keys[key])
        except OptionsError as exc:
            problems.append(str(exc))
    problems += [
        f"{PROJECT}:{key} is missing: {_ABOUT[key]}"
        for key, member in KEYS.items()
        if member.default is dataclasses.MISSING
        and member.default_factory is dataclasses.MISSING
        and member.name not in values
        and not given.get(key)
    ]
    if not problems:
        config = StackConfig(**values)
        problems = [*without_effect(config, given), *contradictions(config)]
    if problems:
        raise ConfigError(*problems)
    return config


def _unknown(key: str, text: str) -> str:
    """Return the error for an unknown key, with the command or key to use instead."""
    full, outer = f"{PROJECT}:{key}", re.split(r"[.\[]", key, maxsplit=1)[0]
    if outer in KEYS and outer != key:
        # Without --path, Pulumi reads the dot as a part of the key's name.
        return (
            f"{full}={text!r}: a value inside {PROJECT}:{outer} is set with --path: run `pulumi "
            f"config rm {full}` and `pulumi config set --path {full} {shlex.quote(text)}`"
        )
    return f"{full}={text!r}: unknown setting{alternatives(key, KEYS)}"


_ABOUT = {
    "clusterName": "the name of the EKS cluster",
    "region": "an AWS region such as us-west-2; aws:region and AWS_REGION are also read",
}
