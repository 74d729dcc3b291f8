"""The stack's settings: which are accepted, and which are rejected before any change."""

from __future__ import annotations

import contextvars
import json
import re
from datetime import timedelta
from pathlib import Path

import pulumi
import pytest

from infra.config.checks import require_options
from infra.config.forms import ConfigError
from infra.config.reading import parse, read
from infra.config.settings import KEYS, StackConfig
from infra.config.table import table
from testbed.environment import CHECKOUT
from tests.infra.kubeconfigs import kubeconfig_in

ENOUGH = {"clusterName": "joiner", "region": "us-west-2", "image": "joiner:1"}


def test_cluster_region_and_image_are_the_only_required_settings() -> None:
    config = parse(ENOUGH)

    assert (config.namespace, config.name, config.replicas) == ("kube-system", "karpenter", 2)
    assert config.identity == "pod-identity"
    assert not config.delete_foreign_node_pools


def test_the_controller_gets_the_settings_of_the_stack() -> None:
    settings = '{"BATCH_IDLE_DURATION": "2s", "FEATURE_GATES": "NodeRepair=true"}'

    options = require_options(parse(ENOUGH | {"settings": settings}).settings)

    assert options.batch_idle_duration == timedelta(seconds=2)
    assert options.feature_gates.node_repair


@pytest.mark.parametrize(
    ("settings", "is_on"),
    [
        ("{}", True),
        ('{"FEATURE_GATES": "NodeRepair=true"}', True),
        ('{"FEATURE_GATES": "NodeRepair=true,SpotToSpotConsolidation=false"}', False),
    ],
)
def test_a_stack_replaces_spot_nodes_by_spot_nodes_unless_it_turns_that_off(
    settings: str, is_on: bool
) -> None:
    options = require_options(parse(ENOUGH | {"settings": settings}).settings)

    assert options.feature_gates.spot_to_spot_consolidation == is_on


def test_lists_and_maps_are_parsed_as_pulumi_writes_them() -> None:
    config = parse(
        ENOUGH
        | {
            "subnetIds": '["subnet-1","subnet-2"]',
            "tags": '{"team":"platform","shared":true}',
            "drainTimeout": "90s",
        }
    )

    assert config.subnet_ids == ("subnet-1", "subnet-2")
    assert config.tags == {"team": "platform", "shared": "true"}
    assert config.drain_timeout == timedelta(seconds=90)


