#!/usr/bin/env bash
# Fuzzes every reader of files that needs no torch, in turn, with libFuzzer under AddressSanitizer and
# UndefinedBehaviorSanitizer. Inputs that reach new code are kept in runs/fuzz/<target>, from one call to the next;
# those that break something in runs/fuzz/found/<target>. Prints executions, coverage and faults for each target.
# With --torch also the readers that need it, and the program's arguments; torch itself is not instrumented.
# Needs clang (Debian: clang libclang-rt-14-dev), which setup.sh does not install.
# Usage: scripts/fuzz.sh [--seconds S] [--targets "state config"] [--torch]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60 targets= torch=OFF
while (($#)); do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --targets) targets=$2; shift ;;
    --torch) torch=ON ;;
    *) echo "fuzz.sh: unknown option $1; the first lines of the script say which there are" >&2; exit 2 ;;
  esac
  shift
done
command -v clang++ >/dev/null || { echo "fuzz.sh: there is no clang++ (Debian: clang libclang-rt-14-dev)" >&2; exit 1; }
cmake --preset fuzz -D OVQ_BUILD_TORCH=$torch -D OVQ_BUILD_CLI=$torch --log-level=WARNING >/dev/null
cmake --build --preset fuzz --target fuzz_readers fuzz_replay
build=build/fuzz
[[ -n $targets ]] || targets=$($build/fuzz_replay --list)

faults=0
for target in $targets; do
  corpus=runs/fuzz/$target found=runs/fuzz/found/$target log=runs/fuzz/$target.log
  mkdir -p "$corpus" "$found"
  $build/fuzz_replay --seeds "$target" "$corpus"
  inputs=("$corpus")
  [[ ! -d fuzz/found/$target ]] || inputs+=("fuzz/found/$target")
  status=0
  OVQ_FUZZ_TARGET=$target ASAN_OPTIONS=allocator_may_return_null=0:detect_leaks=1 \
    $build/fuzz_readers -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -print_final_stats=1 -artifact_prefix="$found/" "${inputs[@]}" >"$log" 2>&1 || status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  covered=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -d' ' -f2)
  if ((status)); then
    faults=$((faults + 1))
    echo "$target: FAULT after ${runs:-?} executions, ${covered:-?} edges; $log, $found"
  else
    echo "$target: ${runs:-?} executions, ${covered:-?} edges, no fault"
  fi
done
exit $((faults > 0))
