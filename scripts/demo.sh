#!/usr/bin/env bash
# Sets up, builds and runs the main job: the kernels' benchmark in its quick form. Arguments go to the benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release --target ovq
build/release/ovq bench kernels --quick "$@"
