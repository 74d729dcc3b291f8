"""Ask kube-scheduler's own filter plugins whether Joiner's answers are right.

* `judge`   runs `kubefilter`, the program that has the plugins in memory
"""
