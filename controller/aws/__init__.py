"""The adapter of the cloud's port: the only room that imports boto3.

It translates and never decides; foreign errors become ours in one place (`errors`).

* `provider`       puts the room together; `session` is the way out to AWS
* `nodeclasses`    what an EC2NodeClass means now, with `subnets`, `securitygroups`, `amis`,
                   `instanceprofiles`, `reservations`, `placementgroups`, `kubelet`, and
                   `verification`, which asks by dry run
* `offerings`      types with what they cost and whether they can be had, from
                   `instancetypes`, `pricing`, `unavailable`, `zonalshift`
* `launching`      one claim to one instance, by way of `launchfilters`, `candidates`,
                   `launchtemplates`, `userdata` and `fleet`
* `instances`      the instances of this cluster, and `drift` of one from its class
* `interruptions`  the queue that hears of an instance's end; `statuses`, EC2's own checks
"""
