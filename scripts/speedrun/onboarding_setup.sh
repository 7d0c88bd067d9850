#!/usr/bin/env bash
# From nothing to a speedrun of your own that can be edited and dry-run. Needs git and Python 3.11 or later; no GPU.
#
#   curl -LsSf https://raw.githubusercontent.com/marin-community/marin/refs/heads/main/scripts/speedrun/onboarding_setup.sh | bash
#
# Clones (or forks, when gh is logged in), makes the environment, asks for keys that are optional, and runs `marin init`.
# Inside a clone it uses that clone. Running it again continues: what is there is kept.
#
# Environment:
#   SUBMISSION_NAME      name of the speedrun; asked for when unset, and `marin init` is left to you if there is no answer
#   MARIN_DIR            where to clone to (default: marin in the working directory)
#   MARIN_REPO_URL       what to clone (default: https://github.com/marin-community/marin)
#   MARIN_SETUP_EXTRAS   extras to install, such as "cuda12 wandb"; "none" for none
#                        (default: cuda12 or cuda13 as the NVIDIA driver allows, if there is one)
#   WANDB_API_KEY, HF_TOKEN   taken as they are; never asked for again, never written to a file
#   NO_PROMPT=1          ask nothing
#   MARIN_NO_UV_INSTALL=1  do not fetch uv where it is missing; use venv and pip
set -euo pipefail

readonly DEFAULT_REPO_URL="https://github.com/marin-community/marin"
readonly CUDA12_DRIVER=525 CUDA13_DRIVER=580 # the first driver that each CUDA runs on

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}
have() { command -v "$1" >/dev/null 2>&1; }

# Answers come from the terminal itself, since standard input is this script when it is piped from curl.
can_ask() { [[ -z "${NO_PROMPT:-}" ]] && { : </dev/tty; } 2>/dev/null; }

ask() { # ask QUESTION -> the answer, maybe empty, on standard output
  local answer=""
  if can_ask; then
    printf '%s: ' "$1" >/dev/tty
    IFS= read -r answer </dev/tty || true
  fi
  printf '%s' "$answer"
}

ask_secret() { # as ask, without showing what is typed
  local answer=""
  if can_ask; then
    printf '%s: ' "$1" >/dev/tty
    IFS= read -rs answer </dev/tty || true
    printf '\n' >/dev/tty
  fi
  printf '%s' "$answer"
}

# --- the clone -----------------------------------------------------------------------------------------------------

is_marin() { [[ -f "$1/pyproject.toml" ]] && grep -Eq '^name *= *"marin"' "$1/pyproject.toml"; }

enter_clone() {
  local root url="${MARIN_REPO_URL:-$DEFAULT_REPO_URL}" directory="${MARIN_DIR:-marin}"
  if [[ -z "${MARIN_DIR:-}" ]] && root=$(git rev-parse --show-toplevel 2>/dev/null) && is_marin "$root"; then
    say "using the clone that you are in: $root"
    cd "$root"
  elif [[ -d "$directory" ]] && is_marin "$directory"; then
    say "using the clone at $directory"
    cd "$directory"
  elif [[ -e "$directory" && -n "$(ls -A "$directory" 2>/dev/null || echo file)" ]]; then
    die "$directory exists and is no clone of Marin: set MARIN_DIR to another place, or remove it, and run this again"
  elif [[ "$url" == "$DEFAULT_REPO_URL" ]] && have gh && gh auth status >/dev/null 2>&1; then
    say "gh is logged in: forking $url to your account"
    gh repo fork "$url" --clone=false || die "the fork failed: run \`gh repo fork $url\` to see why, then run this again"
    local login
    login=$(gh api user --jq .login) || die "gh does not say who you are: run \`gh auth login\`, then run this again"
    rm -rf "$directory.partial"
    gh repo clone "$login/marin" "$directory.partial" || clone_failed
    take_clone "$directory"
  else
    say "cloning $url to $directory"
    rm -rf "$directory.partial"
    git clone "$url" "$directory.partial" || clone_failed
    take_clone "$directory"
  fi
  is_marin . || die "$PWD is no clone of Marin: set MARIN_REPO_URL to one, remove $PWD, and run this again"
}

# A clone that is cut short leaves only DIRECTORY.partial, which the next run replaces.
take_clone() {
  [[ ! -d "$1" ]] || rmdir "$1"
  mv "$1.partial" "$1"
  cd "$1"
}

clone_failed() { die "cloning failed: check the network and MARIN_REPO_URL, then run this again"; }

# --- the environment -----------------------------------------------------------------------------------------------

gpu_extra() { # "cuda13", "cuda12" or nothing, by the driver that is there
  local version major
  have nvidia-smi || return 0
  version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || return 0
  major=${version%%.*}
  [[ "$major" =~ ^[0-9]+$ ]] || return 0
  if ((major >= CUDA13_DRIVER)); then
    printf 'cuda13'
  elif ((major >= CUDA12_DRIVER)); then
    printf 'cuda12'
  else
    say "the NVIDIA driver $version is older than CUDA 12 needs: the GPU is left out until it is updated" >&2
  fi
}

