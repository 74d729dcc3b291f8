"""Compare Joiner's and Karpenter's engines on the same worlds (see `bench` for the terms).

* `engines`         runs both engines as processes
* `worlds`          worlds of the benchmarks; `generated` has small ones over every constraint
* `comparison`      compares the answers to one world; `campaign` those to many
* `consolidation`   compares disruption until no command is left; `reachable` bounds its result
* `livecluster`     replays an answer on a real control plane
* `shrinking`       reduces a world that shows a failure
* `mutate`          breaks Joiner's engine, to check that the tests fail

`grantedpreferences`, `overlaying` and `peak` are helpers of these modules.
"""
