#!/usr/bin/env bash
# Sets up, checks the format, builds and runs all tests. Then runs the kernels' tests under AddressSanitizer and
# UndefinedBehaviorSanitizer, and the tests of threads under ThreadSanitizer.
set -Eeuo pipefail
cd "$(dirname "$0")/.."
trap 'echo "test.sh: failed after ${SECONDS} s" >&2' ERR

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

build() {  # preset, further arguments of the build
  cmake --preset "$1" --log-level=WARNING >/dev/null
  cmake --build --preset "$@"
}

scripts/setup.sh
jobs=$(nproc)

step "format"
if [[ $(clang-format --version) != *"version 14."* ]]; then
  echo "not checked: releases of clang-format differ, and the sources have the format of version 14"
else
  git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' | xargs -0 clang-format --dry-run --Werror
fi

step "release"
build release
ctest --preset release --parallel "$jobs"

step "asan: AddressSanitizer, UndefinedBehaviorSanitizer"
build asan
ctest --preset asan --parallel "$jobs"

step "tsan: ThreadSanitizer"
build tsan --target parallel_test
ctest --preset tsan --parallel "$jobs" --no-tests=error --tests-regex '^Threads\.'

echo
echo "all passed in ${SECONDS} s"
