"""Joiner as one component, for any Pulumi program: from the roles to the NodePools.

    cluster = EksCluster.found(ClusterLocation("my-cluster", "us-west-2"))
    Joiner("joiner", JoinerArgs(cluster=cluster, image="registry.example.com/joiner:1"))

Its parts are components too: `iam.NodeRole` and `iam.ControllerRole` (identity),
`access.NodeAccess`, `interruption.InterruptionQueue`, `discovery.DiscoveryTags`,
`customresources.CustomResources`, `deployment.Controller`, `nodepools.NodePools`. They know
nothing of one another; here they are put together.

What a stack has made is looked after by the credentials and the AWS CLI of whoever runs the
program, beside the providers: both must be of the cluster's account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pulumi

from controller.apis import labels
from infra import customresources, image, names, nodepools
from infra.access import (
    ENTRIES,
    MAPPED_GROUPS,
    NodeAccess,
    NodeAccessArgs,
    kind_of_access,
    refuse_unreadable_mapping,
)
from infra.config import (
    Identity,
    Presence,
    Profiles,
    Scraping,
    following,
    require_options,
)
from infra.config import NodeAccess as NodeAccessKind
from infra.config import Wire as JsonObject
from infra.customresources import CustomResources, CustomResourcesArgs
from infra.deployment import Controller, ControllerArgs
from infra.discovery import DiscoveryTags, DiscoveryTagsArgs, beside_others
from infra.ekscluster import EksCluster, kubernetes_provider
from infra.enforcement import held_to_rules
from infra.holdings import Holdings, staying
from infra.iam import (
    ControllerRole,
    ControllerRoleArgs,
    NodeRole,
    NodeRoleArgs,
    controller_policies,
)
from infra.identity import refuse_unusable_provider
from infra.inputs import known, then
from infra.interruption import InterruptionQueue, InterruptionQueueArgs
from infra.nodepools import NodePools, NodePoolsArgs, Wire, default_manifests
from infra.noderolename import NodeRoleName
from infra.ownership import Given, refuse_other_account, refuse_taken
from infra.policies import Place
from infra.teardown import Drain, DrainArgs, Installation, NothingLeft

WINDOWS: Mapping[NodeAccessKind, NodeAccessKind] = {
    "EC2_LINUX": "EC2_WINDOWS",
    "aws-auth": "aws-auth-windows",
}
"""How Windows nodes are let in, by how those of Linux are."""


@dataclass(frozen=True, kw_only=True)
class JoinerArgs:
    """The cluster, and how Joiner is to be on it: the settings of README, in Python's spelling.

    What decides which resources there are (identity, access, tags, NodePools …) is known while
    the program runs; everything else may come from other resources.
    """

    cluster: EksCluster
    image: pulumi.Input[str] | None = None
    """The controller's image; built from the checkout's Dockerfile when left out."""

    namespace: pulumi.Input[str] = "kube-system"
    name: pulumi.Input[str] = "karpenter"
    """Of the Deployment, service account and Service."""

    replicas: pulumi.Input[int] = 2
    cpu: pulumi.Input[str] = "1"
    memory: pulumi.Input[str] = "1Gi"
    settings: Mapping[str, str] = field(default_factory=dict)
    """The controller's, by environment variable."""

    create_namespace: bool = False
    scraping: Scraping = "none"
    extra_labels: Mapping[str, str] = field(default_factory=dict)
    """Of all that the controller is made of in the cluster, and of its pods."""

    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """What the container finds in its environment beside the settings."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[JsonObject] = ()
    affinity: JsonObject = field(default_factory=dict)
    image_pull_secrets: Sequence[str] = ()
    identity: Identity = "pod-identity"
    pod_identity_agent: Presence = "existing"
    oidc_provider: Presence = "existing"
    node_access: NodeAccessKind | None = None
    """The way that the cluster takes when left out."""

    windows_nodes: bool = False
    """Whether Windows nodes have a role of their own beside that of Linux nodes."""

    node_role: Presence = "create"
    controller_role: Presence = "create"
    queue: Presence = "create"
    """Of these three: whether they are made, or are there already under their names."""

    retain_on_delete: Sequence[str] = ()
    """Which of them stay in AWS when they leave the stack: nodeRole, controllerRole, queue; and
    nodes, where a destroy is to end none."""

    confirm_delete: Sequence[str] = ()
    """Which of them may be deleted when they are there already all at once."""

    instance_profile_name: pulumi.Input[str] | None = None
    """One that is there already; made of the nodes' role when left out."""

    instance_profiles: Profiles = "given"
    """Whether classes name a profile, or the controller may make some for classes with a role."""

    image_parameters: Sequence[str] = ()
    """SSM parameters that the controller may read beside AWS's: names, paths, ARNs."""

    iam_path: str = "/"
    name_prefix: str = names.PREFIX
    controller_statements: Sequence[JsonObject] = ()
    node_statements: Sequence[JsonObject] = ()
    node_policies: Sequence[pulumi.Input[str]] = ()
    """ARNs of policies that the nodes' role bears beside those that every node needs."""

    queue_key: pulumi.Input[str] | None = None
    """ARN of a KMS key."""

    node_role_name: pulumi.Input[str] | None = None
    controller_role_name: pulumi.Input[str] | None = None
    permissions_boundary: pulumi.Input[str] | None = None
    spot_role: Presence = "existing"
    queue_name: pulumi.Input[str] | None = None
    existing_kinds: Sequence[str] = ()
    """Names of CustomResourceDefinitions that somebody else keeps in the cluster."""

    discovery_tags: bool = True
    discovery_tag_key: str = labels.TAG_DISCOVERY
    cluster_tags: bool = False
    subnet_ids: Sequence[pulumi.Input[str]] = ()
    """Where nodes start; the cluster's when left out."""

    security_group_ids: Sequence[pulumi.Input[str]] = ()
    """Of nodes; the cluster's own when left out."""

    installation: Installation | str | None = None
    """What says who has made everything: the value of the tag `joiner.dev/installation`, or the
    resource that says so, where providers were to wait for it; organization/project/stack when
    left out."""

    tags: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Of every AWS resource."""

    node_pools: Sequence[Wire] = field(default_factory=default_manifests)
    """NodePools, EC2NodeClasses and so on as in YAML: `nodepools.manifests_in` reads a folder,
    `nodepools.manifest` writes typed ones."""

    delete_foreign_node_pools: bool = False
    drain_timeout: timedelta = timedelta(minutes=20)


class Joiner(pulumi.ComponentResource):
    """Everything that Joiner needs on a cluster, the controller, and its NodePools."""

    node_role_name: pulumi.Output[str]
    node_role_arn: pulumi.Output[str]
    windows_node_role_name: pulumi.Output[str]
    """As of Linux nodes, where those of Windows have none of their own."""

    instance_profile: pulumi.Output[str]
    windows_instance_profile: pulumi.Output[str]
    """The same."""

    controller_role_arn: pulumi.Output[str]
    interruption_queue: pulumi.Output[str]
    """Its name."""

    namespace: pulumi.Output[str]
    deployment: pulumi.Output[str]
    """The name of the controller's Deployment."""

    def __init__(
        self, name: str, args: JoinerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Make it all.

        Raises:
            ConfigError: a setting cannot be used, or a name is taken; nothing has been made.

        """
        self._name, self._args = name, args
        self._first: list[pulumi.Resource] = []
        self._options = require_options(args.settings)
        nodepools.refuse_faulty(args.node_pools)
        self._kinds = customresources.wanted(args.existing_kinds)
        self._stack = full_name_of_stack()
        self._asked = opts or pulumi.ResourceOptions()
        super().__init__(
            "joiner:infra:Joiner",
            name,
            None,
            pulumi.ResourceOptions.merge(
                opts,
                pulumi.ResourceOptions(transformations=[self._as_one_of_ours, held_to_rules]),
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
        role_name = NodeRoleName(
            f"{name}-node-role-name",
            args.cluster,
            installation=self._title,
            role_name=self._node_role_name,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self._installation]),
        )
        self._first = [
            self._installation,
            role_name,
            self._holdings(f"{name}-holdings", after=[self._installation]),
        ]
        self._mine = pulumi.ResourceOptions(parent=self)
        self._in_cluster = pulumi.ResourceOptions(parent=self, providers=self._cluster_provider())
        self._make(tags)

    def _as_one_of_ours(
        self, made: pulumi.ResourceTransformationArgs
    ) -> pulumi.ResourceTransformationResult | None:
        """Have each resource bear our tags, and come after what the whole comes after."""
        if isinstance(made.resource, pulumi.ComponentResource) or not self._first:
            return None
        props: dict[str, Any] = dict(made.props)
        if isinstance(getattr(type(made.resource), "tags", None), property):
            ours = {labels.TAG_INSTALLATION: self._title}
            props["tags"] = {**self._args.tags, **(props.get("tags") or {}), **ours}
        opts = made.opts
        for before in (self._asked.depends_on, self._first):
            opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=before))
        return pulumi.ResourceTransformationResult(props, opts)

    def _holdings(self, name: str, *, after: Sequence[pulumi.Resource]) -> Holdings:
        args = self._args
        made = {
            "nodeRole": (args.node_role, self._node_role_name),
            "controllerRole": (args.controller_role, self._controller_role_name),
            "queue": (args.queue, self._queue_name),
        }
        return Holdings(
            name,
            args.cluster,
            {key: given for key, (presence, given) in made.items() if presence == "create"},
            installation=self._title,
            retained=args.retain_on_delete,
            confirmed=args.confirm_delete,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )

    def _ending(self, after: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
        """Return the options of what ends nodes, unless they stay, when it is deleted."""
        mine = pulumi.ResourceOptions(parent=self, depends_on=list(after))
        return pulumi.ResourceOptions.merge(mine, staying("nodes", self._args.retain_on_delete))

    def _held(self, key: str) -> pulumi.ResourceOptions:
        """Return the options of a part that may have to stay when it leaves the stack."""
        stays = staying(key, self._args.retain_on_delete)
        return pulumi.ResourceOptions.merge(self._mine, stays)

    def _cluster_provider(self) -> list[pulumi.ProviderResource]:
        """Return a provider of this very cluster, where the program gives none."""
        if self.get_provider("kubernetes:core/v1:Pod"):
            return []
        return [kubernetes_provider(self._args.cluster, f"{self._name}-kubernetes", self._mine)]

    def _make(self, tags: DiscoveryTagsArgs) -> None:
        args, mine = self._args, self._mine
        node_role = self._node_role()
        access = NodeAccess(
            f"{self._name}-node-access",
            NodeAccessArgs(
                kind=self._access, cluster=args.cluster, node_role_arn=node_role.role_arn
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
            self._held("queue"),
        )
        windows = self._windows_nodes()
        roles = [node_role, *(part for part in windows if isinstance(part, NodeRole))]
        controller_role = self._controller_role(roles, queue)
        discovery = DiscoveryTags(f"{self._name}-discovery", tags, mine)
        kinds = CustomResources(
            f"{self._name}-crds",
            CustomResourcesArgs(definitions=self._kinds),
            self._in_cluster,
        )
        groundwork: list[pulumi.Resource] = [node_role, access, *windows, queue, controller_role]
        groundwork += [discovery, kinds]
        # Once the controller is gone, it looks whose all of it is before it goes.
        groundwork.append(self._holdings(f"{self._name}-holdings-before-end", after=groundwork))
        controller = self._controller(queue, controller_role, groundwork)
        self._node_pools(roles, controller)
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
        # Said nothing of, the path is this one: nothing changes in stacks that never said it.
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
        """Refuse what cannot be made, as far as it is known, before anything is.

        Returns the tags that are to be set, beside those of others.
        """
        args, cluster = self._args, self._args.cluster
        location = cluster.known_location
        place = [cluster.partition, cluster.region, cluster.account, cluster.name]
        given = [self._queue_name, self._node_role_name, self._controller_role_name]
        given += [args.namespace, args.name, self._windows_role_name]
        if location is None or not known(*place, *given):
            return tags
        where, plain = Place(*map(str, place)), [str(name) for name in given]
        refuse_other_account(location, where.account)
        refuse_taken(
            Given(
                place=where,
                queue=plain[0],
                node_role=plain[1],
                windows_node_role=plain[5] if args.windows_nodes else None,
                controller_role=plain[2],
                namespace=plain[3],
                service_account=plain[4],
                repository=None if args.image else names.repository(where.cluster_name),
                access_entry=self._access in ENTRIES,
                association=args.identity == "pod-identity",
                agent=args.pod_identity_agent == "create",
                controller_policies=self._policy_names(where),
                iam_path=args.iam_path,
                existing=self._existing,
            ),
            location=location,
            installation=self._title,
        )
        if self._access in MAPPED_GROUPS:
            refuse_unreadable_mapping(location)
        customresources.refuse_other_kinds(location, args.existing_kinds)
        tags = beside_others(tags, pulumi.InvokeOptions(parent=self))
        if args.identity == "irsa" and isinstance(cluster.issuer, str):
            refuse_unusable_provider(
                args.oidc_provider,
                place=where,
                issuer=cluster.issuer,
                stack=self._stack,
                iam=location.client("iam"),
            )
        return tags

    @property
    def _existing(self) -> frozenset[str]:
        """What is named and not made, in the words of `Given`."""
        args = self._args
        presences = {
            "node role": args.node_role,
            "controller role": args.controller_role,
            "queue": args.queue,
            "profile": "existing" if args.instance_profile_name else "create",
        }
        return frozenset(what for what, presence in presences.items() if presence == "existing")

    def _policy_names(self, place: Place) -> list[str]:
        args = self._args
        titles = controller_policies(
            zonal_shift=self._options.enable_zonal_shift,
            makes_profiles=args.instance_profiles == "managed",
            image_parameters=bool(args.image_parameters),
            decryption=bool(args.queue_key),
            extra=bool(args.controller_statements),
        )
        cluster, region = place.cluster_name, place.region
        return [
            names.controller_policy(title, cluster, region, args.name_prefix) for title in titles
        ]

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
        """Make the role of Windows nodes and their way in, where they have one of their own."""
        args, name = self._args, f"{self._name}-windows-node"
        if not args.windows_nodes:
            return []
        role = self._role_of_nodes(name, self._windows_role_name)
        way = NodeAccessArgs(
            kind=WINDOWS.get(self._access, self._access),
            cluster=args.cluster,
            node_role_arn=role.role_arn,
        )
        return [role, NodeAccess(f"{name}-access", way, self._mine)]

    def _role_of_nodes(self, name: str, role_name: pulumi.Input[str], **more: Any) -> NodeRole:
        """Make a role of nodes: those of Linux and of Windows may do the same."""
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
        return NodeRole(name, role, self._held("nodeRole"))

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
            self._held("controllerRole"),
        )

    def _controller(
        self,
        queue: InterruptionQueue,
        role: ControllerRole,
        groundwork: Sequence[pulumi.Resource],
    ) -> Controller:
        """Run the controller; what proves, after its end, that it left nothing is made before."""
        args, cluster = self._args, self._args.cluster
        nothing_left = NothingLeft(
            f"{self._name}-nothing-left",
            cluster,
            self._title,
            self._ending(groundwork),
        )
        return Controller(
            f"{self._name}-karpenter",
            ControllerArgs(
                cluster=cluster,
                namespace=args.namespace,
                name=args.name,
                image=args.image or self._built(),
                replicas=args.replicas,
                cpu=args.cpu,
                memory=args.memory,
                options=self._options,
                environment={
                    **args.env,
                    **following(
                        cluster_name=cluster.name,
                        installation=self._title,
                        queue=self._queue_name,
                        namespace=args.namespace,
                        name=args.name,
                    ),
                    "AWS_REGION": cluster.region,
                },
                identity=args.identity,
                role_arn=role.role_arn,
                create_namespace=args.create_namespace,
                scraping=args.scraping,
                extra_labels=args.extra_labels,
                pod_annotations=args.pod_annotations,
                node_selector=args.node_selector,
                tolerations=args.tolerations,
                affinity=args.affinity,
                image_pull_secrets=args.image_pull_secrets,
                after=[*groundwork, nothing_left],
            ),
            self._in_cluster,
        )

    def _built(self) -> pulumi.Output[str]:
        args = image.ControllerImageArgs(
            cluster=self._args.cluster,
            repository=then(self._args.cluster.name, names.repository),
            sources=image.sources_digest(),
        )
        return image.ControllerImage(f"{self._name}-image", args, self._mine).reference

    def _node_pools(self, roles: Sequence[NodeRole], controller: Controller) -> None:
        """Make the NodePools, between two drains: the one goes before them, the other after."""
        args = self._args
        of_windows = {
            "WINDOWS_NODE_ROLE": roles[-1].role_name,
            "WINDOWS_INSTANCE_PROFILE": roles[-1].profile_name,
        }
        drain = DrainArgs(
            cluster=args.cluster,
            installation=self._title,
            namespace=args.namespace,
            deployment=args.name,
            timeout_seconds=args.drain_timeout.total_seconds(),
            delete_foreign_node_pools=args.delete_foreign_node_pools,
        )
        # An `up` that fails below leaves this one, so that a destroy drains all the same.
        before_controller_goes = Drain(
            f"{self._name}-drain-before-controller",
            drain,
            self._ending([controller]),
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
        Drain(
            f"{self._name}-drain",
            drain,
            self._ending([before_controller_goes, node_pools]),
        )


def full_name_of_stack(name: str = "") -> str:
    """Return the full name of a stack of the project: of the running one when none is named."""
    return f"{pulumi.get_organization()}/{pulumi.get_project()}/{name or pulumi.get_stack()}"
