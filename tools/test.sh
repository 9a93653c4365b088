#!/usr/bin/env bash
# Installs what is needed, builds the dev preset and runs every test. Arguments go to ctest, e.g. -L unit.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/packages.sh
cmake --preset dev
cmake --build --preset dev
ctest --preset dev "$@"
