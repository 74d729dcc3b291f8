"""What a machine image reads in its user data."""

from __future__ import annotations

import textwrap

import pytest

from testbed.kube.quantities import GIBIBYTE, parse_quantity
from testbed.nodes.instances import Instance, registered_node
from testbed.nodes.userdata import Dialect, UserDataError, make_taint, parse_user_data

NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster:
    name: joiner
    apiServerEndpoint: https://127.0.0.1:6443
    certificateAuthority: Q0E=
    cidr: 10.96.0.0/12
  kubelet:
    config:
      maxPods: 29
      kubeReserved: {cpu: 80m, memory: 500Mi}
      evictionHard: {memory.available: 5%}
      registerWithTaints:
      - {key: karpenter.sh/unregistered, effect: NoExecute}
      - {key: team, value: a, effect: NoSchedule}
    flags:
    - --node-labels="karpenter.sh/nodepool=default,team=a"
"""

USERS_PART = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance: {localStorage: {strategy: RAID0}}
  kubelet:
    config: {maxPods: 500, podsPerCore: 8, systemReserved: {memory: 100Mi}}
    flags: [--node-labels=users=own, --v=4]
"""

MIME = f"""\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: application/node.eks.aws

{USERS_PART}
--//
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/bash
echo hello
--//
Content-Type: application/node.eks.aws

# Generated
{NODE_CONFIG}
--//--
"""

BOOTSTRAP = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/bash -xe
exec > >(tee /var/log/user-data.log|logger -t user-data -s 2>/dev/console) 2>&1
/etc/eks/bootstrap.sh 'joiner' --apiserver-endpoint 'https://127.0.0.1:6443' \\
--b64-cluster-ca 'Q0E=' \\
--use-max-pods false \\
--kubelet-extra-args '--node-labels="a=b,c=d" --register-with-taints="x=y:NoSchedule,z:NoExecute" \
--max-pods=17 --kube-reserved="cpu=90m,memory=1Gi" --eviction-hard="memory.available<5%"'
echo done
--//--
"""

BOTTLEROCKET = """\
[settings.kubernetes]
api-server = "https://127.0.0.1:6443"
cluster-certificate = "Q0E="
cluster-name = "joiner"
max-pods = 58

[settings.kubernetes.node-labels]
"karpenter.sh/nodepool" = "default"

[settings.kubernetes.node-taints]
"karpenter.sh/unregistered" = [":NoExecute"]
team = ["a:NoSchedule", "b:NoSchedule"]

