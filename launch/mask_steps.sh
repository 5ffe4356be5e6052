#!/usr/bin/env bash
# A sweep over the steps of the masking curves of trained weights; the greedy orders are searched once and shared.
#   launch/mask_steps.sh weights=weights/cifar10_vit_taught.safetensors data.root=...
# Steps: from 0 to the end of the longest curve, or STEPS=0,3,6. On a cluster add  hydra/launcher=slurm
# (pip install "mhprobe[submitit]").
set -euo pipefail
if [[ -z ${STEPS:-} ]]; then
  one=() # as one job, without launcher
  for part in "$@"; do [[ $part =~ ^\+*hydra[./] ]] || one+=("$part"); done
  # a step that no curve has is refused before the work, with the steps that exist
  said=$(python -m mhprobe.mask "${one[@]}" masking.step=999999999 2>&1) || true
  if [[ ! $said =~ steps\ 0\ to\ ([0-9]+)\ exist ]]; then
    printf '%s\n' "$said" >&2
    exit 2
  fi
  STEPS=$(seq -s, 0 "${BASH_REMATCH[1]}")
fi
exec python -m mhprobe.mask -m "masking.step=$STEPS" "$@"
