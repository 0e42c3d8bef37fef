#!/usr/bin/env bash
# Kills a training run (kill -9) at random moments and resumes it each time. The final checkpoint must equal that of an
# uninterrupted run, byte for byte.
#   scripts/kill-resume.sh [--kills N] [--steps N] [--model NAME] [--ovq PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/compared_runs.sh
ovq=build/release/ovq kills=50 steps=3000 model=sw-ovq
read_options "ovq kills steps model" "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(--task recall --model "$model" --scale tiny --steps "$steps" --tokens-per-step 512 --lengths 16,32
  --warmup 10 --eval-every 7 --eval-rows 4 --checkpoint-every 3 --seed 5 --threads 1)

start=$EPOCHREALTIME
"$ovq" train "${options[@]}" --out "$work/whole" >/dev/null
seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')

# Late enough for some work between two kills, early enough that the run does not end before the last kill.
limit=$(awk -v s="$seconds" -v k="$kills" 'BEGIN { print 0.8 + s / k }')
killed=0
for ((i = 0; i < kills; ++i)); do
  if [[ -e $work/killed/run.json ]]; then arguments=(--resume "$work/killed" --threads 1); else arguments=("${options[@]}" --out "$work/killed"); fi
  "$ovq" train "${arguments[@]}" >"$work/log" 2>&1 &
  pid=$!
  sleep "$(awk -v r=$RANDOM -v s="$limit" 'BEGIN { print r / 32767 * s }')"
  if kill -9 $pid 2>/dev/null; then killed=$((killed + 1)); fi
  wait $pid 2>/dev/null || true
  if grep -q damaged "$work/log"; then
    echo "kill-resume.sh: an unreadable checkpoint:" >&2
    cat "$work/log" >&2
    exit 1
  fi
done
before=$(ls "$work/killed/checkpoints" 2>/dev/null | tail -n 1 || true)
if [[ -e $work/killed/run.json ]]; then
  "$ovq" train --resume "$work/killed" --threads 1 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
else
  "$ovq" train "${options[@]}" --out "$work/killed" >"$work/log" 2>&1
fi
! grep -q damaged "$work/log" || { cat "$work/log" >&2; exit 1; }

must_be_equal "$work/whole" "$work/killed"
echo "$killed kills at random moments of a run of $steps steps, the last after ${before:-no checkpoint}: final weights, optimiser state and losses equal"
