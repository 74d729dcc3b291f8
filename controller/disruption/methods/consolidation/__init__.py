"""Consolidation: removes nodes, and replaces any set of nodes with any cheaper set.

`method` is the disruption method. It works in these steps:

1. `evaluation` reads the cluster into arrays once and computes the cost of emptying each node.
2. `planning` searches a plan over the arrays. A pod moves once, however often the plan changes.
   The scheduling engine chooses new nodes for the pods that do not fit on existing ones, which
   proves their cost.
3. Nodes that depend on one another form a group; each group becomes a command.
4. `budgeting` and `sequencing` select the groups that budgets allow now and that can be executed
   one after the other.
5. `validation` checks the commands again before they are executed. `staying` explains why other
   candidates stay.

Nodes that run pods of gangs are left to `gangs`.
"""
