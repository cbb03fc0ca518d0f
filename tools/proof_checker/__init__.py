"""The checker of proofs that `placeopt verify --proof FILE` writes.

It needs the standard library and nothing of placeopt.

A proof claims that a solution of a problem has a value and that no solution is below a bound. The
checker recomputes the value, follows the witness to the bound, and says what it had to believe.
Whoever doubts a proof reads these files; each docstring gives the argument of what it checks.

    reading             what a file must look like: ranges, lengths, names, sizes
    graphs              an order of nodes along edges
    placement           placement problems and what holds of any solution
    makespan_value      the makespan of a schedule
    period_value        the period of a placement
    supposition         "suppose a solution of at most T ticks": what is then known
    delays              least delays between ops
    sweep_steps         heads and tails along edges and by sets of ops
    sharing_steps       ops that share a device, and ops that cannot
    work_steps          more work than devices offer
    case_steps          two cases, each refuted
    segment_steps       delays between two ops, derived on their own
    flow_steps          flows between ops that cross from device to device
    front_steps         the ends of a schedule, the only step that may have to be believed
    derivation          the table of steps, and following them
    sharding            sharding problems and the cost of a choice
    sharding_bound      prices and messages
    sharding_stars      what the neighbours of a node may use together
    sharding_squares    sums of squares taken out of costs
    pipeline            pipeline problems
    pipeline_memory     memory that is freed only after what allocates it
    pipeline_period     patterns that repeat, their completion, and the work of a device
    proof               the whole file: envelope, digest, value, bound
    command             the command line

To add a family of steps: a file with functions `step(state, words, refute)`, each with its argument
in the docstring, and a table `STEPS` of name -> function; add the table to `derivation.STEPS`. A
step changes the state only by what follows from it, sets `state.closed` on a contradiction, and
raises otherwise. To add an objective: its reader, its value and its bound in `proof.OBJECTIVES`.
"""