[settings.kubernetes.eviction-hard]
"memory.available" = "200Mi"
"""


def test_a_nodeconfig_has_cluster_labels_taints_and_reservations() -> None:
    orders = parse_user_data(NODE_CONFIG)

    assert orders.dialect is Dialect.NODEADM
    assert orders.cluster_name == "joiner"
    assert orders.endpoint == "https://127.0.0.1:6443"
    assert orders.certificate_authority == "Q0E="
    assert orders.labels == {"karpenter.sh/nodepool": "default", "team": "a"}
    assert orders.taints == [
        make_taint("karpenter.sh/unregistered", "", "NoExecute"),
        make_taint("team", "a", "NoSchedule"),
    ]
    assert orders.max_pods == 29
    assert orders.kube_reserved == {"cpu": "80m", "memory": "500Mi"}
    assert orders.eviction_hard == {"memory.available": "5%"}


def test_nodeconfigs_of_a_mime_archive_are_merged_in_order() -> None:
    orders = parse_user_data(MIME)

    assert orders.max_pods == 29
    assert orders.pods_per_core == 8
    assert orders.system_reserved == {"memory": "100Mi"}
    assert orders.local_storage
    assert orders.labels == {"karpenter.sh/nodepool": "default", "team": "a"}


def test_huge_pages_that_a_script_reserves_are_no_allocatable_memory() -> None:
    script = "sudo sysctl -w vm.nr_hugepages=2048"
    instance = Instance(
        id="i-1",
        state="running",
        type="c7a.2xlarge",
        zone="us-west-2a",
        private_ip="10.0.0.4",
        private_dns_name="ip-10-0-0-4.us-west-2.compute.internal",
        cpu=8,
        memory_mib=16384,
        eni_pods=58,
    )

    without = registered_node(instance, parse_user_data(MIME))["status"]
    reserving = parse_user_data(MIME.replace("echo hello", script))
    status = registered_node(instance, reserving)["status"]

    assert reserving.huge_pages == 2048
    assert parse_quantity(status["capacity"]["hugepages-2Mi"]) == 4 * GIBIBYTE
    assert parse_quantity(status["allocatable"]["hugepages-2Mi"]) == 4 * GIBIBYTE
    left = parse_quantity(without["allocatable"]["memory"]) - 4 * GIBIBYTE
    assert parse_quantity(status["allocatable"]["memory"]) == left
    assert status["capacity"]["memory"] == without["capacity"]["memory"]


def test_bootstrap_arguments_are_parsed_as_by_shell_and_kubelet() -> None:
    orders = parse_user_data(BOOTSTRAP)

    assert orders.dialect is Dialect.BOOTSTRAP
    assert orders.cluster_name == "joiner"
    assert orders.endpoint == "https://127.0.0.1:6443"
    assert orders.labels == {"a": "b", "c": "d"}
    assert orders.taints == [
        make_taint("x", "y", "NoSchedule"),
        make_taint("z", "", "NoExecute"),
    ]
    assert orders.max_pods == 17
    assert orders.kube_reserved == {"cpu": "90m", "memory": "1Gi"}
    assert orders.eviction_hard == {"memory.available": "5%"}


def test_bottlerocket_settings_are_parsed_from_toml() -> None:
    orders = parse_user_data(BOTTLEROCKET)

    assert orders.dialect is Dialect.BOTTLEROCKET
    assert orders.labels == {"karpenter.sh/nodepool": "default"}
    assert orders.taints == [
        make_taint("karpenter.sh/unregistered", "", "NoExecute"),
        make_taint("team", "a", "NoSchedule"),
        make_taint("team", "b", "NoSchedule"),
    ]
    assert orders.max_pods == 58
    assert orders.eviction_hard == {"memory.available": "200Mi"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "no user data", id="nothing"),
        pytest.param("#!/bin/bash\necho hello\n", "no NodeConfig", id="a script of the user's"),
        pytest.param(
            NODE_CONFIG.replace("    cidr: 10.96.0.0/12\n", ""), "cluster.cidr", id="no cidr"
        ),
        pytest.param(
            BOTTLEROCKET.replace('cluster-name = "joiner"\n', ""), "cluster-name", id="no name"
        ),
        pytest.param(
            NODE_CONFIG.replace("team=a", "node-restriction.kubernetes.io/x=a"),
            "refuses to set the labels node-restriction.kubernetes.io/x",
            id="a label of Kubernetes' own",
        ),
        pytest.param("[settings.kubernetes\n", "not TOML", id="broken settings"),
        pytest.param(
            "apiVersion: node.eks.aws/v1alpha1\nkind: [\n", "not YAML", id="broken NodeConfig"
        ),
        pytest.param(
            "#!/bin/bash\n/etc/eks/bootstrap.sh joiner\n", "--apiserver-endpoint", id="no endpoint"
        ),
    ],
)
def test_invalid_user_data_is_reported_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UserDataError, match=reason.replace("[", r"\[")):
        parse_user_data(text)


def test_labels_of_the_kubelets_own_domains_are_allowed() -> None:
    text = NODE_CONFIG.replace("team=a", "node.kubernetes.io/team=a,topology.k8s.aws/x=y")

    assert parse_user_data(text).labels["node.kubernetes.io/team"] == "a"


def test_a_script_without_mime_headers_is_parsed_too() -> None:
    script = textwrap.dedent(
        """\
        #!/bin/bash
        /etc/eks/bootstrap.sh joiner --b64-cluster-ca Q0E= --apiserver-endpoint https://a:1 && ls
        """
    )

    assert parse_user_data(script).endpoint == "https://a:1"