find_python() {
  local candidate
  for candidate in python3.11 python3.12 python3 python; do
    if have "$candidate" && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$candidate"
      return 0
    fi
  done
  return 1
}

get_uv() {
  have uv && return 0
  [[ -n "${MARIN_NO_UV_INSTALL:-}" ]] && return 1
  have curl || return 1
  say "getting uv"
  curl -LsSf --max-time 120 https://astral.sh/uv/install.sh 2>/dev/null | sh >/dev/null 2>&1 || return 1
  export PATH="$HOME/.local/bin:$PATH"
  have uv
}

make_environment() {
  local extras="${MARIN_SETUP_EXTRAS-$(gpu_extra)}" extra python
  local -a flags=() wanted=()
  [[ "$extras" == none ]] && extras=""
  read -r -a wanted <<<"${extras//,/ }"
  if get_uv; then
    for extra in ${wanted[@]+"${wanted[@]}"}; do flags+=("--extra=$extra"); done
    [[ -x .venv/bin/python ]] || uv venv --python 3.11
    uv sync --all-packages --inexact ${flags[@]+"${flags[@]}"} || die "uv sync failed: see above, then run this again"
  else
    say "uv is not to be had; using venv and pip"
    python=$(find_python) || die "Python 3.11 or later is needed: install it, then run this again"
    [[ -x .venv/bin/python ]] || "$python" -m venv .venv
    if [[ -f requirements.lock ]]; then
      .venv/bin/python -m pip install --quiet -r requirements.lock || die "pip failed: see above, then run this again"
    fi
    extra="${wanted[*]-}"
    .venv/bin/python -m pip install --quiet -e ".${extra:+[${extra// /,}]}" || die "pip failed: see above, then run this again"
  fi
  if ((${#wanted[@]} > 0)); then say "environment ready in .venv, with ${wanted[*]}"; else say "environment ready in .venv"; fi
}

# --- keys ----------------------------------------------------------------------------------------------------------

has_netrc_login() { grep -Eq 'machine[[:space:]]+api\.wandb\.ai' "${NETRC:-$HOME/.netrc}" 2>/dev/null; }
has_hf_login() { [[ -s "${HF_TOKEN_PATH:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/token}" ]]; }

single_quoted() { # $1 as one shell word
  local quote="'\\''"
  printf "'%s'" "${1//\'/$quote}"
}

keep_key() { # keep_key VARIABLE NAME: asks for a key and keeps it in .env
  local variable="$1" key
  if [[ -n "${!variable:-}" ]]; then
    say "$2: set in the environment"
  elif { [[ "$variable" == WANDB_API_KEY ]] && has_netrc_login; } || { [[ "$variable" == HF_TOKEN ]] && has_hf_login; }; then
    say "$2: stored login found"
  elif grep -Eq "^(export )?$variable=." .env 2>/dev/null; then
    say "$2: kept in .env"
  else
    key=$(ask_secret "$2 key, optional (Enter to go without)")
    if [[ -n "$key" ]]; then
      (umask 077 && printf 'export %s=%s\n' "$variable" "$(single_quoted "$key")" >>.env)
      chmod 600 .env
      say "$2: kept in .env, which only you can read and git ignores"
    else
      say "$2: none, which is fine"
    fi
  fi
}

# --- the speedrun --------------------------------------------------------------------------------------------------

start_speedrun() {
  local name="${SUBMISSION_NAME:-}" module
  [[ -n "$name" ]] || name=$(ask "Name of your speedrun, such as my_idea")
  if [[ -z "$name" ]]; then
    say "when you have a name: . .venv/bin/activate && python -m marin init NAME"
    return 0
  fi
  module=${name//-/_}
  if [[ -f "experiments/speedrun/$module/main.py" ]]; then
    say "experiments/speedrun/$module/main.py is there already and is kept"
  elif can_ask; then
    .venv/bin/python -m marin init "$name" </dev/tty
  else
    .venv/bin/python -m marin init "$name" </dev/null
  fi
}

usage() { # how this file begins
  awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "${BASH_SOURCE[0]}"
}

main() {
  case "${1:-}" in
    "") ;;
    -h | --help)
      usage
      return 0
      ;;
    *) die "\`$1\` is not taken: settings are variables such as SUBMISSION_NAME=my_idea, which \`--help\` lists" ;;
  esac
  # Containers and services may set no HOME, or an empty one; uv, git and logins need it. Unset, ~ is what the system knows.
  [[ -n "${HOME:-}" ]] || { unset HOME && export HOME=~; }
  have git || die "git is needed: install it, then run this again"
  step "Clone"
  enter_clone
  step "Environment"
  make_environment
  step "Keys"
  keep_key WANDB_API_KEY "Weights & Biases"
  keep_key HF_TOKEN "Hugging Face"
  step "Speedrun"
  start_speedrun
  step "Done"
  say "each new shell starts with:"
  say "  cd $(printf '%q' "$PWD") && . .venv/bin/activate$([[ -f .env ]] && printf ' && . ./.env')"
  say "what this machine can do: python -m marin doctor"
}

main "$@" # in one function, so that a download that is cut short runs nothing
