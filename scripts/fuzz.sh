#!/usr/bin/env bash
# Fuzzes every reader of files, one after the other, with libFuzzer. Readers without torch run under AddressSanitizer
# and UndefinedBehaviorSanitizer. With --torch, readers that need torch and the program's arguments follow, with only
# the library's assertions. Inputs that reach new code are kept in runs/fuzz/<target> between calls, inputs that cause a
# fault in runs/fuzz/found/<target>. Prints executions, coverage and faults for each target; coverage is in edges, with
# torch in libFuzzer's features.
# Needs clang (Debian: clang libclang-rt-14-dev), which setup.sh does not install.
# Usage: scripts/fuzz.sh [--seconds S for each] [--targets "state config"] [--torch]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60 targets= torch=0
while (($#)); do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --targets) targets=$2; shift ;;
    --torch) torch=1 ;;
    *) echo "fuzz.sh: unknown option $1; see the first lines of this script" >&2; exit 2 ;;
  esac
  shift
done
command -v clang++ >/dev/null || { echo "fuzz.sh: clang++ is not installed (Debian: clang libclang-rt-14-dev)" >&2; exit 1; }

make_programs() {  # preset
  cmake --preset "$1" --log-level=WARNING >/dev/null
  cmake --build --preset "$1" --target fuzz_readers fuzz_replay
}
make_programs fuzz
plain=$(build/fuzz/fuzz_replay --list) all=$plain
if ((torch)); then
  make_programs fuzz-torch
  all=$(build/fuzz-torch/fuzz_replay --list)
fi
[[ -n $targets ]] || targets=$all

faults=0
for target in $targets; do
  corpus=runs/fuzz/$target found=runs/fuzz/found/$target log=runs/fuzz/$target.log
  build=build/fuzz covered=cov
  grep -qx "$target" <<<"$plain" || build=build/fuzz-torch covered=ft
  mkdir -p "$corpus" "$found"
  $build/fuzz_replay --seeds "$target" "$corpus"
  inputs=("$corpus")
  [[ ! -d fuzz/found/$target ]] || inputs+=("fuzz/found/$target")
  status=0
  OVQ_FUZZ_TARGET=$target ASAN_OPTIONS=allocator_may_return_null=0:detect_leaks=1 \
    $build/fuzz_readers -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -print_final_stats=1 -artifact_prefix="$found/" "${inputs[@]}" >"$log" 2>&1 || status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  covered="$(grep -o "$covered: [0-9]*" "$log" | tail -n 1 | cut -d' ' -f2) $([[ $covered = cov ]] && echo edges || echo features)"
  if ((status)); then
    faults=$((faults + 1))
    echo "$target: FAULT after ${runs:-?} executions, $covered; $log, $found"
  else
    echo "$target: ${runs:-?} executions, $covered, no fault"
  fi
done
exit $((faults > 0))
