#!/usr/bin/env bash
# Kills a rank (kill -9) of a training in several processes at random moments; --restarts resumes the training each
# time. The final weights, optimiser state and losses must equal those of an undisturbed training, bit for bit.
#   scripts/kill-rank.sh [--kills N] [--steps N] [--processes P] [--ovq PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/compared_runs.sh
ovq=build/release/ovq kills=20 steps=200 processes=2
read_options "ovq kills steps processes" "$@"
work=$(mktemp -d)
pid=
cleanup() {
  if [[ -n $pid ]] && kill $pid 2>/dev/null; then wait $pid || true; fi
  rm -rf "$work"
}
trap cleanup EXIT
options=(--task recall --model sw-ovq --scale tiny --steps "$steps" --tokens-per-step 512 --lengths 16,32 --warmup 10
  --eval-every 7 --eval-rows 4 --checkpoint-every 3 --seed 5 --threads 1 --processes "$processes")

"$ovq" train "${options[@]}" --out "$work/whole" >/dev/null
"$ovq" train "${options[@]}" --out "$work/killed" --restarts "$kills" >/dev/null 2>"$work/log" &
pid=$!
killed=0 at=()
steps_done() { tail -n 1 "$work/killed/metrics.jsonl" 2>/dev/null | sed -n 's/.*"step":\([0-9]*\).*/\1/p' | grep . || echo 0; }
while ((killed < kills)) && kill -0 $pid 2>/dev/null; do
  mapfile -t ranks < <(tr ' ' '\n' <"/proc/$pid/task/$pid/children" 2>/dev/null | grep . || true)
  ((${#ranks[@]} == processes)) || { sleep 0.05; continue; }
  # Every fourth kill may come as soon as the processes exist, so also while they connect or load a checkpoint. The
  # others wait for a random step of the next part of the run.
  longest=2
  if ((killed % 4)); then
    longest=0.3 step=$((steps * killed / (kills + 1) + RANDOM % (steps / (kills + 1) + 1)))
    while (($(steps_done) < step)) && kill -0 "${ranks[0]}" 2>/dev/null; do sleep 0.02; done
  fi
  sleep "$(awk -v r=$RANDOM -v s=$longest 'BEGIN { print r / 32767 * s }')"
  if kill -9 "${ranks[RANDOM % processes]}" 2>/dev/null; then
    killed=$((killed + 1))
    at+=("$(steps_done)")
  fi
  while kill -0 "${ranks[0]}" 2>/dev/null || kill -0 "${ranks[1]}" 2>/dev/null; do sleep 0.02; done
done
ended=$pid pid=
wait $ended || { cat "$work/log" >&2; exit 1; }
if grep -q damaged "$work/log"; then cat "$work/log" >&2; exit 1; fi

must_be_equal "$work/whole" "$work/killed"
echo "a rank of $processes killed $killed times at random moments of $steps steps ($(grep -c restart "$work/log") restarts, after steps" \
  "${at[*]}): final weights, optimiser state and losses equal"
