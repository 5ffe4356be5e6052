#!/usr/bin/env bash
# What the other slurm_*.sh have in common; they read it.
set -uo pipefail
folder=${RUN_DIR:-outputs/slurm/$SLURM_JOB_ID}
mkdir -p "$folder"
# since SLURM 22.05 srun no longer asks for what sbatch was told: each process would get a single core
[ -n "${SLURM_CPUS_PER_TASK:-}" ] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# job <command> [override ...]: a process for each GPU. SIGUSR1 says that the time is over: srun hands it on to all of
# them (a SIGTERM it would answer by killing them at once) and mhprobe takes it for a SIGTERM; who does not end is
# killed, and the job is queued again. A SIGTERM is scancel, or machines that are taken away: SLURM tells all processes
# itself, and queues a job again that it took the machines from.
job() {
  local command=$1 code ranks killer=
  shift
  srun python -m "mhprobe.$command" trainer=ddp "trainer.devices=$SLURM_NTASKS_PER_NODE" \
    "trainer.num_nodes=$SLURM_NNODES" "hydra.run.dir=$folder" "$@" &
  ranks=$!
  trap 'kill -USR1 "$ranks"; (sleep "${PATIENCE:-90}"; kill -KILL "$ranks") >/dev/null 2>&1 & killer=$!' USR1
  trap : TERM
  wait "$ranks"
  code=$?
  while kill -0 "$ranks" 2>/dev/null; do # a signal ends the wait, not the ranks
    wait "$ranks"
    code=$?
  done
  if [ -n "$killer" ]; then
    kill "$killer" # the number of the process may be another's by then
    scontrol requeue "$SLURM_JOB_ID"
  fi
  exit "$code"
}
