# What the pipelines for a node share: their variables, `together`, `text_and_tokenizer`. Sourced by them, at the repository's root.
#
# Environment:
#   MARIN_BASE_DIR    where everything is kept (default: $NANOCHAT_BASE_DIR, then ~/.cache/marin/gpt2)
#   NPROC_PER_NODE    processes, one for each GPU (default: 8); 1 starts one process that drives all GPUs
#   WANDB_RUN         name of the run on W&B (default: dummy, which logs nothing)
#   PYTHON            of the environment that has this project (default: .venv/bin/python where it is there, else python3)
#   DATASET           climbmix, which is fetched (default), embedded, or files (see docs/tutorials/time-to-gpt2.md)
#   SHARDS            of ClimbMix to train on, of about 100 MB each (default: 370)
#   FETCH_CORE        whether CORE's data is fetched where it is not there (default: 1); with 0 and without it, CORE is left out
#   DATASET_FLAGS, BUNDLE_FLAGS, TOKENIZER_FLAGS, TRAIN_FLAGS
#                     further flags of scripts.dataset, eval_bundle, tok_train and base_train, such as --url MIRROR
# shellcheck shell=bash disable=SC2034,SC2086  # variables are for the scripts that source this; flags are several words

export OMP_NUM_THREADS=1
PYTHON="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
NPROC_PER_NODE="${NPROC_PER_NODE:-8}"
WANDB_RUN="${WANDB_RUN:-dummy}"
DATASET="${DATASET:-climbmix}"
SHARDS="${SHARDS:-370}"
FETCH_CORE="${FETCH_CORE:-1}"
DATASET_FLAGS="${DATASET_FLAGS:-}"
BUNDLE_FLAGS="${BUNDLE_FLAGS:-}"
TOKENIZER_FLAGS="${TOKENIZER_FLAGS:-}"
TRAIN_FLAGS="${TRAIN_FLAGS:-}"

# `together MODULE FLAGS...` runs a module in all processes: with torchrun where that is found, else with our own launcher.
if [ "$NPROC_PER_NODE" = 1 ]; then
  together() { "$PYTHON" -m "$@"; }
elif command -v torchrun >/dev/null 2>&1; then
  # Its processes are of the Python that has this project, wherever PyTorch is installed.
  together() { PYTHON_EXEC="$PYTHON" torchrun --standalone --nproc_per_node="$NPROC_PER_NODE" -m "$1" -- "${@:2}"; }
else
  together() { "$PYTHON" -m marin.run.launch --nproc_per_node "$NPROC_PER_NODE" -m "$1" -- "${@:2}"; }
fi

# Text, tokenizer and CORE's data, as far as they are not there.
text_and_tokenizer() {
  local download=""
  if [ "$FETCH_CORE" = 1 ]; then
    "$PYTHON" -m scripts.eval_bundle $BUNDLE_FLAGS
  fi
  if [ "$DATASET" = climbmix ]; then
    # 8 shards for the tokenizer; the others arrive meanwhile.
    "$PYTHON" -m scripts.dataset -n $((SHARDS < 8 ? SHARDS : 8)) $DATASET_FLAGS
    "$PYTHON" -m scripts.dataset -n "$SHARDS" $DATASET_FLAGS &
    download=$!
    # shellcheck disable=SC2064  # its number as it is now
    trap "kill $download 2>/dev/null || true" EXIT
  fi
  "$PYTHON" -m scripts.tok_train --dataset="$DATASET" --max-chars=2000000000 --vocab-size=32768 --max-files=8 $TOKENIZER_FLAGS
  if [ -n "$download" ]; then
    wait "$download"
    trap - EXIT
  fi
}

# `logged_as TAG` is the name on W&B of one of several models.
logged_as() { if [ "$WANDB_RUN" = dummy ]; then echo dummy; else echo "${WANDB_RUN}_$1"; fi; }
