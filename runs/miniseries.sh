#!/usr/bin/env bash
# A series of models of rising depth, each trained to the same ratio of tokens to parameters, and CORE of each.
#
#   bash runs/miniseries.sh                SERIES_NAME=jan DEPTHS="10 12 14 16 18 20 22 24 26" RATIO=10.5
#
# Writes BASE/NAME.csv, a row for each model, where NAME is $SERIES_NAME. Started again, it goes on where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export OMP_NUM_THREADS=1
PYTHON="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
NPROC_PER_NODE="${NPROC_PER_NODE:-8}"
SERIES_NAME="${SERIES_NAME:-series}"
DEPTHS="${DEPTHS:-10 12 14 16 18 20 22 24 26}"
RATIO="${RATIO:-10.5}"
MORE_FLAGS="${MORE_FLAGS:-}"   # further flags of base_train, such as --dataset embedded

together() {
  if [ "$NPROC_PER_NODE" = 1 ]; then "$PYTHON" -m "$@"
  else "$PYTHON" -m marin.run.launch --nproc_per_node "$NPROC_PER_NODE" -m "$1" -- "${@:2}"; fi
}

tags=()
for depth in $DEPTHS; do
  tag="${SERIES_NAME}_d$depth"
  # shellcheck disable=SC2086
  together scripts.base_train --depth="$depth" --target-param-data-ratio="$RATIO" --total-batch-size=-1 \
    --core-metric-every=999999 --core-metric-max-per-task=-1 --sample-every=-1 --save-every=-1 --model-tag="$tag" \
    --run="${WANDB_RUN:-dummy}" $MORE_FLAGS
  tags+=("$tag")
done
"$PYTHON" -m scripts.series "$SERIES_NAME" --tags "${tags[@]}"
