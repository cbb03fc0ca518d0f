"""Write docs/algorithms.md, the list of all algorithms, from the registry: `python
docs/algorithms_page.py`.
"""

from __future__ import annotations

from pathlib import Path

from placeopt.model.objective import named_objective, objective_names
from placeopt.period.objective import PERIOD
from placeopt.solving.options import declared_options
from placeopt.solving.registry import SolverSpec, solver_class, specs

PAGE = Path(__file__).resolve().parent / "algorithms.md"
KINDS = {
    "placement": "Placements",
    "split": "Splits with replicas, groups or overlap",
    "pipeline": "Pipeline schedules",
    "jobs": "Job streams",
    "sharding": "Sharding",
    "plan": "Training plans",
}


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Algorithms",
        "",
        "Every registered solver: what it does, which objective it takes, where it comes from, "
        "when to use it, and its options.",
        "Written by `python docs/algorithms_page.py` from the registry; `placeopt solvers NAME` "
        "prints the same. The [glossary](glossary.md) explains the words.",
        "",
    ]
    for kind, title in KINDS.items():
        lines += [f"## {title}", ""]
        lines += [
            "| solver | objective | what it does | when to use it | source |",
            "|---|---|---|---|---|",
        ]
        found = [spec for spec in specs(kind).values() if spec.target.startswith("placeopt.")]
        for spec in found:
            name = f"[`{spec.name}`](#{spec.name})" if options_of(spec) else f"`{spec.name}`"
            takes = ", ".join(spec.objectives)
            lines.append(f"| {name} | {takes} | {spec.summary} | {spec.use} | {spec.paper} |")
        lines += ["", f"Without a name: {defaults(kind)}.", ""]
        for spec in found:
            lines += options_of(spec)
    return "\n".join(lines)


def defaults(kind: str) -> str:
    """Return the solver that runs when none is named, by objective."""
    ours = {spec.name for spec in specs(kind).values() if spec.target.startswith("placeopt.")}
    chosen = {name: named_objective(kind, name).default_solver for name in objective_names(kind)}
    chosen = {name: solver for name, solver in chosen.items() if solver in ours}
    other = {("placement", "period"): f"of a chain of stages; otherwise `{PERIOD.prover}`"}
    return ", ".join(
        f"`{solver}` ({' '.join([name, *other.get((kind, name), '').split()])})"
        for name, solver in chosen.items()
    )


def options_of(spec: SolverSpec) -> list[str]:
    """Return the section with a solver's options, empty if it has none."""
    rows = []
    for name, (field, declared) in declared_options(solver_class(spec.name, spec.kind)).items():
        meaning, expected = (declared.meaning, declared.expected) if declared else ("", "")
        rows.append(f"| `{name}` | `{field.default}` | {expected} | {meaning} |")
    if not rows:
        return []
    return [
        f"### {spec.name}",
        "",
        "| option | default | expected | meaning |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
