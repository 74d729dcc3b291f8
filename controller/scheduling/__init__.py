"""Which nodes should exist.

A solve is a function of a `Snapshot` and the pods that wait. Nothing here reads
a clock, a socket or a random number: two solves of one snapshot are equal, byte
for byte. Arrays live inside a solve and never leave it.

The road of a pod, from the top (each may use only what stands below it):

    scheduler   ask it here: `schedule`, and `least_cost` for a proof
    solver      rounds: place, buy, relax; `retries` asks again in another world
    relaxation, rearrangement   what is given up between rounds, and a last look after them
    nodeclaims, causes   what comes out: claims to write, and why pods go nowhere
    problem     what waits, what is there and what can be bought, read: a value
    placement/  pods to domains and to nodes that exist
    packing/    the rest onto new nodes, by price
    dra/        devices that pods claim
    nodes/      what exists or is coming
    catalog/    what can be bought
    pods/       what waits
    topology/   rules of pods about one another

Beside the road: `reporter` hears how a solve goes, `resourceaxis` is where amounts by name
become arrays and come back.

Words:

    pod class       equal pods; classes of one placement key differ in their requests alone
    pod constraints what a pod needs and still prefers; relaxing gives up one preference
    eligibility     the variants and the nodes that such constraints leave
    pending group   pods of a class that wait; a pod group is bound for new nodes
    topology group  a spread, affinity or anti-affinity; its tally is who is where, pins are
                    domains chosen
    offering        one way to buy an instance type; a column of the catalog, its row the type
    variant         offerings that no waiting pod tells apart
    kind            an instance type within a variant: what a new node is packed as
    packing class   pod groups that packing cannot tell apart; a purchase is the nodes for some
    allocatable device  what a claim may be given on a node that is or comes, read from a slice
    headroom        what limits still allow; what a kind takes of it is its consumption
    dual prices     what the fluid program says resources cost and pods are worth
"""
