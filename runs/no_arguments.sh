# What every pipeline does with arguments, of which it takes none: `--help` shows how it begins. Sourced by them, at the root.
# shellcheck shell=bash
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  awk 'NR > 1 && (/^# shellcheck/ || !/^#/) { exit } NR > 1 { sub(/^# ?/, ""); print }' "runs/${0##*/}"
  exit 0
elif [ $# -gt 0 ]; then
  echo "error: \`$1\` is not taken: settings are variables, which \`bash runs/${0##*/} --help\` lists" >&2
  exit 2
fi
