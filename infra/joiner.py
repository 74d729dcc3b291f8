"""The Joiner component for any Pulumi program: IAM roles, controller and NodePools.

    cluster = EksCluster.found(ClusterLocation("my-cluster", "us-west-2"))
    Joiner("joiner", JoinerArgs(cluster=cluster, image="registry.example.com/joiner:1"))

Its parts are components too: `iam.NodeRole` and `iam.ControllerRole` (identity),
`access.NodeAccess`, `interruption.InterruptionQueue`, `discovery.DiscoveryTags`,
`customresources.CustomResources`, `controller.Controller`, `nodepools.NodePools`. They do not
import one another; this module connects them.

Beside the Pulumi providers, the guards and drains of a stack use the AWS credentials of the user
who runs the program. Providers and credentials must belong to the cluster's account. Without a
kubeconfig, the component's Kubernetes provider runs the AWS CLI.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pulumi
import pulumi_aws as aws

from controller.apis import labels
from infra import names, nodepools
from infra.cluster.ekscluster import EksCluster, kubernetes_provider
from infra.clusterapi import ClusterLocation
from infra.config.checks import refuse_unusable_policies, require_options
from infra.config.forms import NodeAccess as NodeAccessKind
from infra.config.settings import InstallationSettings
from infra.deployment import customresources, image
from infra.deployment.controller import Controller, ControllerArgs
from infra.deployment.controllerobjects import controller_objects, refuse_foreign_objects
from infra.deployment.customresources import CustomResources, CustomResourcesArgs
from infra.discovery import DiscoveryTags, DiscoveryTagsArgs, check_existing_tags
from infra.guards import preflight
from infra.guards.deletionguard import DeletionGuard, retention_options
from infra.guards.neededbynodes import Needs
from infra.guards.ownership import Given, Logical, Name, refuse_other_account, refuse_taken
from infra.guards.removalproof import RemovalProof
from infra.identity.access import (
    ENTRIES,
    MAPPED_GROUPS,
    NodeAccess,
    NodeAccessArgs,
    kind_of_access,
    refuse_unreadable_mapping,
)
from infra.identity.controlleridentity import provider_arn, refuse_unusable_provider
from infra.identity.iam import (
    ControllerRole,
    ControllerRoleArgs,
    NodeRole,
    NodeRoleArgs,
    controller_policies,
)
from infra.inputs import are_known, then
from infra.interruption import InterruptionQueue, InterruptionQueueArgs
from infra.lifecycle.fieldmanager import take_over_fields
from infra.lifecycle.teardown import Drain, DrainArgs, Installation, NothingLeft
from infra.nodepools import NodePools, NodePoolsArgs, Wire, default_manifests
from infra.policies import Place
from infra.policypack.enforcement import check_against_rules
from infra.release import released_image, sources_digest
from infra.state import full_name_of_stack, recorded_resources

WINDOWS: Mapping[NodeAccessKind, NodeAccessKind] = {
    "EC2_LINUX": "EC2_WINDOWS",
    "aws-auth": "aws-auth-windows",
}
"""The access method of Windows nodes, by the access method of Linux nodes."""


@dataclass(frozen=True, kw_only=True)
class JoinerArgs(InstallationSettings):
    """Arguments of `Joiner`: the cluster, its NodePools, and the settings of a stack."""

    cluster: EksCluster
    """The cluster that nodes join: an existing one, or one that the program creates. Programs in
    other languages may state name and region of an existing one alone."""

    secret_env: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Environment variables of the container that are stored in a Secret, not the Deployment."""

    installation: Installation | str | None = None
    """The installation that owns everything created: the value of the tag
    `joiner.dev/installation`, or the Installation resource if providers had to wait for it.
    Default: organization/project/stack."""

    node_pools: Sequence[Wire] = field(default_factory=default_manifests)
    """NodePools, EC2NodeClasses and so on as in YAML. `nodepools.manifests_in` reads a folder;
    `nodepools.manifest` converts a typed object."""


