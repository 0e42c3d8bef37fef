#!/usr/bin/env bash
# Makes system calls of a training run fail (no space, a device error, a signal), one random call at a time, and resumes
# the run each time. The run must report the error in one line and lose nothing: its final checkpoint must equal that of
# a run without faults, byte for byte. Needs strace (Debian: strace), which setup.sh does not install.
#   scripts/faults.sh [--faults N] [--steps N] [--ovq PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/compared_runs.sh
ovq=build/release/ovq faults=200 steps=60
read_options "ovq faults steps" "$@"
command -v strace >/dev/null || { echo "faults.sh: strace is not installed (Debian: strace)" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run=$work/run
options=(--task recall --model sw-ovq --scale tiny --steps "$steps" --tokens-per-step 512 --lengths 16,32
  --warmup 10 --eval-every 7 --eval-rows 4 --checkpoint-every 3 --seed 5 --threads 1)
fail() { echo "faults.sh: $*" >&2; cat "$work/err" >&2; exit 1; }

"$ovq" train "${options[@]}" --out "$work/whole" >/dev/null
calls=(write fsync rename renameat2 mkdir unlinkat rmdir flock)
most=(400 20 6 3 3 4 2 8)  # how many such calls a few checkpoints make
errors=(ENOSPC EIO EINTR)
stopped=0 finished=0
for ((i = 0; i < faults; ++i)); do
  which=$((RANDOM % ${#calls[@]}))
  fault="${calls[which]}:error=${errors[RANDOM % ${#errors[@]}]}:when=$((RANDOM % most[which] + 1))"
  if [[ -e $run/run.json ]]; then arguments=(--resume "$run" --threads 1); else arguments=("${options[@]}" --out "$run"); fi
  status=0
  strace -f -qq -o /dev/null --seccomp-bpf -e trace="${calls[which]}" -e inject="$fault" \
    "$ovq" train "${arguments[@]}" >/dev/null 2>"$work/err" || status=$?
  case $status in
    0)
      must_be_equal "$work/whole" "$run"
      rm -rf "$run"
      finished=$((finished + 1)) ;;
    1)
      stopped=$((stopped + 1))
      [[ $(grep -c '^ovq: ' "$work/err") = 1 && $(wc -l <"$work/err") = 1 ]] || fail "$fault: not one line" ;;
    *) fail "$fault: status $status" ;;
  esac
done
if [[ -e $run/run.json ]]; then
  "$ovq" train --resume "$run" --threads 1 >/dev/null 2>"$work/err" || fail "cannot go on"
  must_be_equal "$work/whole" "$run"
  finished=$((finished + 1))
fi
echo "$faults faults: $stopped stopped the run, which reported the error and could be resumed; all $finished runs ended with the weights and losses of a run without faults"
