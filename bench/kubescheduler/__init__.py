"""Ask kube-scheduler's own filter plugins whether Joiner's answers are right.

* `judge`      runs `kubefilter`, the program that has the plugins in memory
* `generated`  small worlds over every filter plugin
* `existing`   one pending pod beside existing nodes; `launched` many, with new nodes (`stage`)
* `disrupted`  commands of a disruption, and where they send the evicted pods
* `mutate`     breaks rules of the engine, to check that the plugins see it
* `campaign`   runs many worlds; `python -m bench.kubescheduler` prints what differs
"""
