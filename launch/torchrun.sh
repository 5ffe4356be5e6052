#!/usr/bin/env bash
# One machine, all its GPUs, started by torchrun:  launch/torchrun.sh +experiment=cifar10_vit
# (without torchrun, `python -m mhprobe.train trainer=ddp ...` starts the processes itself)
set -euo pipefail
processes=${NPROC:-$(nvidia-smi --list-gpus | wc -l)}
# every rank composes the configuration itself: the run's folder is decided once, here
folder=${RUN_DIR:-outputs/torchrun/$(date +%Y-%m-%d_%H-%M-%S)}
exec torchrun --standalone --nproc-per-node="$processes" -m mhprobe.train \
  trainer=ddp "trainer.devices=$processes" "hydra.run.dir=$folder" "$@"
