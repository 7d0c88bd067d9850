#!/usr/bin/env bash
# The whole pipeline on two processor cores, without network: a small model that spells, counts, and uses its calculator.
#
#   bash runs/runcpu.sh                    about 25 minutes on two cores; ends with report.md
#
# Text is the embedded corpus (docstrings of Python packages), conversations are made by the project. Started again after
# whatever happened, it goes on where it was: every stage that is done is skipped.
#
# Environment:
#   MARIN_BASE_DIR         where everything is kept (default: $NANOCHAT_BASE_DIR, then ~/.cache/marin/runcpu)
#   BASE_STEPS, SFT_STEPS  steps of 2,048 tokens (default: 900 and 1000); fewer for a look, more for a better model
#   MADE                   conversations to make (default: 40000)
#   WANDB_RUN              name of the run on W&B (default: dummy, which logs nothing)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/no_arguments.sh

export MARIN_BASE_DIR="${MARIN_BASE_DIR:-${NANOCHAT_BASE_DIR:-$HOME/.cache/marin/runcpu}}"
PYTHON="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
WANDB_RUN="${WANDB_RUN:-dummy}"
run() { "$PYTHON" -m "$@"; }

run scripts.report reset --unless-begun

# A small vocabulary leaves more of a small model to its layers, and words of a few tokens are easier to spell.
run scripts.tok_train --dataset embedded --vocab-size 4096
run scripts.tok_eval --dataset embedded

# Batches are 1/256 of those that rates are given for, and are scaled by 1/16: these come out near what is best at this size.
run scripts.base_train --dataset embedded --device-type cpu --depth 4 --aspect-ratio 48 --head-dim 64 --max-seq-len 256 \
  --window-pattern L --total-batch-size 2048 --device-batch-size 8 --num-iterations "${BASE_STEPS:-900}" \
  --matrix-lr 0.2 --embedding-lr 0.4 --unembedding-lr 0.04 --weight-decay 0.02 --warmup-steps 20 \
  --eval-every 300 --eval-tokens 32768 --core-metric-every -1 --sample-every -1 --checkpoint-interval 60 --run "$WANDB_RUN"
run scripts.base_eval --device-batch-size 8 --split-tokens 65536 --max-per-task 16 --dataset embedded --device-type cpu

run scripts.chat_sft --device-type cpu --made "${MADE:-40000}" --num-iterations "${SFT_STEPS:-1000}" \
  --init-lr-frac 1.0 --eval-every 500 --eval-tokens 32768 --chatcore-every -1 --checkpoint-interval 60 --run "$WANDB_RUN"
run scripts.chat_eval -i sft -a "Spelling|SpellingBee|Arithmetic|Identity" -m 96 -b 16 -x 128 --device-type cpu

run scripts.report generate
# Commands look elsewhere by default: at what speedrun.sh makes.
printf 'talk to the model: %q -m scripts.chat_cli -i sft --base-dir %q\n' "$PYTHON" "$MARIN_BASE_DIR"
