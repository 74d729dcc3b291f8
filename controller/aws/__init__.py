"""Implements the interface of a cloud provider for AWS, and is the only package that imports boto3.

It translates requests and responses, and makes no decisions. `errors` is the only module that
translates the errors of botocore.

* `provider`       composes the package; `session` calls the AWS APIs within `ratelimits`
* `nodeclass`      resolves an EC2NodeClass, with the queries of `network`; `verification`
                   validates it by dry run
* `instancetypes`  instance types with their offerings, prices and capacity reservations
* `launching`      launches one instance per NodeClaim, with user data from `bootstrap`;
                   `unavailable` records the offerings that EC2 refused
* `instances`      finds and terminates the instances of this cluster; `drift` compares them
                   with their EC2NodeClass
* `interruption`   reads the interruption queue and EC2's instance status checks

An installation is one deployment of Joiner. It changes only resources that have its own value of
the tag `joiner.dev/installation`.
"""
