"""A small program with the stack's Kubernetes objects; each setting changes one property."""

import pulumi
import pulumi_kubernetes as k8s

config = pulumi.Config()
namespace_name = config.require("namespace")
replicas = config.get_int("replicas") or 1
size = config.get_int("size") or 3
app = config.get("app") or "controller"
token = config.get_secret("token") or pulumi.Output.secret("a-word-nobody-may-read")
is_forced = config.get_bool("force") or False
is_stuck = config.get_bool("stuck") or False

cluster = k8s.Provider("cluster", kubeconfig=config.require_secret("kubeconfig"))
opts = pulumi.ResourceOptions(provider=cluster)
limit = "8s" if is_stuck else "300s"
patient = pulumi.ResourceOptions(
    provider=cluster, custom_timeouts=pulumi.CustomTimeouts(create=limit, update=limit)
)

namespace = k8s.core.v1.Namespace("namespace", metadata={"name": namespace_name}, opts=opts)
group = f"{namespace_name}.joiner.dev"
definitions = k8s.yaml.ConfigGroup(
    "definitions",
    yaml=[
        f"""
        apiVersion: apiextensions.k8s.io/v1
        kind: CustomResourceDefinition
        metadata: {{name: widgets.{group}}}
        spec:
          group: {group}
          scope: Cluster
          names: {{kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}}
          versions:
            - name: v1
              served: true
              storage: true
              schema:
                openAPIV3Schema:
                  type: object
                  properties:
                    spec:
                      type: object
                      properties:
                        size: {{type: integer, maximum: 9}}
                        share: {{type: number}}
        """
    ],
    opts=pulumi.ResourceOptions(providers=[cluster]),
)
account = k8s.core.v1.ServiceAccount(
    "controller", metadata={"namespace": namespace.metadata.name}, opts=opts
)
settings = k8s.core.v1.ConfigMap(
    "settings",
    metadata={"namespace": namespace.metadata.name},
    data={"app": app, "size": str(size)},
    opts=opts,
)
credentials = k8s.core.v1.Secret(
    "credentials",
    metadata={"name": "credentials", "namespace": namespace.metadata.name},
    string_data={"token": token},
    opts=opts,
)
deployment = k8s.apps.v1.Deployment(
    "controller",
    metadata={"name": "controller", "namespace": namespace.metadata.name},
    spec={
        "replicas": replicas,
        "selector": {"match_labels": {"app": app}},
        "template": {
            "metadata": {"labels": {"app": app}},
            "spec": {
                "service_account_name": account.metadata.name,
                "node_selector": {"no-such-label": "true"} if is_stuck else {},
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "controller",
                        "image": "controller:1",
                        "env": [
                            {
                                "name": "SETTINGS",
                                "value_from": {
                                    "config_map_key_ref": {
                                        "name": settings.metadata.name,
                                        "key": "size",
                                    }
                                },
                            }
                        ],
                    }
                ],
            },
        },
    },
    opts=patient,
)
widget = k8s.apiextensions.CustomResource(
    "widget",
    api_version=f"{group}/v1",
    kind="Widget",
    metadata={
        "name": "widget",
        # The garbage collector discovers a new kind only every 30 s.
        "annotations": {
            "pulumi.com/deletionPropagationPolicy": "background",
            **({"pulumi.com/patchForce": "true"} if is_forced else {}),
        },
    },
    spec={"size": size, "share": 0.5},
    opts=pulumi.ResourceOptions(provider=cluster, depends_on=[definitions]),
)
service = k8s.core.v1.Service(
    "metrics",
    metadata={"namespace": namespace.metadata.name},
    spec={"selector": {"app": app}, "ports": [{"port": 8080}]},
    opts=patient,
)
label = k8s.core.v1.NamespacePatch(
    "label",
    metadata={"name": "default", "labels": {namespace_name: "patched"}},
    opts=opts,
)

pulumi.export("ready", deployment.status.ready_replicas)
pulumi.export("settings", settings.metadata.name)