def test_the_region_defaults_to_that_of_the_aws_provider() -> None:
    named = {key: value for key, value in ENOUGH.items() if key != "region"}

    assert parse(named, regions={"aws:region": "", "AWS_REGION": "eu-central-1"}).region == (
        "eu-central-1"
    )
    assert parse(ENOUGH, regions={"AWS_REGION": "eu-central-1"}).region == "us-west-2"
    with pytest.raises(ConfigError, match="joiner:region is missing"):
        parse(named)
    with pytest.raises(ConfigError, match="AWS_REGION='Oregon' cannot be used: allowed is"):
        parse(named, regions={"AWS_REGION": "Oregon"})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("clusterName", "my cluster", "1 to 100 letters"),
        ("region", "Oregon", "us-west-2"),
        ("awsEndpoint", "localhost:4566", "a URL"),
        ("identity", "root", "pod-identity or irsa"),
        ("nodeAccess", "ec2", "EC2_LINUX or EC2_WINDOWS or aws-auth or aws-auth-windows or none"),
        ("oidcProvider", "maybe", "existing or create"),
        ("replicas", "0", "at least 1"),
        ("replicas", "many", "a whole number"),
        ("namespace", "Kube System", "a DNS label"),
        ("nodeRoleName", "a b", "1 to 64 letters"),
        ("permissionsBoundary", "boundary", "the ARN of an IAM policy"),
        ("queueName", "a.b", "1 to 80 letters"),
        ("drainTimeout", "soon", "a duration"),
        ("deleteForeignNodePools", "perhaps", "true or false"),
        ("cpu", "1Gi", "an amount of CPU"),
        ("memory", "lots", "an amount of memory"),
        ("memory", "1000", "such as 512Mi"),
        ("memory", "100Mi", "at least 256Mi"),
        ("tags", '{"team": {"name": "web"}}', "a map of names to text"),
        ("tags", "team", "a map"),
        ("kubeconfig", "/nowhere/config", "the path of a file"),
        ("nodePools", "/nowhere", "the path of a folder"),
        ("platformStack", "joiner/platform", "or organization/project/stack"),
        ("settings", '{"BATCH_IDLE_DURATION": "soon"}', "a duration"),
        ("settings", '{"BATCH_IDLE": "1s"}', "BATCH_IDLE='1s': unknown setting of the controller"),
        ("settings", '{"CLUSTER_NAME": "other"}', "set joiner:clusterName instead"),
        ("settings", '{"VM_MEMORY_OVERHEAD_PERCENT": "inf"}', "a number, at least 0"),
        ("settings", '{"CPU_REQUESTS": "99999999999999999999"}', "a whole number"),
        ("clusterNmae", "joiner", "unknown setting; did you mean clusterName?"),
        ("colour", "red", "unknown setting; the settings are accessEntries, "),
        ("settings", '{"BATCH_IDLE_DURATOIN": "1s"}', "did you mean BATCH_IDLE_DURATION?"),
        (
            "settings.FEATURE_GATES",
            "NodeRepair=true",
            "pulumi config set --path joiner:settings.FEATURE_GATES NodeRepair=true`",
        ),
        ("tags[0]", "a b", "pulumi config rm joiner:tags[0]` and"),
        ("name", "1karpenter", "a DNS label such as karpenter"),
        ("image", "my image", "an image such as"),
        ("subnetIds", "vpc-1", "a list of subnets such as"),
        ("securityGroupIds", '["sg-1", "subnet-1"]', "a list of security groups such as"),
        ("drainTimeout", "169h", "at most 168h"),
        ("queueName", "файл", "1 to 80 letters"),
        ("tags", '{"aws:team": "web"}', "aws:team='web' is invalid"),
        ("instanceProfiles", "own", "given or managed"),
        ("imageParameters", "/golden/*, *", "a list of names of SSM parameters such as"),
    ],
)
def test_an_invalid_value_is_named_with_the_allowed_ones(
    key: str, value: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(ENOUGH | {key: value})

    assert len(refused.value.problems) == 1
    assert f"joiner:{key}" in refused.value.problems[0]
    assert allowed in refused.value.problems[0]


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"region": "Oregon", "replicas": "0", "colour": "red"})

    assert len(refused.value.problems) == 4
    assert "joiner:clusterName is missing" in str(refused.value)


def test_an_image_is_optional() -> None:
    assert parse({key: value for key, value in ENOUGH.items() if key != "image"}).image is None


def test_without_a_kubeconfig_the_aws_cli_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubeconfig = kubeconfig_in(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert parse(ENOUGH | {"kubeconfig": str(kubeconfig)}).kubeconfig_path == kubeconfig
    with pytest.raises(ConfigError, match="joiner:kubeconfig is missing"):
        parse(ENOUGH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("- a", "it is not a YAML mapping"),
        ("apiVersion: v1", "Expected key current-context"),
        ("current-context: a", "Expected key contexts"),
        ("contexts: [", "cannot be used"),
        ("users: [{}]", "an entry is incomplete or of the wrong type ('name')"),
        ("{current-context: a, contexts: [{name: a, context: a}]}", "an entry is incomplete"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: b}}]}", "Expected key"),
    ],
)
def test_a_kubeconfig_without_a_cluster_is_refused_with_a_message(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)

    with pytest.raises(ConfigError) as refused:
        parse(ENOUGH | {"kubeconfig": str(path)})

    (problem,) = refused.value.problems
    assert problem.startswith("joiner:kubeconfig=")
    assert words in problem


@pytest.mark.parametrize("user", [None, {}])
def test_a_kubeconfig_without_credentials_is_refused_unless_the_server_needs_none(
    tmp_path: Path, user: dict[str, str] | None
) -> None:
    anonymous = kubeconfig_in(tmp_path, user=user)

    with pytest.raises(ConfigError, match="its context 'a' has no credentials: name a user"):
        parse(ENOUGH | {"kubeconfig": str(anonymous)})

    of_kubectl_proxy = kubeconfig_in(tmp_path, server="http://127.0.0.1:8001", user=user)
    assert parse(ENOUGH | {"kubeconfig": str(of_kubectl_proxy)}).kubeconfig_path


