"""Find the cheapest new nodes for pods, and a lower bound on the cost of any new nodes.

`purchasing` is the entry point, and `problem` defines the packing problem and the axes of arrays. A
packing is a solution of it; to open a node is to add it to a packing. Further terms:

    value, worth    of a pod: the cost of its capacity on the cheapest node type, in $/h, estimated
                    by the duals of a linear program or by `firstfit`; of a node: the total value of
                    its pods
    shape           the ratios between the resources of a pod or a node
    pair            a class and a node type. Its column in a linear program is the number of pods of
                    the class on nodes of the type
    slot            a node's capacity for one pod of a group, if rules limit their number on a node
    bundle          classes of similar shape that the fluid program treats as one class
    stratum         classes of equal size with the same node types and the same types of rules
    family          node types with the same labels and a similar ratio of CPU to memory; in the
                    local search, the classes of one pod group, one per combination of domains
    price ladder    node types thinned to the best of each step of prices
    pattern         a node type and the pods on one node of it
    measure         a quantity that adds up on a node: a resource, a rounded resource, or the number
                    of pods of a group
    ruin and recreate   remove some nodes of a packing, and pack their pods again
"""