class Joiner(pulumi.ComponentResource):
    """The AWS resources and Kubernetes objects that Joiner needs, the controller, and NodePools."""

    node_role_name: pulumi.Output[str]
    node_role_arn: pulumi.Output[str]
    windows_node_role_name: pulumi.Output[str]
    """The role of Linux nodes, if Windows nodes have none of their own."""

    instance_profile: pulumi.Output[str]
    windows_instance_profile: pulumi.Output[str]
    """The instance profile of Linux nodes, if Windows nodes have none of their own."""

    controller_role_arn: pulumi.Output[str]
    interruption_queue: pulumi.Output[str]
    """The name of the SQS queue."""

    namespace: pulumi.Output[str]
    deployment: pulumi.Output[str]
    """The name of the controller's Deployment."""

    def __init__(
        self, name: str, args: JoinerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Check the settings, then create all resources.

        Raises:
            ConfigError: a setting cannot be used, or a name is taken. Nothing has been created.

        """
        self._name, self._args = name, args
        self._image = args.image or released_image()
        self._first: list[pulumi.Resource] = []
        self._found: Mapping[Logical, Name] = {}
        self._options = require_options(args.settings)
        refuse_unusable_policies(
            args.node_policies, args.node_statements, args.controller_statements
        )
        nodepools.refuse_faulty(args.node_pools)
        nodepools.refuse_static(args.node_pools, self._options.feature_gates)
        self._kinds = customresources.definitions_to_install(args.existing_crds)
        self._stack = full_name_of_stack()
        self._asked = opts or pulumi.ResourceOptions()
        super().__init__(
            "joiner:infra:Joiner",
            name,
            None,
            pulumi.ResourceOptions.merge(
                opts,
                pulumi.ResourceOptions(transformations=[self._as_one_of_ours, check_against_rules]),
            ),
        )
        given = args.installation or self._stack
        self._title = given.title if isinstance(given, Installation) else given
        self._access = kind_of_access(args.node_access, args.cluster)
        tags = self._refuse(self._discovery())
        self._installation = (
            given
            if isinstance(given, Installation)
            else Installation(
                f"{name}-installation", args.cluster, given, pulumi.ResourceOptions(parent=self)
            )
        )
        self._needed = self._needed_by_nodes()
        self._first = [
            self._installation,
            self._deletion_guard(f"{name}-deletion-guard", after=[self._installation]),
            self._removal_proof(f"{name}-removal-proof", after=[self._installation]),
        ]
        self._first.append(self._create_shared_guard())
        self._mine = pulumi.ResourceOptions(parent=self)
        self._in_cluster = pulumi.ResourceOptions(parent=self, providers=self._cluster_provider())
        self._make(tags)

    def _as_one_of_ours(
        self, made: pulumi.ResourceTransformationArgs
    ) -> pulumi.ResourceTransformationResult | None:
        """Tag a resource, and make it depend on the component's own dependencies and guards.

        A Pulumi resource transformation. A resource that exists in the cluster or in AWS with
        the tag of this installation is adopted (`_adoption_options`).
        """
        if isinstance(made.resource, pulumi.ComponentResource) or not self._first:
            return None
        props: dict[str, Any] = dict(made.props)
        if isinstance(getattr(type(made.resource), "tags", None), property):
            ours = {labels.TAG_INSTALLATION: self._title}
            props["tags"] = {**self._args.tags, **(props.get("tags") or {}), **ours}
        opts = pulumi.ResourceOptions.merge(
            made.opts, self._adoption_options(made.type_, made.name)
        )
        for before in (self._asked.depends_on, self._first):
            opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=before))
        return pulumi.ResourceTransformationResult(props, opts)

    def _adoption_options(self, type_: str, name: str) -> pulumi.ResourceOptions | None:
        """Return the options that adopt an existing resource of this name with our tag, or None.

        A resource with an identity is imported. Any other is removed before the engine creates
        its own, which has no effect on a resource that the stack's state has and that stays.
        """
        found = self._found.get((type_, name))
        if found is None:
            return None
        if found.identity:
            return pulumi.ResourceOptions(import_=found.identity)
        hook = pulumi.ResourceHook(f"{name}-{type_}", lambda _: found.remove())
        binding = pulumi.ResourceHookBinding(before_create=[hook])
        return pulumi.ResourceOptions(hooks=binding)

    def _deletion_guard(
        self,
        name: str,
        *,
        after: Sequence[pulumi.Resource],
    ) -> DeletionGuard:
        args = self._args
        made = {
            "nodeRole": (args.node_role, self._node_role_name),
            "controllerRole": (args.controller_role, self._controller_role_name),
            "queue": (args.queue, self._queue_name),
        }
        return DeletionGuard(
            name,
            args.cluster,
            {key: given for key, (presence, given) in made.items() if presence == "create"},
            installation=self._title,
            retained=args.retain_on_delete,
            confirmed=args.confirm_delete,
            needed=self._needed,
            settings={
                "iamPath": args.iam_path,
                "instanceProfileName": args.instance_profile_name or "",
                "namePrefix": args.name_prefix,
                "nodeAccess": self._access,
                "nodeRole": args.node_role,
                "nodeRoleName": args.node_role_name or "",
                "windowsNodes": str(args.windows_nodes).lower(),
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )

    def _create_shared_guard(self) -> DeletionGuard:
        """Create the guard that records what this stack creates and other stacks may use.

        It records the CRDs, the OIDC provider and the Pod Identity agent. The engine deletes the
        guard after all of them.
        """
        args, cluster = self._args, self._args.cluster
        makes_role = args.controller_role == "create"
        shared: dict[str, Any] = {"definitions": [w["metadata"]["name"] for w in self._kinds]}
        if makes_role and args.identity == "irsa" and args.oidc_provider == "create":
            parts = pulumi.Output.all(cluster.place, cluster.issuer)
            shared["oidcProvider"] = parts.apply(lambda known: provider_arn(*known))
        elif args.identity == "irsa":
            shared["oidcProvider"] = ""  # An existing one is not deleted.
        if args.identity == "pod-identity" and args.pod_identity_agent == "create":
            shared["agent"] = True
        return DeletionGuard(
            f"{self._name}-shared",
            cluster,
            {},
            installation=self._title,
            retained=args.retain_on_delete,
            shared=shared,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _needed_by_nodes(self) -> Needs:
        """Return what this stack creates that nodes depend on, by key: roles, profiles, access."""
        args = self._args
        needed = self._needed_of(
            "nodeRole", "instanceProfile", "nodeAccess", self._node_role_name, self._access
        )
        if args.windows_nodes:
            keys = ("windowsNodeRole", "windowsInstanceProfile", "windowsNodeAccess")
            needed |= self._needed_of(*keys, self._windows_role_name, self._windows_access)
        if args.instance_profile_name:
            del needed["instanceProfile"]
        return needed

    def _needed_of(
        self, role: str, profile: str, access: str, name: pulumi.Input[str], way: NodeAccessKind
    ) -> dict[str, dict[str, pulumi.Input[str]]]:
        """Return a node role, its instance profile and its cluster access, by the keys given.

        A role that exists already is not among them; nor is access if the stack creates none.
        """
        args, needed = self._args, dict[str, dict[str, pulumi.Input[str]]]()
        arn = self._arn("role", name)
        if args.node_role == "create":
            needed[role] = {"arn": arn}
        else:
            arn = aws.iam.get_role_output(
                name=name, opts=pulumi.InvokeOutputOptions(parent=self)
            ).arn
        needed[profile] = {"arn": self._arn("instance-profile", name)}
        if way != "none":
            # An access entry and an aws-auth mapping count as the same: when one replaces the
            # other, the engine creates the new one before it deletes the old one.
            system = "Windows" if way.lower().endswith("windows") else "Linux"
            needed[access] = {"arn": arn, "system": system}
        return needed

    def _arn(self, kind: str, name: pulumi.Input[str]) -> pulumi.Output[str]:
        cluster, path = self._args.cluster, self._args.iam_path
        return pulumi.Output.concat(
            "arn:", cluster.partition, ":iam::", cluster.account, f":{kind}{path}", name
        )

    def _node_ending_options(self, after: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
        """Return the options of a resource whose deletion terminates nodes, unless nodes stay."""
        mine = pulumi.ResourceOptions(parent=self, depends_on=list(after))
        return pulumi.ResourceOptions.merge(
            mine, retention_options("nodes", self._args.retain_on_delete)
        )

    def _retainable_options(self, key: str) -> pulumi.ResourceOptions:
        """Return the options of a part that may be retained in AWS when it leaves the stack."""
        stays = retention_options(key, self._args.retain_on_delete)
        return pulumi.ResourceOptions.merge(self._mine, stays)

    def _cluster_provider(self) -> list[pulumi.ProviderResource]:
        """Return a Kubernetes provider of this cluster, or nothing if the program passes one."""
        if self.get_provider("kubernetes:core/v1:Pod"):
            return []
        cluster, recorded = self._args.cluster, recorded_resources()
        adopts = customresources.are_kept(
            cluster.known_location, self._args.existing_crds, self._title, recorded
        )
        name = f"{self._name}-kubernetes"
        return [kubernetes_provider(cluster, name, self._mine, adopts=adopts)]

    def _make(self, tags: DiscoveryTagsArgs) -> None:
        args, mine = self._args, self._mine
        node_role = self._node_role()
        access = NodeAccess(
            f"{self._name}-node-access",
            NodeAccessArgs(
                kind=self._access,
                cluster=args.cluster,
                node_role_arn=node_role.role_arn,
                node_role_id=node_role.role_id,
            ),
            mine,
        )
        queue = InterruptionQueue(
            f"{self._name}-interruption",
            InterruptionQueueArgs(
                cluster=args.cluster,
                queue_name=self._queue_name,
                presence=args.queue,
                key=args.queue_key,
            ),
            self._retainable_options("queue"),
        )
        windows = self._windows_nodes()
        roles = [node_role, *(part for part in windows if isinstance(part, NodeRole))]
        controller_role = self._controller_role(roles, queue)
        discovery = DiscoveryTags(f"{self._name}-discovery", tags, mine)
        kinds = CustomResources(
            f"{self._name}-crds",
            CustomResourcesArgs(definitions=self._kinds, installation=self._title),
            self._in_cluster,
        )
        groundwork: list[pulumi.Resource] = [node_role, access, *windows, queue, controller_role]
        groundwork += [discovery, kinds]
        # A destroy deletes this guard before the groundwork: it checks who owns the groundwork, and
        # which nodes depend on it, before any of it is deleted. Where nodes stay, it is deleted
        # before the controller too, so that a refused destroy has changed nothing.
        guard = partial(self._deletion_guard, f"{self._name}-deletion-guard-before-end")
        nodes_stay = "nodes" in self._args.retain_on_delete
        if not nodes_stay:
            groundwork.append(guard(after=groundwork))
        controller = self._controller(controller_role, groundwork)
        drain = self._node_pools(roles, controller)
        if nodes_stay:
            guard(after=[drain])
        self.node_role_name, self.node_role_arn = node_role.role_name, node_role.role_arn
        self.windows_node_role_name = roles[-1].role_name
        self.instance_profile = node_role.profile_name
        self.windows_instance_profile = roles[-1].profile_name
        self.controller_role_arn = controller_role.role_arn
        self.interruption_queue = queue.queue_name
        self.namespace = pulumi.Output.from_input(args.namespace)
        self.deployment = pulumi.Output.from_input(args.name)
        self.register_outputs(
            {
                "nodeRoleName": self.node_role_name,
                "nodeRoleArn": self.node_role_arn,
                "instanceProfile": self.instance_profile,
                "controllerRoleArn": self.controller_role_arn,
                "interruptionQueue": self.interruption_queue,
                "namespace": self.namespace,
                "deployment": self.deployment,
            }
        )

    @property
    def _path(self) -> str | None:
        # "/" is IAM's default. Sending no path leaves stacks unchanged that never set one.
        return None if self._args.iam_path == "/" else self._args.iam_path

    @property
    def _node_role_name(self) -> pulumi.Input[str]:
        args = self._args
        named = partial(names.node_role, prefix=args.name_prefix)
        return args.node_role_name or then(args.cluster.name, named)

    @property
    def _controller_role_name(self) -> pulumi.Input[str]:
        args = self._args
        named = partial(names.controller_role, prefix=args.name_prefix)
        return args.controller_role_name or then(args.cluster.name, named)

    @property
    def _queue_name(self) -> pulumi.Input[str]:
        return self._args.queue_name or then(self._args.cluster.name, names.queue)

    def _discovery(self) -> DiscoveryTagsArgs:
        args = self._args
        return DiscoveryTagsArgs(
            resource_ids=[
                *(args.subnet_ids or args.cluster.subnet_ids),
                *(args.security_group_ids or (args.cluster.security_group_id,)),
            ],
            cluster_name=args.cluster.name,
            installation=self._title,
            discovery=args.discovery_tags,
            discovery_key=args.discovery_tag_key,
            of_cluster=args.cluster_tags,
        )

    def _refuse(self, tags: DiscoveryTagsArgs) -> DiscoveryTagsArgs:
        """Check for conflicts before anything is created; return the discovery tags to set.

        Checks only what is known while the program runs: without a known cluster location or with
        unknown names, the given tags are returned unchecked. Tags that others have set already
        are left out.

        Raises:
            ConfigError: a name, CRD, object or tag belongs to another installation or tool.

        """
        args, cluster = self._args, self._args.cluster
        location, named = cluster.known_location, self._named
        if location is None or not are_known(*named):
            return tags
        where = Place(*map(str, named[:4]))
        refuse_other_account(location, where.account)
        self._found = refuse_taken(
            self._make_given(*map(str, named)),
            location=location,
            installation=self._title,
            recorded=recorded_resources(),
        )
        # A cluster that this stack creates has its creator as administrator.
        exists = isinstance(cluster.endpoint, str)
        self._warn(location, exists=exists, answers=exists and preflight.require_access(location))
        if self._access in MAPPED_GROUPS:
            refuse_unreadable_mapping(location)
        customresources.refuse_other_kinds(location, args.existing_crds, self._title)
        refuse_foreign_objects(location, str(args.namespace), str(args.name))
        objects = controller_objects(str(args.namespace), str(args.name))
        take_over_fields(location, [one.path for one in objects])
        tags = check_existing_tags(tags, pulumi.InvokeOptions(parent=self))
        if args.identity == "irsa" and isinstance(cluster.issuer, str):
            refuse_unusable_provider(
                args.oidc_provider,
                place=where,
                issuer=cluster.issuer,
                stack=self._stack,
                iam=location.client("iam"),
            )
        return tags

    def _warn(self, location: ClusterLocation, *, exists: bool, answers: bool) -> None:
        """Warn of missing prerequisites that would prevent the first node from launching.

        Args:
            location: the location of the cluster.
            exists: whether the cluster exists. One that this stack creates gets its agent and its
                DNS before the controller starts.
            answers: whether its API server answers.

        """
        args = self._args
        lacks = args.spot_role == "existing"
        by_agent = args.identity == "pod-identity" and args.pod_identity_agent == "existing"
        troubles = [*(preflight.of_account(location, args.node_pools) if lacks else ())]
        if exists:
            isolated = self._options.isolated_vpc
            has_entry = self._access in ENTRIES and args.node_role == "create"
            role = str(self._node_role_name)
            troubles += [
                *(preflight.of_entry(location, role) if has_entry else ()),
                *(preflight.of_agent(location) if by_agent else ()),
                *(preflight.of_endpoints(location, args.identity) if isolated else ()),
            ]
        if answers:
            troubles += [
                *(preflight.of_dns(location) if args.dns_policy == "ClusterFirst" else ()),
                *preflight.of_nodes(location, args.node_selector, args.tolerations),
            ]
        for trouble in troubles:
            pulumi.warn(trouble)

    @property
    def _named(self) -> list[pulumi.Input[str]]:
        """The arguments of `_make_given`; some may be outputs that are known only during `up`."""
        args, cluster = self._args, self._args.cluster
        place = [cluster.partition, cluster.region, cluster.account, cluster.name]
        roles = [self._node_role_name, self._controller_role_name, self._windows_role_name]
        return [*place, self._queue_name, *roles, args.namespace, args.name]

    def _make_given(self, *named: str) -> Given:
        args, where = self._args, Place(*named[:4])
        queue, node_role, controller_role, windows_role, namespace, name = named[4:]
        return Given(
            component=self._name,
            place=where,
            queue=queue,
            node_role=node_role,
            windows_node_role=windows_role if args.windows_nodes else None,
            controller_role=controller_role,
            namespace=namespace,
            service_account=name,
            repository=None if self._image else names.repository(where.cluster_name),
            access_entry=self._access in ENTRIES,
            entry_types={"node": self._access, "windows-node": self._windows_access},
            association=args.identity == "pod-identity",
            agent=args.pod_identity_agent == "create",
            controller_policies=self._policy_names(where),
            iam_path=args.iam_path,
            existing=self._existing,
        )

    def _removal_proof(self, name: str, *, after: Sequence[pulumi.Resource]) -> RemovalProof:
        """Create the proof that a destroy removed everything except what is retained."""
        titles = {"nodeRole": "node role", "controllerRole": "controller role", "queue": "queue"}
        retained = {titles[key] for key in self._args.retain_on_delete if key in titles}

        def plain_given(named: Sequence[str]) -> dict[str, Any]:
            given = self._make_given(*named)
            if "node role" in retained:
                given = dataclasses.replace(given, windows_node_role=None)
            # Other workloads may use the agent.
            return dataclasses.replace(given, agent=False, existing=given.existing | retained).plain

        named = self._named
        return RemovalProof(
            name,
            self._args.cluster,
            plain_given([str(one) for one in named])
            if are_known(*named)
            else pulumi.Output.all(*named).apply(plain_given),
            installation=self._title,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )

    @property
    def _existing(self) -> frozenset[str]:
        """What the settings name but the stack does not create, in the titles of `Given`."""
        args = self._args
        presences = {
            "node role": args.node_role,
            "controller role": args.controller_role,
            "queue": args.queue,
            "profile": "existing" if args.instance_profile_name else "create",
        }
        return frozenset(what for what, presence in presences.items() if presence == "existing")

    def _policy_names(self, place: Place) -> dict[str, str]:
        args = self._args
        titles = controller_policies(
            zonal_shift=self._options.enable_zonal_shift,
            makes_profiles=args.instance_profiles == "managed",
            image_parameters=bool(args.image_parameters),
            extra=bool(args.controller_statements),
        )
        cluster, region = place.cluster_name, place.region
        return {
            title: names.controller_policy(title, cluster, region, args.name_prefix)
            for title in titles
        }

    def _node_role(self) -> NodeRole:
        args = self._args
        return self._role_of_nodes(
            f"{self._name}-node",
            self._node_role_name,
            presence=args.node_role,
            profile_name=args.instance_profile_name,
            spot_role=args.spot_role,
        )

    def _windows_nodes(self) -> list[pulumi.ComponentResource]:
        """Create the role and cluster access of Windows nodes; nothing if they have no own role."""
        args, name = self._args, f"{self._name}-windows-node"
        if not args.windows_nodes:
            return []
        role = self._role_of_nodes(name, self._windows_role_name)
        way = NodeAccessArgs(
            kind=self._windows_access,
            cluster=args.cluster,
            node_role_arn=role.role_arn,
            node_role_id=role.role_id,
        )
        return [role, NodeAccess(f"{name}-access", way, self._mine)]

    @property
    def _windows_access(self) -> NodeAccessKind:
        """The access method of Windows nodes that have their own role."""
        return WINDOWS.get(self._access, self._access)

    def _role_of_nodes(self, name: str, role_name: pulumi.Input[str], **more: Any) -> NodeRole:
        """Create a node role; the roles of Linux and Windows nodes have the same permissions."""
        args = self._args
        role = NodeRoleArgs(
            cluster=args.cluster,
            name=role_name,
            path=self._path,
            statements=args.node_statements,
            policies=args.node_policies,
            permissions_boundary=args.permissions_boundary,
            **more,
        )
        return NodeRole(name, role, self._retainable_options("nodeRole"))

    @property
    def _windows_role_name(self) -> pulumi.Input[str]:
        named = partial(names.windows_node_role, prefix=self._args.name_prefix)
        return then(self._args.cluster.name, named)

    def _controller_role(
        self, roles: Sequence[NodeRole], queue: InterruptionQueue
    ) -> ControllerRole:
        args = self._args
        return ControllerRole(
            f"{self._name}-controller",
            ControllerRoleArgs(
                cluster=args.cluster,
                stack=self._stack,
                installation=self._title,
                name=self._controller_role_name,
                presence=args.controller_role,
                path=self._path,
                prefix=args.name_prefix,
                statements=args.controller_statements,
                queue_key=args.queue_key,
                identity=args.identity,
                namespace=args.namespace,
                service_account=args.name,
                node_role_arns=[role.role_arn for role in roles],
                queue_arn=queue.queue_arn,
                pod_identity_agent=args.pod_identity_agent,
                oidc_provider=args.oidc_provider,
                permissions_boundary=args.permissions_boundary,
                zonal_shift=self._options.enable_zonal_shift,
                makes_profiles=args.instance_profiles == "managed",
                image_parameters=args.image_parameters,
            ),
            self._retainable_options("controllerRole"),
        )

    def _controller(
        self, role: ControllerRole, groundwork: Sequence[pulumi.Resource]
    ) -> Controller:
        """Create the controller's objects.

        `NothingLeft` is created first, so that a destroy deletes it after the controller. It then
        proves that the controller left nothing behind.
        """
        args, cluster = self._args, self._args.cluster
        nothing_left = NothingLeft(
            f"{self._name}-nothing-left",
            cluster,
            self._title,
            self._node_ending_options(groundwork),
        )
        return Controller(
            f"{self._name}-karpenter",
            ControllerArgs(
                cluster=cluster,
                namespace=args.namespace,
                name=args.name,
                image=self._image or self._build_image(),
                replicas=args.replicas,
                cpu=args.cpu,
                memory=args.memory,
                options=self._options,
                environment={
                    **args.env,
                    "CLUSTER_NAME": cluster.name,
                    "INSTALLATION": self._title,
                    "INTERRUPTION_QUEUE": self._queue_name,
                    "SYSTEM_NAMESPACE": args.namespace,
                    "KARPENTER_SERVICE": args.name,
                    "AWS_REGION": cluster.region,
                },
                secret_environment=args.secret_env,
                identity=args.identity,
                role_arn=role.role_arn,
                create_namespace=args.create_namespace,
                metrics_discovery=args.metrics_discovery,
                extra_labels=args.extra_labels,
                pod_annotations=args.pod_annotations,
                node_selector=args.node_selector,
                tolerations=args.tolerations,
                affinity=args.affinity,
                image_pull_secrets=args.image_pull_secrets,
                dns_policy=args.dns_policy,
                after=[*groundwork, nothing_left],
            ),
            self._in_cluster,
        )

    def _build_image(self) -> pulumi.Output[str]:
        args = image.ControllerImageArgs(
            cluster=self._args.cluster,
            repository=then(self._args.cluster.name, names.repository),
            sources=sources_digest(),
        )
        return image.ControllerImage(f"{self._name}-image", args, self._mine).reference

    def _node_pools(self, roles: Sequence[NodeRole], controller: Controller) -> Drain:
        """Create the NodePools between two drains; return the drain that a destroy deletes first.

        A destroy deletes in reverse order: one drain before the NodePools, the other after them.
        """
        args = self._args
        of_windows = {
            "WINDOWS_NODE_ROLE": roles[-1].role_name,
            "WINDOWS_INSTANCE_PROFILE": roles[-1].profile_name,
        }
        drain = partial(
            DrainArgs,
            cluster=args.cluster,
            installation=self._title,
            namespace=args.namespace,
            deployment=args.name,
            timeout_seconds=args.drain_timeout.total_seconds(),
            delete_foreign_node_pools=args.delete_foreign_node_pools,
            stack=self._stack,
            delete_other_node_pools="nodePools" in args.confirm_delete,
            nodes_stay="nodes" in args.retain_on_delete,
        )
        # If `up` fails on the NodePools, this drain exists already, and a destroy drains nodes.
        before_controller_goes = Drain(
            f"{self._name}-drain-before-controller",
            drain(deletes=True),
            self._node_ending_options([controller]),
        )
        node_pools = NodePools(
            f"{self._name}-node-pools",
            NodePoolsArgs(
                cluster=args.cluster,
                has_controller=True,
                manifests=args.node_pools,
                variables={
                    "CLUSTER_NAME": args.cluster.name,
                    "NODE_ROLE": roles[0].role_name,
                    "INSTANCE_PROFILE": roles[0].profile_name,
                    "DISCOVERY_TAG": args.discovery_tag_key,
                    **(of_windows if args.windows_nodes else {}),
                },
                stack=self._stack,
                delete_timeout=args.drain_timeout,
                after=[before_controller_goes],
            ),
            self._in_cluster,
        )
        return Drain(
            f"{self._name}-drain",
            drain(deletes=False),
            self._node_ending_options([before_controller_goes, node_pools]),
        )
