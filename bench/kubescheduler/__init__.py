"""Ask kube-scheduler's own filter plugins whether Joiner's answers are right.

* `judge`      runs `kubefilter`, the program that has the plugins in memory
* `generated`  small worlds over every filter plugin
* `existing`   one pending pod beside existing nodes; `launched` many, with new nodes (`stage`)
* `campaign`   runs many worlds; `python -m bench.kubescheduler` prints what differs
"""
