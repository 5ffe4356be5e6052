#!/usr/bin/env bash
# A sweep over the steps of the masking curves of trained weights; the greedy orders are searched once and shared.
#   launch/mask_steps.sh +experiment=cifar10_vit_stem weights=weights/cifar10_vit_stem.safetensors data.root=...
# On a cluster add  hydra/launcher=slurm  (pip install "mhprobe[submitit]").
set -euo pipefail
exec python -m mhprobe.mask -m "masking.step=${STEPS:-0,1,2,3,4,5,6,7,8,9,10,11,12}" "$@"
