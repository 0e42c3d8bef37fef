#!/usr/bin/env bash
# Sets up, builds the release and runs its tests, C++ and Python. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release
ctest --preset release --parallel "$(nproc)" "$@"
