#!/usr/bin/env bash
# What the other slurm_*.sh have in common; they read it.
set -uo pipefail
folder=${RUN_DIR:-outputs/slurm/$SLURM_JOB_ID}
mkdir -p "$folder"

# job <command> [override ...]: a process for each GPU. SIGUSR1 and SIGTERM reach all of them as SIGTERM; who does not
# end is killed, and the job is queued again.
job() {
  local command=$1 code ranks killer stopped=
  shift
  srun python -m "mhprobe.$command" trainer=ddp "trainer.devices=$SLURM_NTASKS_PER_NODE" \
    "trainer.num_nodes=$SLURM_NNODES" "hydra.run.dir=$folder" "$@" &
  ranks=$!
  trap 'stopped=yes; kill -TERM "$ranks"; (sleep "${PATIENCE:-90}"; kill -KILL "$ranks") >/dev/null 2>&1 & killer=$!' USR1 TERM
  wait "$ranks"
  code=$?
  while kill -0 "$ranks" 2>/dev/null; do # a signal ends the wait, not the ranks
    wait "$ranks"
    code=$?
  done
  if [ -n "$stopped" ]; then
    kill "$killer" # the number of the process may be another's by then
    scontrol requeue "$SLURM_JOB_ID"
  fi
  exit "$code"
}
