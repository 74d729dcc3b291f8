"""Benchmarks and campaigns that measure Joiner and compare it with Karpenter.

They are not tests. A *campaign* makes many runs, each from a *seed*, and reports what went wrong.
Further terms:

    world     a cluster with its pending pods, as the JSON of docs/reference/formats.md
    engine    the code that decides on a world: Joiner's or Karpenter's
    side      one of the two controllers that a benchmark compares
    oracle    `tests/oracle`, which checks the answers of engines and shares no code with them
"""
