#!/usr/bin/env bash
# A series of models of rising depth, each trained to the same ratio of tokens to parameters, and CORE of each.
#
#   bash runs/miniseries.sh                SERIES_NAME=jan DEPTHS="10 12 14 16 18 20 22 24 26" RATIO=10.5
#
# Writes BASE/NAME.csv, a row for each model, where NAME is $SERIES_NAME (default: series), and prints it. Started again, it
# goes on where it was. Further variables are in runs/setup.sh.
# shellcheck disable=SC2086  # flags are several words
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/no_arguments.sh
source runs/setup.sh

SERIES_NAME="${SERIES_NAME:-series}"
DEPTHS="${DEPTHS:-10 12 14 16 18 20 22 24 26}"
RATIO="${RATIO:-10.5}"

text_and_tokenizer
tags=()
for depth in $DEPTHS; do
  tag="${SERIES_NAME}_d$depth"
  together scripts.base_train --depth="$depth" --target-param-data-ratio="$RATIO" --total-batch-size=-1 \
    --dataset="$DATASET" --core-metric-every=999999 --core-metric-max-per-task=-1 --sample-every=-1 --save-every=-1 \
    --model-tag="$tag" --run="$(logged_as "$tag")" $TRAIN_FLAGS
  tags+=("$tag")
done
"$PYTHON" -m scripts.series "$SERIES_NAME" --tags "${tags[@]}"
