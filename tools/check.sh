#!/usr/bin/env bash
# What must be clean before a commit: format of all sources, and with --tidy also clang-tidy (slow).
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh')
clang-format --dry-run -Werror "${sources[@]}"
for script in tools/*.sh tests/hw/*.sh .ci/run; do bash -n "$script"; done
if [ "${1:-}" = --tidy ]; then
  cmake --preset dev >/dev/null
  mapfile -t units < <(printf '%s\n' "${sources[@]}" | grep -E '^(model|tools)/.*\.cc$')
  printf '%s\n' "${units[@]}" | xargs -P 2 -n 4 clang-tidy -quiet -p build/dev
fi
echo "check: ${#sources[@]} files clean"
