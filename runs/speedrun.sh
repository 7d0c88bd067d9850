#!/usr/bin/env bash
# The whole pipeline on one node of eight H100: data, tokenizer, base model, CORE, SFT, chat evaluation, report.
#
#   bash runs/speedrun.sh                  about three hours; WANDB_RUN=name logs to W&B
#   screen -L -Logfile runs/speedrun.log -S speedrun bash runs/speedrun.sh
#
# Started again after whatever happened, it goes on where it was: every stage that is done is skipped.
#
# Environment:
#   MARIN_BASE_DIR     where everything is kept (default: $NANOCHAT_BASE_DIR, then ~/.cache/marin/gpt2)
#   WANDB_RUN          name of the run on W&B (default: dummy, which logs nothing)
#   NPROC_PER_NODE     processes, one for each GPU (default: 8); 1 starts one process that drives all GPUs
#   DEPTH, RATIO       of the model (default: 26 and 8.25)
#   PRICE_PER_HOUR     of the node, for the cost in the report
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export OMP_NUM_THREADS=1
PYTHON="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
WANDB_RUN="${WANDB_RUN:-dummy}"
NPROC_PER_NODE="${NPROC_PER_NODE:-8}"
DEPTH="${DEPTH:-26}"
RATIO="${RATIO:-8.25}"

# torchrun where PyTorch is installed, else our own launcher: the commands are the same for both.
if [ "$NPROC_PER_NODE" = 1 ]; then
  together() { "$PYTHON" -m "$@"; }
elif command -v torchrun >/dev/null 2>&1; then
  together() { torchrun --standalone --nproc_per_node="$NPROC_PER_NODE" -m "$1" -- "${@:2}"; }
else
  together() { "$PYTHON" -m marin.run.launch --nproc_per_node "$NPROC_PER_NODE" -m "$1" -- "${@:2}"; }
fi

"$PYTHON" -m scripts.report reset --unless-begun

# 8 shards for the tokenizer; the 370 that the model reads arrive meanwhile.
"$PYTHON" -m scripts.dataset -n 8
"$PYTHON" -m scripts.dataset -n 370 &
download=$!
trap 'kill "$download" 2>/dev/null || true' EXIT
"$PYTHON" -m scripts.tok_train --max-chars=2000000000 --vocab-size=32768 --max-files=8
"$PYTHON" -m scripts.tok_eval --max-files=8
wait "$download"

together scripts.base_train --depth="$DEPTH" --target-param-data-ratio="$RATIO" --device-batch-size=16 --fp8 \
  --core-metric-every=999999 --sample-every=-1 --save-every=-1 --model-tag="d$DEPTH" --run="$WANDB_RUN"
"$PYTHON" -m scripts.base_eval --device-batch-size=16 --model-tag="d$DEPTH"

together scripts.chat_sft --device-batch-size=16 --model-tag="d$DEPTH" --run="$WANDB_RUN"
"$PYTHON" -m scripts.chat_eval -i sft --download --model-tag="d$DEPTH"

"$PYTHON" -m scripts.report generate ${PRICE_PER_HOUR:+--price-per-hour="$PRICE_PER_HOUR"}
