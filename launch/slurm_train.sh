#!/usr/bin/env bash
# Training, and what comes after it, on several machines under SLURM; from the clone's folder:
#   sbatch launch/slurm_train.sh +experiment=cifar10_vit
#   sbatch --nodes=8 launch/slurm_train.sh +experiment=cifar10_vit        sbatch's own options come before the script
# Two minutes before the time limit, and when the machines are taken away, all ranks finish their step, save last.ckpt
# together and end. The job is queued again, and goes on in the same folder with the very step it had reached.
#SBATCH --job-name=mhprobe
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
resume=()
[ -f "$folder/checkpoints/last.ckpt" ] && resume=("ckpt_path=$folder/checkpoints/last.ckpt")
job train "${resume[@]}" "$@"
