"""Change the settings of a running stack at random, and audit what becomes of its nodes.

    python -m bench.settingschanges --seeds 1-20

Each seed is one stack on the testbed, from its creation to its end: with the real Pulumi engine, a
real API server and the test cloud. The stack is created, nodes are launched, and settings change in
sequence. Each change is previewed and applied; some are killed halfway, some are set back. In some
runs, the controller's ServiceAccount is deleted and created again, a role is protected during a
destroy, or a destroy is killed and the stack applied again. Then the stack is destroyed.

Resources of others are there from the beginning: an instance of another Karpenter, a NodePool and a
NodeClaim of EKS Auto Mode, a queue and a role. After each operation an auditor checks:

- what nodes depend on is there while they run, and no NodeClaim or NodePool is being deleted;
- what belongs to others is as it was;
- `up` refuses what the preview refuses, and succeeds where the preview does;
- a refused operation has changed nothing;
- a second `up` with the same settings changes nothing;
- after `destroy`, nothing of the stack is left.

Prints the findings with the sequence that led to each, and `N runs, F findings`. The exit code is 1
if there are any findings.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from bench.arguments import add_seeds, make_parser
from controller.apis import crds
from infra.deployment.controller import ACCOUNT
from testbed.plugins.engine import EngineError
from testbed.region.testbed import Part, Testbed
from tests.infra.stage import (
    AWS_AUTH,
    DEPLOYMENT,
    NODE_CLAIMS,
    NODE_POOLS,
    OURS,
    Stage,
    claim_of,
    create_system_nodes,
    open_stage,
)
from tests.neighbours import AUTO_MODE

MISHAP_SHARE = 0.3
"""The share of runs with each mishap."""

STEPS = 4
"""Changes of settings in one run."""

CHANGES: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "path": ({"iamPath": "/team/"}, {"iamPath": "/platform/"}),
    "prefix": ({"namePrefix": "Team"},),
    "node role name": ({"nodeRoleName": "another"},),
    "controller role name": ({"controllerRoleName": "another"},),
    "access": tuple(
        {"nodeAccess": access} for access in ("none", "EC2_LINUX", "EC2_WINDOWS", "aws-auth")
    ),
    "profile": ({"instanceProfileName": "theirs"}, {"instanceProfiles": "managed"}),
    "windows": ({"windowsNodes": "true"},),
    "definitions": (
        {"existingCrds": "nodepools.karpenter.sh, nodeclaims.karpenter.sh"},
        {"existingCrds": ", ".join(crd()["metadata"]["name"] for crd in crds.DEFINITIONS)},
    ),
    "agent": ({"podIdentityAgent": "create"},),
    "identity": ({"identity": "irsa", "oidcProvider": "create"}, {"identity": "irsa"}),
    "queue": (
        {"queueName": "other"},
        {"queue": "existing", "queueName": "of-others"},
        {"queue": "existing", "queueName": "of-others", "retainOnDelete": "queue"},
    ),
    "existing role": (
        {"nodeRole": "existing"},
        {"nodeRole": "existing", "retainOnDelete": "nodeRole"},
        {"confirmDelete": "nodeRole", "nodeRole": "existing", "nodeRoleName": "of-others"},
    ),
    "discovery": ({"discoveryTags": "false"}, {"discoveryTagKey": "team/discovery"}),
    "cluster tags": ({"clusterTags": "true"},),
    "deployment": (
        {"replicas": "1"},
        {"name": "joiner"},
        {"namespace": "joiner", "createNamespace": "true"},
        {"env": '{"HTTPS_PROXY": "http://proxy:3128"}'},
        {"settings": '{"BATCH_IDLE_DURATION": "2s"}'},
    ),
    "tags": ({"tags": '{"team": "a"}'}, {"tags": '{"team": "b"}'}),
    "boundary": ({"permissionsBoundary": "arn:aws:iam::aws:policy/PowerUserAccess"},),
    "installation": ({"installation": "another"},),
    "mistake": ({"region": "eu-west-1"}, {"clusterName": "jioner"}, {"replicas": "0"}),
}
"""Names of what changes, and the settings of each way to change it."""

ROLE_TYPE = "aws:iam/role:Role"

Identifiers = set[tuple[str, str]]
"""Type and name or ID of resources in the cloud."""


class KilledError(Exception):
    """Pulumi's engine was killed during the operation."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the nodes depended on when they were launched.

    `has_entry` says whether the node role had access to the cluster, by an access entry or by the
    ConfigMap aws-auth. `definitions` are the names of the CRDs; `pools` and `claims` are those of
    the NodePools and NodeClaims.
    """

    role: str
    role_arn: str
    profile: str
    has_entry: bool
    definitions: frozenset[str]
    pools: frozenset[str]
    claims: frozenset[str]


@dataclass(slots=True)
class Run:
    """The run of one seed: a stack from its creation to its end, and the findings on the way."""

    has_eks_cluster: ClassVar[bool] = True
    changes: ClassVar[Mapping[str, tuple[Mapping[str, str], ...]]] = CHANGES

    stage: Stage
    chance: random.Random
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the stack beside those that locate the testbed."""

    instances: list[str] = field(default_factory=list)
    """IDs of the launched instances that run."""

    needed: Dependencies | None = None
    """What the running nodes depend on; None if there are none."""

    theirs: Any = None
    """What belongs to others, as it was at the beginning."""

    steps: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def play(self) -> None:
        """Create, change and destroy the stack."""
        self._create_theirs()
        try:
            self._settle("up", {})
            self._join_auto_mode()
            self.theirs = self._of_others()
            for _ in range(self.chance.randint(0, 2)):
                self._launch()
            for _ in range(STEPS):
                self._change()
                if not self.instances and self.chance.random() < 0.3:
                    self._launch()
            for mishap in (self._lose_account, self._protect, self._interrupt_destroy):
                if self.chance.random() < MISHAP_SHARE:
                    mishap()
            self._end()
        finally:
            self._clear()

    # what happens

    def _change(self) -> None:
        """Change the settings of one subject; sometimes set them back afterwards."""
        earlier = dict(self.settings)
        ways = self.chance.choice(list(self.changes.values()))
        changed = {**self.settings, **self.chance.choice(ways)}
        if changed == earlier:
            return
        if self.chance.random() < 0.2 and self._is_admitted(changed):
            self._kill(changed)
        if self._settle("change", changed) and self.chance.random() < 0.5:
            self._settle("set back", earlier)

    def _settle(self, title: str, settings: dict[str, str]) -> bool:
        """Preview and apply settings; return whether they were applied."""
        self._record(title, settings)
        before = self._snapshot()
        admitted = self._is_admitted(settings)
        self._expect(self._snapshot() == before, "the preview changed something")
        refusal = self._operate(lambda: self.stage.up(**settings))
        if refusal and admitted:
            self._find(f"up failed where the preview succeeded: {refusal}")
        if not refusal and not admitted:
            self._find("up succeeded where the preview failed")
        if refusal and not admitted:
            self._expect(self._snapshot() == before, "a refused up changed something")
        if not refusal:
            self.settings = settings
            self._expect(not self.stage.up(**settings).any, "the second up changes something")
        self._audit()
        return not refusal

    def _is_admitted(self, settings: Mapping[str, str]) -> bool:
        wanted = self.stage.settings | dict(settings)
        return not self._operate(lambda: self.stage.engine.preview("dev", wanted))

    def _kill(self, settings: dict[str, str]) -> None:
        """Kill the engine during an `up`."""
        refused = self._kill_operation("up", lambda: self.stage.up(**settings), settings)
        self._expect(not refused, f"up failed where the preview succeeded: {refused}")
        self._audit()

    def _kill_operation(
        self, title: str, operation: Callable[[], object], settings: Mapping[str, str]
    ) -> str:
        """Kill the engine after a random number of lines; return why it failed before that."""
        left = self.chance.randint(5, 60)
        self._record(f"{title} killed after {left} lines", settings)
        heard = self.stage.engine.show

        def show(line: str) -> None:
            nonlocal left
            heard(line)
            left -= 1
            if left == 0:
                raise KilledError

        self.stage.engine.show = show
        try:
            return self._operate(operation)
        except KilledError:
            self.stage.engine.unlock("dev")
        finally:
            self.stage.engine.show = heard
        return ""

    def _interrupt_destroy(self) -> None:
        """Kill the engine during a destroy, and apply the same settings again."""
        settings, engine = dict(self.settings), self.stage.engine
        # A killed engine leaves a state with all that it has done, except its last step.
        writing = {**engine.environment, "PULUMI_SKIP_CHECKPOINTS": "false"}
        self.stage.engine = replace(engine, environment=writing)
        refused = self._kill_operation("destroy", lambda: self.stage.engine.destroy("dev"), {})
        self.stage.engine = engine
        self._expect(not refused, f"destroy failed: {refused}")
        self._end_nodes()  # the destroy may have terminated some of them
        self.stage.said.clear()
        refused = self._operate(lambda: self.stage.up(**settings))
        self._expect(not refused, f"up failed after a killed destroy: {refused}")
        if any("Run `pulumi up --refresh`" in line for line in self.stage.said):
            self._operate(lambda: self.stage.engine.refresh("dev"))
            self._operate(lambda: self.stage.up(**settings))
        # The first up may have let the Kubernetes provider adopt CRDs, which the next one undoes.
        self._operate(lambda: self.stage.up(**settings))
        self._settle("up after a killed destroy", settings)
        pools = self._names(NODE_POOLS) - {"general-purpose"}
        self._expect(bool(pools), "the NodePool is not there after a killed destroy")

    def _protect(self) -> None:
        """Protect a role, as `pulumi state protect` does: a destroy is refused at once."""
        self._record("destroy of a protected stack", {})
        state = self.stage.engine.state("dev")
        resources = state["deployment"]["resources"]
        chosen = self.chance.choice([one for one in resources if one["type"] == ROLE_TYPE] or [{}])
        if not chosen:
            return
        chosen["protect"] = True
        self.stage.engine.restore("dev", state)
        before = self._snapshot()
        refused = self._operate(lambda: self.stage.engine.destroy("dev"))
        self._expect("the state protects" in refused, f"not refused for its protection: {refused}")
        self._expect(self._snapshot() == before, "a refused destroy changed something")
        chosen["protect"] = False
        self.stage.engine.restore("dev", state)
        self._audit()

    def _lose_account(self) -> None:
        """Delete the ServiceAccount: `up` after a refresh creates it, and replaces the pods."""
        self._record("ServiceAccount deleted", {})
        folder, _, name = self._deployment.rpartition("/")
        path = f"{folder.replace('/apis/apps/v1', '/api/v1').removesuffix('deployments')}"
        path = f"{path}serviceaccounts/{name}"
        self.stage.cluster.delete(path)
        refused = self._operate(lambda: self.stage.engine.refresh("dev"))
        self._expect(not refused, f"refresh failed: {refused}")
        self._settle("up after a refresh", dict(self.settings))
        account, deployment = map(self.stage.cluster.get, (path, self._deployment))
        self._expect(account is not None, "the ServiceAccount is not there")
        if account is not None and deployment is not None:
            marks = deployment["spec"]["template"]["metadata"]["annotations"]
            is_bound = marks[ACCOUNT] == account["metadata"]["uid"]
            self._expect(is_bound, "the pods keep tokens of the deleted ServiceAccount")

    def _launch(self) -> None:
        """Launch a node as the controller would, with the stack's role and profile."""
        outputs = self.stage.engine.outputs("dev")
        name = f"claim-{len(self.instances)}"
        try:
            instance = self.stage.run_instance(outputs.get("instanceProfile") or "", **OURS)
        except ClientError:
            # The user has set the name of an instance profile that does not exist.
            self._expect("instanceProfileName" in self.settings, f"EC2 refused to launch {name}")
            return
        self._record(f"launch {name}", {})
        self.instances.append(instance)
        self.stage.cluster.request("POST", NODE_CLAIMS, claim_of("team", name))
        role = outputs["nodeRole"]
        self.needed = Dependencies(
            role=role,
            role_arn=outputs["nodeRoleArn"],
            profile=outputs.get("instanceProfile") or "",
            has_entry=self._has_entry(outputs["nodeRoleArn"]),
            definitions=frozenset(self.stage.installed),
            pools=self._names(NODE_POOLS),
            claims=self._names(NODE_CLAIMS),
        )

    def _end(self) -> None:
        """Destroy the stack: with the nodes, or after they have ended."""
        if self.instances and self.chance.random() < 0.5:
            self._record("nodes end", {})
            self._end_nodes()
        self._record("destroy", {})
        self.stage.cluster.delete(self._deployment)
        if refusal := self._operate(self.stage.destroy):
            self._find(f"destroy failed: {refusal}")
            return
        retained = self.settings.get("retainOnDelete", "")
        left = self._leftovers() - self.theirs["cloud"]
        kinds_retained = {"queue": {"queues", "rules"}, "nodeRole": {"roles", "rolePolicies"}}
        allowed = set().union(*(v for k, v in kinds_retained.items() if k in retained))
        # A killed up of other settings may have created another queue or role, also retained.
        left = {each for each in left if each[0] not in allowed}
        self._expect(not left, f"left after destroy: {sorted(left)}")
        self._expect_theirs()
        self.needed = None
        for instance in self.instances:
            self._expect(not self.stage.lives(instance), f"{instance} runs after destroy")
        self._expect(not self.stage.resources, "resources are left in the state")

    # what is checked

    def _audit(self) -> None:
        """Check what nodes depend on, and what belongs to others."""
        self._expect_theirs()
        needed = self.needed
        if needed is None:
            return
        for instance in self.instances:
            self._expect(self.stage.lives(instance), f"{instance} was terminated")
        iam = self.stage.client("iam")
        try:
            role = iam.get_role(RoleName=needed.role)["Role"]
            self._expect(role["Arn"] == needed.role_arn, "the node role was replaced")
            attached = iam.list_attached_role_policies(RoleName=needed.role)["AttachedPolicies"]
            self._expect(len(attached) >= 3, "the node role lost its policies")
        except iam.exceptions.NoSuchEntityException:
            self._find("the node role was deleted")
        if needed.profile:
            try:
                profile = iam.get_instance_profile(InstanceProfileName=needed.profile)
                names = [role["RoleName"] for role in profile["InstanceProfile"]["Roles"]]
                self._expect(needed.role in names, "the instance profile lost its role")
            except iam.exceptions.NoSuchEntityException:
                self._find("the instance profile was deleted")
        if needed.has_entry:
            self._expect(self._has_entry(needed.role_arn), "the nodes lost access to the cluster")
        gone = needed.definitions - self.stage.installed
        self._expect(not gone, f"CRDs were deleted: {sorted(gone)}")
        gone = needed.claims - self._names(NODE_CLAIMS)
        self._expect(not gone, f"NodeClaims are deleted: {sorted(gone)}")
        gone = needed.pools - self._names(NODE_POOLS)
        self._expect(not gone, f"NodePools are deleted: {sorted(gone)}")

    def _expect_theirs(self) -> None:
        if self.theirs is None:
            return
        now = self._of_others()
        for name, value in self.theirs.items():
            if name == "cloud":
                lost = value - self._leftovers()
                self._expect(not lost, f"resources of others were deleted: {sorted(lost)}")
            else:
                self._expect(now[name] == value, f"changed, though of others: {name}")

    def _expect(self, holds: bool, finding: str) -> None:
        if not holds:
            self._find(finding)

    def _find(self, finding: str) -> None:
        tail = "\n      ".join(self.steps)
        self.findings.append(f"{finding}\n      {tail}")

    # what there is

    def _snapshot(self) -> Any:
        """Return what a refused operation must not change: state, outputs, cloud, cluster."""
        return (
            self.stage.recorded if self.stage.engine.stack_exists("dev") else (set(), {}),
            self._leftovers(),
            self.stage.installed,
            self._names(NODE_POOLS),
            self._names(NODE_CLAIMS),
            self.theirs and {k: v for k, v in self._of_others().items() if k != "cloud"},
        )

    def _leftovers(self) -> Identifiers:
        found = self.stage.cloud.leftovers()
        return {(resource, name) for resource, names in found.items() for name in names}

    def _of_others(self) -> dict[str, Any]:
        iam, sqs = self.stage.client("iam"), self.stage.client("sqs")
        url = sqs.get_queue_url(QueueName="of-others")["QueueUrl"]
        queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        kept = {"Policy", "MessageRetentionPeriod", "KmsMasterKeyId", "SqsManagedSseEnabled"}
        return {
            "cloud": self.theirs["cloud"] if self.theirs else self._leftovers() & self._foreign,
            "role": iam.get_role(RoleName="of-others")["Role"]["AssumeRolePolicyDocument"],
            "policies of the role": iam.list_attached_role_policies(RoleName="of-others")[
                "AttachedPolicies"
            ],
            "tags of the role": iam.list_role_tags(RoleName="of-others")["Tags"],
            "queue": {k: v for k, v in queue.items() if k in kept},
            "NodePool of EKS Auto Mode": self._spec(f"{NODE_POOLS}/general-purpose"),
            "NodeClaim of EKS Auto Mode": self._spec(f"{NODE_CLAIMS}/auto-1"),
        }

    def _spec(self, path: str) -> Any:
        held = self.stage.cluster.get(path)
        if held is None:
            return None
        return held["spec"], held["metadata"].get("deletionTimestamp"), held["metadata"]["uid"]

    def _names(self, collection: str) -> frozenset[str]:
        """Return the names of objects that are not being deleted."""
        return frozenset(
            wire["metadata"]["name"]
            for wire in self.stage.cluster.list(collection)
            if "deletionTimestamp" not in wire["metadata"]
        )

    def _has_entry(self, role_arn: str) -> bool:
        entries = {entry["principalArn"] for entry in self.stage.cloud.access_entries()}
        config_map = self.stage.cluster.get(AWS_AUTH) or {"data": {}}
        role = role_arn.rpartition("/")[2]
        return role_arn in entries or f"/{role}" in config_map["data"].get("mapRoles", "")

    @property
    def _deployment(self) -> str:
        folder, _, _ = DEPLOYMENT.rpartition("/")
        folder = folder.replace("kube-system", self.settings.get("namespace", "kube-system"))
        return f"{folder}/{self.settings.get('name', 'karpenter')}"

    # what surrounds a run

    _foreign: Identifiers = field(default_factory=set)

    def _create_theirs(self) -> None:
        """Create what belongs to others in the cloud."""
        before = self._leftovers()
        self._create_network()
        iam, sqs = self.stage.client("iam"), self.stage.client("sqs")
        trust = {"Version": "2012-10-17", "Statement": []}
        iam.create_role(
            RoleName="of-others",
            AssumeRolePolicyDocument=json.dumps(trust),
            Tags=[{"Key": "team", "Value": "others"}],
        )
        sqs.create_queue(QueueName="of-others")
        self.stage.run_instance()
        self._foreign = self._leftovers() - before

    def _create_network(self) -> None:
        """Create a network for the instance of others; the testbed's cluster has one."""

    def _delete_network(self) -> None:
        """Delete what `_create_network` created."""

    def _join_auto_mode(self) -> None:
        """Let EKS Auto Mode keep a NodePool and a NodeClaim in the stack's CRDs."""
        for definition in (NODE_POOLS, NODE_CLAIMS):
            plural, group = definition.rpartition("/")[2], "karpenter.sh"
            self.stage.wait_until_served(f"{plural}.{group}")
        pool = AUTO_MODE.node_pool("general-purpose")
        self.stage.cluster.request("POST", NODE_POOLS, pool)
        claim = AUTO_MODE.claim(
            "auto-1", "general-purpose", provider_id="aws:///us-west-2a/i-auto", node="auto-1"
        )
        self.stage.cluster.request("POST", NODE_CLAIMS, claim)

    def _end_nodes(self) -> None:
        for number, instance in enumerate(self.instances):
            self.stage.client("ec2").terminate_instances(InstanceIds=[instance])
            path = f"{NODE_CLAIMS}/claim-{number}"
            if self.stage.cluster.get(path) is not None:
                self.stage.cluster.merge(path, {"metadata": {"finalizers": None}})
                self.stage.cluster.delete(path)
        self.instances.clear()
        self.needed = None

    def _clear(self) -> None:
        """Remove what belongs to others, so that the next run begins with an empty region."""
        self.stage.remove_definitions(*self.stage.installed)
        self.stage.cluster.delete(AWS_AUTH)
        sqs, ec2 = self.stage.client("sqs"), self.stage.client("ec2")
        self.stage.client("iam").delete_role(RoleName="of-others")
        sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="of-others")["QueueUrl"])
        kept = [name for resource, name in self._foreign if resource == "instances"]
        ec2.terminate_instances(InstanceIds=[*kept, *self.instances])
        waiter = {"Delay": 1, "MaxAttempts": 60}
        ec2.get_waiter("instance_terminated").wait(InstanceIds=kept, WaiterConfig=waiter)
        self._delete_network()
        self._expect(not self._leftovers(), f"left in the region: {sorted(self._leftovers())}")

    def _operate(self, operation: Callable[[], object]) -> str:
        """Run an operation of the engine; return why it failed, empty if it did not."""
        try:
            operation()
        except EngineError as refused:
            lines = [line.strip() for line in refused.output.splitlines() if "error:" in line]
            return "; ".join(dict.fromkeys(lines)) or refused.output[-500:]
        return ""

    def _record(self, title: str, settings: Mapping[str, str]) -> None:
        self.steps.append(" ".join([title, *(f"{k}={v}" for k, v in settings.items())]))


