"""What to compute and what to keep: plans, placement, index, eviction; plain Python, no jax.

Every name is imported from its module, and what a module does not mean for others starts with an
underscore. From the ground up:

    prefill_plan, schedule        where chunks end, which positions are captured
    placement                     policies that choose the positions
    interner, radix_tree,
    holdings, prefix_index        what is held, and what a request may reuse
    eviction, eviction_policies,
    served_demand,
    demand_constants              what goes first when memory is short
    session, report               the life of a request, and its account
    trace, costs, simulator       replaying a recorded workload without a model
    prefix_paths, interval_flow,
    offline, clairvoyant          how little any policy could replay, and a placement kept well
"""
