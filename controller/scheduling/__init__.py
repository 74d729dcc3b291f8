"""Decide on which nodes the pending pods run, and which new nodes to launch for them.

A solve is a function of a `Snapshot` and the pending pods. Nothing here reads a clock, a socket or
a random number: two solves of one snapshot are equal, byte for byte. Arrays exist only within a
solve; its results contain none.

The modules, from the top; each may import only those below it:

    scheduler   the entry points: `schedule`, and `least_cost` for a lower bound
    gangs, buffers   gangs of pods, and the virtual pods of CapacityBuffers
    solver      rounds of placing, buying and relaxing; `retries` changes the cluster for another
                solve
    rearrangement   improves the new nodes after the rounds
    nodeclaims, causes   the results: NodeClaims to create, and why pods are unschedulable
    problem     the pending pods, the existing nodes and the offerings, as one value
    placement/  places pods in domains and on existing nodes
    packing/    packs the remaining pods onto new nodes, by price
    dra/        allocates devices to resource claims
    nodes/      nodes that exist or are being launched
    catalog/    the offerings that can be bought
    pods/       the pending pods
    topology/   spreads, affinity and anti-affinity between pods

All of them may use `reporter`, which receives the progress of a solve, `results`, `settings`, and
`arrays`, which converts amounts by resource name to arrays and back.

Terms:

    pod class       equal pods; classes of one placement key have the same constraints
    pod constraints  the requirements and remaining preferences of a pod; a relaxation drops one
                    preference
    eligibility     the variants and existing nodes that these constraints allow
    tier            the NodePools of one weight; pods try the tiers in descending order of weight
    pending group   pending pods of one class; a pod group is a part of it for new nodes
    unit            pods of a pod group that must share a new node; usually one pod
    companions      pods of other pod groups that are added to a unit, to share its node
    topology group  a spread, affinity or anti-affinity. Its owners are the pods that state it. Its
                    tally has the number of pods that it counts in each domain
    pins            the domains chosen for pods, by topology key
    to pin a node   of pods: they must not be evicted, so that their node stays until they end
    row             an instance type in one NodePool
    offering        one way to buy an instance type; a column of the catalog
    variant         offerings that no requirement of a pending pod distinguishes
    node type       an instance type within a variant: the unit in which packing buys nodes
    packing class   pod groups that are interchangeable for packing
    purchase        the new nodes for some pod groups
    allocatable device  a device from a ResourceSlice that a claim can get, on an existing or new
                    node
    headroom        the remaining amounts of limits; a node's consumption is what it uses of them
    fluid program   a linear program that buys nodes in fractions
    dual prices     the prices of resources and values of pods from the fluid program

Unless stated otherwise, amounts of resources are in thousandths of the resource's unit: millicores,
and thousandths of a byte. Costs and prices are in $/h. Docstrings name the axes of an array, as
(nodes) for one value per node, or node types × resources for a matrix.
"""
