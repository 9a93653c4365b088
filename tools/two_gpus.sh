#!/usr/bin/env bash
# Everything that is measured on a machine with two GPUs, in one call of less than ten minutes:
#   tools/two_gpus.sh OUT [FOLDER OF BINARIES]
# Binaries: plumb, hw_nvlink_tests, hw_bench of preset cuda with PLUMB_BENCHES=ON (default: build/cuda). Writes to OUT:
# h200x2.yaml and probe.json (plumb probe), bench.json, traces.tar.gz, plumb_nvlink.yaml and calibrate.txt (calibrated
# on every second point, judged by the others), tests.log. A step that fails does not stop the others; the exit code is 1.
set -uo pipefail
out=$(realpath -m "${1:?usage: tools/two_gpus.sh OUT [FOLDER OF BINARIES]}")
binaries=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
if [ -n "$binaries" ]; then
  plumb=$binaries/plumb tests=$binaries/hw_nvlink_tests bench=$binaries/hw_bench
else
  plumb=build/cuda/tools/plumb tests=build/cuda/tests/hw/hw_nvlink_tests bench=build/cuda/tests/hw/hw_bench
fi
export PLUMB_GPU_CASES=${PLUMB_GPU_CASES:-200}
export NCCL_NVLS_ENABLE=0  # NVLink multicast can put a shared host's GPUs out of service
mkdir -p "$out"
failed=0
step() {
  echo "== $1 ($SECONDS s)" >&2
  shift
  timeout "$@" || { echo "== failed with code $?: $*"; failed=1; }
}
nvidia-smi --query-gpu=index,name,driver_version,clocks.max.sm,power.limit --format=csv
step probe 120 "$plumb" probe -o "$out/h200x2.yaml" --base topologies/h200x2.yaml --sweeps "$out/probe.json" --seconds 30
step tests 150 "$tests" --gtest_color=no 2>&1 | tee "$out/tests.log" | tail -n 20
step bench 330 "$bench" --world nvlink --experiment experiments/two_gpus.yaml --limit 300 \
  --out "$out/bench.json" --traces "$out/traces" --machine "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | tr -s ' ')"
step calibrate 60 "$plumb" calibrate experiments/two_gpus.yaml --trace "$out"/traces/*.csv --start plumb_nvlink_form \
  -o "$out/plumb_nvlink.yaml" > "$out/calibrate.txt"
tar -czf "$out/traces.tar.gz" -C "$out" traces && rm -r "$out/traces"
grep -q 'FAILED\|== failed' "$out/tests.log" && failed=1
echo "== done ($SECONDS s), exit code $failed"
exit $failed
