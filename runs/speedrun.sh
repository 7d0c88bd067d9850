#!/usr/bin/env bash
# The whole pipeline on one node of eight H100: data, tokenizer, base model, CORE, SFT, chat evaluation, report.
#
#   bash runs/speedrun.sh                  about three hours; WANDB_RUN=name logs to W&B
#   screen -L -Logfile runs/speedrun.log -S speedrun bash runs/speedrun.sh
#
# Started again after whatever happened, it goes on where it was: every stage that is done is skipped.
#
# Environment, beside that of runs/setup.sh:
#   DEPTH, RATIO       of the model (default: 26 and 8.25)
#   PRICE_PER_HOUR     of the node, for the cost in the report
#   EVAL_FLAGS, SFT_FLAGS, CHAT_FLAGS, REPORT_FLAGS
#                      further flags of scripts.base_eval, chat_sft, chat_eval and report, such as --made 20000
# shellcheck disable=SC2086  # flags are several words
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/no_arguments.sh
source runs/setup.sh

DEPTH="${DEPTH:-26}"
RATIO="${RATIO:-8.25}"
EVAL_FLAGS="${EVAL_FLAGS:-}"
SFT_FLAGS="${SFT_FLAGS:-}"
CHAT_FLAGS="${CHAT_FLAGS:-}"
REPORT_FLAGS="${REPORT_FLAGS:-}"

"$PYTHON" -m scripts.report reset --unless-begun

text_and_tokenizer
"$PYTHON" -m scripts.tok_eval --dataset="$DATASET" --max-files=8

together scripts.base_train --depth="$DEPTH" --target-param-data-ratio="$RATIO" --device-batch-size=16 --fp8 \
  --dataset="$DATASET" --core-metric-every=999999 --sample-every=-1 --save-every=-1 --model-tag="d$DEPTH" \
  --run="$WANDB_RUN" $TRAIN_FLAGS
"$PYTHON" -m scripts.base_eval --device-batch-size=16 --dataset="$DATASET" --model-tag="d$DEPTH" $EVAL_FLAGS

together scripts.chat_sft --device-batch-size=16 --model-tag="d$DEPTH" --run="$WANDB_RUN" $SFT_FLAGS
"$PYTHON" -m scripts.chat_eval -i sft --download --model-tag="d$DEPTH" $CHAT_FLAGS

"$PYTHON" -m scripts.report generate ${PRICE_PER_HOUR:+--price-per-hour="$PRICE_PER_HOUR"} $REPORT_FLAGS
