"""Check whether an answer keeps the rules of Kubernetes, based only on its documentation.

The oracle shares no code with an engine. It reads world and answer as plain JSON, in the formats of
`docs/reference/formats.md`.

* `rules`      the requests of a pod, and whether a single node satisfies it
* `node_infos`   nodes as kube-scheduler sees them
* `volumes`    where volumes are reachable, and which driver attaches them
* `binding`    binds pods one after the other, with the filters that look at other pods
* `poolorder`  whether NodePools are used in the order of their weights
* `replay`     replays an answer
* `disruption` replays a course of disruption, pass by pass
"""
