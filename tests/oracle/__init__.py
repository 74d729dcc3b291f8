"""Does an answer keep the rules of Kubernetes? Written from its documentation alone.

Nothing here knows an engine: world and answer are read as plain JSON, in the forms of
`docs/formats.md`.

* `rules`     what a pod asks for, and whether one node, by itself, is right for it
* `machines`  nodes as kube-scheduler sees them
* `volumes`   where volumes are reached, and what attaches them
* `binding`   pods bound one after the other, through the filters that look at other pods
* `replay`    an answer played through
* `disruption` a course of disruption played through, look by look
"""