def runs(seeds: list[int], life: type[Run] = Run) -> Iterator[tuple[int, Run, float]]:
    """Play one run of class `life` for each seed, all on one control plane.

    Yields the seed, the run and its duration in seconds.
    """
    with (
        tempfile.TemporaryDirectory(prefix="joiner-settings-") as folder,
        Testbed(
            directory=Path(folder) / "testbed",
            until=Part.CLOUD,
            has_eks_cluster=life.has_eks_cluster,
        ) as testbed,
    ):
        create_system_nodes(testbed)
        for seed in seeds:
            own = Path(folder) / str(seed)
            own.mkdir()
            began = time.monotonic()
            run = life(open_stage(testbed, own), random.Random(seed))
            run.play()
            yield seed, run, time.monotonic() - began


def main(life: type[Run], program: str, description: str | None) -> int:
    """Play the seeds of the command line as runs of class `life`, and return the exit code.

    Prints the findings. `program` and `description` are for the text of `--help`: the name of the
    module that `python -m` runs, and what it does.
    """
    parser = make_parser(program, description)
    add_seeds(parser, "1-20")
    chosen = parser.parse_args()
    found = 0
    for seed, run, seconds in runs(chosen.seeds, life):
        found += len(run.findings)
        print(f"seed {seed}: {len(run.steps)} steps in {seconds:.0f} s, ", end="")
        print(f"{len(run.findings)} findings", flush=True)
        for finding in run.findings:
            print(f"    {finding}", flush=True)
    print(f"{len(chosen.seeds)} runs, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Run, "bench.settingschanges", __doc__))
