"""A small program with the stack's AWS resources; each setting changes one property."""

import json

import pulumi
import pulumi_aws as aws

SERVICES = ("ec2", "ecr", "eks", "events", "iam", "sqs", "ssm", "sts")

config = pulumi.Config()
retention = config.get_int("retention") or 300
path = config.get("path") or "/"
purpose = config.get("purpose") or "nodes"
queue_name = config.get("queue") or "interruptions"
token = config.get_secret("token") or pulumi.Output.secret("a-word-nobody-may-read")
endpoint = config.require("endpoint")

provider = aws.Provider(
    "region",
    region="us-west-2",
    access_key="testing",
    secret_key="testing",
    skip_credentials_validation=True,
    skip_metadata_api_check=True,
    skip_requesting_account_id=True,
    default_tags={"tags": {"project": "region"}},
    endpoints=[aws.ProviderEndpointArgs(**dict.fromkeys(SERVICES, endpoint))],
)
opts = pulumi.ResourceOptions(provider=provider)
ask = pulumi.InvokeOptions(provider=provider)

caller = aws.get_caller_identity_output(opts=ask)
partition = aws.get_partition_output(opts=ask)
subnets = config.require_object("subnets")

role = aws.iam.Role(
    "node",
    path=path,
    assume_role_policy=json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": "sts:AssumeRole",
                    "Principal": {"Service": "ec2.amazonaws.com"},
                }
            ],
        }
    ),
    tags={"purpose": purpose, "token": token},
    opts=opts,
)
inline = aws.iam.RolePolicy(
    "node",
    role=role.name,
    policy=pulumi.Output.json_dumps(
        {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": "sqs:*", "Resource": role.arn}],
        }
    ),
    opts=opts,
)
policy = aws.iam.Policy(
    "extra",
    policy=json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": f"ec2:{purpose}", "Resource": "*"}],
        }
    ),
    opts=opts,
)
attachment = aws.iam.RolePolicyAttachment("extra", role=role.name, policy_arn=policy.arn, opts=opts)
profile = aws.iam.InstanceProfile("node", role=role.name, opts=opts)
identities = aws.iam.OpenIdConnectProvider(
    "pods",
    url="https://oidc.eks.us-west-2.amazonaws.com/id/EXAMPLE",
    client_id_lists=["sts.amazonaws.com"],
    thumbprint_lists=["9e99a48a9960b14926bb7f3b02e22da2b0ab7280"],
    opts=opts,
)
queue = aws.sqs.Queue(
    "interruptions",
    name=queue_name,
    message_retention_seconds=retention,
    sqs_managed_sse_enabled=True,
    opts=opts,
)
queue_policy = aws.sqs.QueuePolicy(
    "interruptions",
    queue_url=queue.url,
    policy=pulumi.Output.json_dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "events.amazonaws.com"},
                    "Action": "sqs:SendMessage",
                    "Resource": queue.arn,
                }
            ],
        }
    ),
    opts=opts,
)
rule = aws.cloudwatch.EventRule(
    "spot",
    event_pattern=json.dumps(
        {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}
    ),
    opts=opts,
)
target = aws.cloudwatch.EventTarget("spot", rule=rule.name, arn=queue.arn, opts=opts)
repository = aws.ecr.Repository("controller", force_delete=True, opts=opts)
for index, subnet_id in enumerate(subnets):
    aws.ec2.Tag(
        f"discovery-{index}",
        resource_id=subnet_id,
        key="karpenter.sh/discovery",
        value=purpose,
        opts=opts,
    )

if cluster := config.get("cluster"):
    existing = aws.eks.get_cluster_output(name=cluster, opts=ask)
    entry = aws.eks.AccessEntry(
        "node", cluster_name=existing.name, principal_arn=role.arn, type="EC2_LINUX", opts=opts
    )
    association = aws.eks.PodIdentityAssociation(
        "controller",
        cluster_name=existing.name,
        namespace="kube-system",
        service_account="karpenter",
        role_arn=role.arn,
        opts=opts,
    )
    pulumi.export("cluster_endpoint", existing.endpoint)
    network = existing.vpc_config
    subnet = aws.ec2.get_subnet_output(id=network.subnet_ids[0], opts=ask)
    group = aws.ec2.get_security_group_output(id=network.cluster_security_group_id, opts=ask)
    image = aws.ssm.get_parameter_output(name=config.require("image"), opts=ask)
    pulumi.export("zone", subnet.availability_zone)
    pulumi.export("vpc", pulumi.Output.all(network.vpc_id, subnet.vpc_id, group.vpc_id))
    pulumi.export("image", image.value)
    known = aws.iam.get_role_output(name=role.name, opts=ask)
    pulumi.export("known", known.arn)

pulumi.export("account", caller.account_id)
pulumi.export("partition", partition.partition)
pulumi.export("role_arn", role.arn)
pulumi.export("role_name", role.name)
pulumi.export("role_path", role.path)
pulumi.export("queue_url", queue.url)
pulumi.export("token", token)
