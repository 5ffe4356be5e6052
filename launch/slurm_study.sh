#!/usr/bin/env bash
# The figures of a paper on several machines under SLURM, the images shared out; from the clone's folder:
#   sbatch launch/slurm_study.sh +paper=michel weights=FILE cache_dir=/shared/cache
# A job that runs into its time limit is queued again in the same folder, and keeps the figures that it had made.
#SBATCH --job-name=mhprobe-study
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
job study "$@"
