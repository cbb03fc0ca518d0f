"""A grid of runs on Dask: every finished run is on disk before the next, so that it can be killed
and started again.
"""

from pathlib import Path

from placeopt.experiments import load_study, run_study

STUDY = """
name = "small"
instances = ["gen:ffnn", "gen:chain-mm"]
clusters = ["uniform:4"]
seeds = {count = 2}
evaluations = 200
solvers = [{name = "heft", seeds = [0]}, {name = "annealing"}]
"""

if __name__ == "__main__":  # the workers import this file
    Path("small.toml").write_text(STUDY)
    study = load_study("small.toml")
    summary = run_study(study, "runs", jobs=2, backend="dask")
    print(f"{summary.done} of {summary.total} cells done, {summary.failed} failed")
    again = run_study(study, "runs", jobs=2, backend="dask")
    print(f"started again: {again.skipped} were there already")
