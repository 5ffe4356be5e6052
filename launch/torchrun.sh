#!/usr/bin/env bash
# One machine, the GPUs that it may use, started by torchrun:  launch/torchrun.sh +experiment=cifar10_vit
# (without torchrun, `python -m mhprobe.train trainer=ddp ...` starts the processes itself)
# Two machines that share a folder, the same line on both:
#   NODES=2 FIRST=host1:29500 RUN_DIR=/shared/run launch/torchrun.sh +experiment=cifar10_vit
set -euo pipefail
visible() { # how many GPUs CUDA shows: all of the machine, or those of a list of which "" and -1 end the reading
  local name number=0 names
  if [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then
    nvidia-smi --list-gpus | wc -l
    return
  fi
  IFS=, read -ra names <<<"$CUDA_VISIBLE_DEVICES"
  for name in "${names[@]}"; do
    [ -z "$name" ] || [ "$name" = -1 ] && break
    number=$((number + 1))
  done
  echo "$number"
}
processes=${NPROC:-$(visible)}
if [ "$processes" -lt 1 ]; then
  echo "torchrun.sh: no GPU to run on; set NPROC, e.g. NPROC=2 for two processes on the CPU" >&2
  exit 2
fi
nodes=${NODES:-1}
if [ "$nodes" -gt 1 ]; then
  : "${FIRST:?expected FIRST=host:port of one of the machines}" "${RUN_DIR:?expected a folder that all machines share}"
  meet=(--nnodes="$nodes" --rdzv-backend=c10d --rdzv-endpoint="$FIRST" --rdzv-id="${RUN_ID:-mhprobe}")
else
  meet=(--standalone)
fi
# every rank composes the configuration itself: the run's folder is decided once, here
folder=${RUN_DIR:-outputs/torchrun/$(date +%Y-%m-%d_%H-%M-%S)}
exec torchrun "${meet[@]}" --nproc-per-node="$processes" -m mhprobe.train \
  trainer=ddp "trainer.devices=$processes" "trainer.num_nodes=$nodes" "hydra.run.dir=$folder" "$@"
