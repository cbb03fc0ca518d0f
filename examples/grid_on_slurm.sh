#!/bin/bash
# A grid on a SLURM cluster: one scheduler, workers on every core of the allocation, and the grid.
#
#     sbatch examples/grid_on_slurm.sh STUDY.toml RESULTS
#
# The job may be killed and submitted again: what is finished is in RESULTS and is not run twice.
#SBATCH --job-name=placeopt-grid
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
set -euo pipefail

study=$1
results=$2
scheduler="tcp://$(hostname):8786"
cores=${SLURM_CPUS_ON_NODE:-$(nproc)}

mkdir -p "$results"
log="$results/dask.log"
dask scheduler --port 8786 --no-dashboard >"$log" 2>&1 &
# One worker process per core, each with one thread: the kernels share nothing.
${SRUN-srun --kill-on-bad-exit=0} dask worker "$scheduler" \
    --nworkers "$cores" --nthreads 1 --no-dashboard --death-timeout 300 >>"$log" 2>&1 &
trap 'kill $(jobs -p) 2>/dev/null' EXIT

placeopt bench "$study" --results "$results" \
    --backend dask --address "$scheduler" --jobs "$((cores * ${SLURM_JOB_NUM_NODES:-1}))"
