#!/usr/bin/env bash
# For a machine with a GPU, half an hour of it, and no network. What it does there: benchmarks/gpu/stages.py.
#   launch/gpu_kit.sh pack FOLDER --cifar ARCHIVE       here: everything such a machine lacks, in one folder
#   FOLDER/mhprobe/launch/gpu_kit.sh run FOLDER         there: all stages; again after an interruption
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m benchmarks.gpu "$@"
