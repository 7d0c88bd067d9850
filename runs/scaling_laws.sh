#!/usr/bin/env bash
# Models of several depths at each of several budgets of FLOPs, for isoFLOP curves: which size a budget is best spent on.
#
#   bash runs/scaling_laws.sh              BUDGETS="1e18 2.15e18 4.64e18 1e19" DEPTHS="8 10 12 14 16 18 20"
#
# Writes BASE/NAME.csv, where NAME is $SERIES_NAME (default: scaling), and prints the best depth of each budget. Started
# again, it goes on where it was. Further variables are in runs/setup.sh.
# shellcheck disable=SC2086  # flags are several words
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/no_arguments.sh
source runs/setup.sh

SERIES_NAME="${SERIES_NAME:-scaling}"
BUDGETS="${BUDGETS:-1e18 2.15e18 4.64e18 1e19}"
DEPTHS="${DEPTHS:-8 10 12 14 16 18 20}"

text_and_tokenizer
tags=()
for budget in $BUDGETS; do
  for depth in $DEPTHS; do
    tag="${SERIES_NAME}_${budget}_d$depth"
    together scripts.base_train --depth="$depth" --target-flops="$budget" --target-param-data-ratio=-1 \
      --total-batch-size=-1 --dataset="$DATASET" --core-metric-every=999999 --sample-every=-1 --save-every=-1 \
      --model-tag="$tag" --run="$(logged_as "$tag")" $TRAIN_FLAGS
    tags+=("$tag")
  done
done
"$PYTHON" -m scripts.series "$SERIES_NAME" --tags "${tags[@]}" --best-by-budget
