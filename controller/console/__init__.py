"""The user interfaces `joiner top` and `joiner web`; they only read the cluster.

Terms:

    world  a cluster as a solve reads it, live or recorded in a file (see `offline.world`)
    feed   the data that both user interfaces display
    page   in the feed, the cluster; `plan` is the decisions about it
"""
