#!/usr/bin/env bash
# Installs what is needed, builds the release preset and runs the main job: predicted, simulated, measured and
# published times side by side. Arguments go to `plumb run`, e.g. --json.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/packages.sh
cmake --preset release
cmake --build --preset release
build/release/tools/plumb run experiments/lineup.yaml "$@"
