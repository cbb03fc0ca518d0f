"""A pipeline schedule under a memory limit: the shortest repeating pattern, proved, and 1F1B beside
it.
"""

from placeopt.schedules import load_pipeline, schedule

problem = load_pipeline("shape:V?devices=4&memory=4")
for solver in ("repetend", "1f1b", "gpipe"):
    try:
        found = schedule(problem, solver, micro_batches=32, seconds=10)
    except ValueError as error:  # it does not fit into the memory
        print(f"{solver:<9} {error}")
        continue
    print(
        f"{solver:<9} period {found.period} ticks per micro-batch, makespan {found.makespan}, "
        f"{found.period_status}"
    )
