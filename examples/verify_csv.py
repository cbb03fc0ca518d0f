"""Certify a placement that another program wrote: a CSV with one line per op."""

from pathlib import Path

import placeopt as po

problem = po.load("gen:ffnn", cluster="uniform:4")

# What a learned policy has to write; a third column `priority` is optional.
lines = ["op,device"] + [f"{name},{op % 4}" for op, name in enumerate(problem.op_names)]
Path("learned.csv").write_text("\n".join(lines) + "\n")

report = po.verify(problem, "learned.csv", seconds=2)
print("valid" if report.feasible else "\n".join(report.violations))
print(
    f"makespan {report.value} ticks, at least {report.lower_bound} ({report.bound_method}): gap "
    f"{report.gap:.2%}"
)
if report.better is not None:
    print(f"a placement of {report.better} ticks exists")
