"""Plan the training of GPT-2 on eight A100: the plan, its gap, what the others lose, and how robust
it is.
"""

import placeopt as po
from placeopt.plans.timeline import step_spread


def main() -> None:
    """Plan, compare and simulate."""
    planned = po.plan("gen:gpt2?detail=coarse&seq=256", "8xA100", 64, seconds=10, runner_ups=2)
    print(planned.plan.text())
    print(
        f"{planned.step_seconds:.4f} s per step, gap {planned.result.gap:.2%}, "
        f"{planned.throughput:.0f} samples/s"
    )
    for runner in planned.runner_ups:
        print(f"with {runner.what}: {runner.reason}")
    steps = step_spread(planned.problem, planned.plan, samples=50, noise=0.05)
    print(f"with 5 % noise: {steps.mean():.4f} s on average, {steps[-1]:.4f} s at worst")


if __name__ == "__main__":
    main()