def test_the_table_of_settings_equals_the_code() -> None:
    page = (CHECKOUT / "docs" / "reference" / "settings.md").read_text()

    assert page == table(), "python -m infra.config.table > docs/reference/settings.md"


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/install.md"])
def test_a_page_names_only_existing_settings(page: str) -> None:
    named = set(re.findall(r"joiner:([a-zA-Z]+)", (CHECKOUT / page).read_text()))

    assert named
    assert named <= set(KEYS)


def test_docs_set_nested_values_with_pulumis_path_flag() -> None:
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
    bare = re.compile(r"(?<!pulumi config set --path joiner:)\bsettings\.[A-Z_]{2,}")

    assert {page.name: found for page in pages if (found := bare.findall(page.read_text()))} == {}


def test_an_unknown_feature_gate_does_not_stop_the_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    settings = json.dumps({"FEATURE_GATES": "NodeRepair=true,GateOfLater=true"})
    given = ENOUGH | {"settings": settings}

    def configured() -> StackConfig:
        pulumi.runtime.set_all_config({f"joiner:{key}": text for key, text in given.items()})
        return read()

    # Pulumi keeps a stack's settings in a context variable; a copy leaves other tests alone.
    options = require_options(contextvars.copy_context().run(configured).settings)

    assert options.feature_gates.node_repair
    assert warned == ["joiner:settings: FEATURE_GATES: unknown feature gate GateOfLater is ignored"]


POOLS_ONLY = {key: text for key, text in ENOUGH.items() if key != "image"} | {
    "platformStack": "prod"
}


def test_a_stack_with_only_node_pools_needs_no_image() -> None:
    assert parse(POOLS_ONLY | {"platformStack": "organization/joiner/platform"}).platform_stack


def test_a_stack_with_only_the_default_node_pool_refuses_settings_that_do_not_concern_it() -> None:
    settings = '{"ISOLATED_VPC": "true", "BATCH_IDLE_DURATION": "2s"}'

    with pytest.raises(ConfigError) as refused:
        parse(POOLS_ONLY | {"settings": settings})

    (problem,) = refused.value.problems
    assert problem.startswith("joiner:settings: BATCH_IDLE_DURATION cannot be set here")
    assert "in the stack that installs the controller, prod" in problem


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ({"replicas": "3"}, "replicas='3'"),
        ({"settings": '{"FEATURE_GATES": "NodeRepair=true"}', "nodePools": "crds"}, "settings="),
        ({"instanceProfiles": "managed", "defaultNodePool": "false"}, "instanceProfiles='managed'"),
        ({"vpcCidr": "10.0.0.0/16"}, "vpcCidr='10.0.0.0/16'"),
        ({"confirmDelete": '["nodePools"]'}, "confirmDelete="),
        ({"tags": '{"team": "a"}'}, "tags="),
        ({"env": '{"TOKEN": "hidden"}'}, "env cannot"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_stack_with_only_node_pools_refuses_settings_of_the_controllers_stack(
    setting: dict[str, str], shown: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(POOLS_ONLY | setting)

    (problem,) = refused.value.problems
    assert problem.startswith(f"joiner:{shown}")
    assert "in the stack that installs the controller, prod; this stack manages only" in problem
    assert "hidden" not in problem


@pytest.mark.parametrize(
    "setting",
    [
        {"replicas": "2", "extraLabels": "{}", "vpcCidr": "10.128.0.0/16"},
        {"instanceProfiles": "managed", "settings": '{"ISOLATED_VPC": "true"}'},
        {"drainTimeout": "5m", "installation": "shop"},
    ],
    ids=lambda value: next(iter(value)),
)
def test_a_stack_with_only_node_pools_accepts_defaults_and_settings_of_node_pools(
    setting: dict[str, str],
) -> None:
    assert parse(POOLS_ONLY | setting).platform_stack == "prod"
