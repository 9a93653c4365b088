#!/usr/bin/env bash
# Installs the Debian packages that Plumbline builds with, and gnuplot for the pictures of simulated runs. Does nothing when all are there.
set -euo pipefail
packages=(build-essential cmake ninja-build libfmt-dev libyaml-cpp-dev libeigen3-dev libcli11-dev
  nlohmann-json3-dev libxxhash-dev libgtest-dev libbenchmark-dev libsimgrid-dev gnuplot-nox)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo
echo "installing: ${missing[*]}"
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
