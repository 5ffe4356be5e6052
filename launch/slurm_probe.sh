#!/usr/bin/env bash
# Measures of trained weights on several machines under SLURM, the images shared out; from the clone's folder:
#   sbatch launch/slurm_probe.sh weights=FILE +experiment=probe_all cache_dir=/shared/cache
# A job that runs into its time limit is queued again, and finds in cache_dir what it had measured.
#SBATCH --job-name=mhprobe-probe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
source "${SLURM_SUBMIT_DIR:-.}/launch/slurm_job.sh"
job probe "$@"
