#!/usr/bin/env bash
# Models of several depths at each of several budgets of FLOPs, for isoFLOP curves: which size a budget is best spent on.
#
#   bash runs/scaling_laws.sh              BUDGETS="1e18 2.15e18 4.64e18 1e19" DEPTHS="8 10 12 14 16 18 20"
#
# Writes BASE/NAME.csv, where NAME is $SERIES_NAME (default: scaling), and prints the best depth of each budget. Started
# again, it goes on where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export OMP_NUM_THREADS=1
PYTHON="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
NPROC_PER_NODE="${NPROC_PER_NODE:-8}"
SERIES_NAME="${SERIES_NAME:-scaling}"
BUDGETS="${BUDGETS:-1e18 2.15e18 4.64e18 1e19}"
DEPTHS="${DEPTHS:-8 10 12 14 16 18 20}"
MORE_FLAGS="${MORE_FLAGS:-}"

together() {
  if [ "$NPROC_PER_NODE" = 1 ]; then "$PYTHON" -m "$@"
  else "$PYTHON" -m marin.run.launch --nproc_per_node "$NPROC_PER_NODE" -m "$1" -- "${@:2}"; fi
}

tags=()
for budget in $BUDGETS; do
  for depth in $DEPTHS; do
    tag="${SERIES_NAME}_${budget}_d$depth"
    # shellcheck disable=SC2086
    together scripts.base_train --depth="$depth" --target-flops="$budget" --target-param-data-ratio=-1 \
      --total-batch-size=-1 --core-metric-every=999999 --sample-every=-1 --save-every=-1 --model-tag="$tag" \
      --run="${WANDB_RUN:-dummy}" $MORE_FLAGS
    tags+=("$tag")
  done
done
"$PYTHON" -m scripts.series "$SERIES_NAME" --tags "${tags[@]}" --best-by-budget
