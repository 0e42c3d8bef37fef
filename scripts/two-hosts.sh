#!/usr/bin/env bash
# Trains on two "hosts": network namespaces with their own addresses and a cable between them (iproute2, as root), one
# process in each, started with torchrun's variables. The result must equal that of two processes on one machine, bit
# for bit. Then the cable is cut: both must end within the time-out and name a rank.
#   scripts/two-hosts.sh [--ovq PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
ovq=build/release/ovq
if [[ ${1:-} == --ovq ]]; then ovq=$2; fi
id=$$ work=$(mktemp -d)
hosts=("ovq-a-$id" "ovq-b-$id")
cleanup() {
  for host in "${hosts[@]}"; do ip netns delete "$host" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
for host in "${hosts[@]}"; do
  ip netns add "$host"
  ip -n "$host" link set lo up
done
ip link add "va$id" netns "${hosts[0]}" type veth peer name "vb$id" netns "${hosts[1]}"
ip -n "${hosts[0]}" address add 10.77.0.1/24 dev "va$id"
ip -n "${hosts[1]}" address add 10.77.0.2/24 dev "vb$id"
ip -n "${hosts[0]}" link set "va$id" up
ip -n "${hosts[1]}" link set "vb$id" up

options=(--task recall --model sw-ovq --scale tiny --tokens-per-step 512 --lengths 16,32 --warmup 10 --eval-every 7
  --eval-rows 4 --checkpoint-every 5 --seed 5 --threads 1)
start() {  # rank, directory, further options; the second host has no directory of the run
  local rank=$1 out=$2
  shift 2
  RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 \
    exec ip netns exec "${hosts[rank]}" "$ovq" train "${options[@]}" --out "$out" "$@" >"$out.log" 2>&1
}
(start 0 "$work/hosts" --steps 20) & first=$!
(start 1 "$work/elsewhere" --steps 20) & second=$!
wait $first || { cat "$work/hosts.log"; exit 1; }
wait $second || { cat "$work/elsewhere.log"; exit 1; }
[[ ! -e $work/elsewhere ]] || { echo "two-hosts.sh: the second host wrote files" >&2; exit 1; }
"$ovq" train "${options[@]}" --steps 20 --out "$work/here" --processes 2 >/dev/null
for file in model.safetensors optimizer.safetensors; do
  cmp "$work/hosts/checkpoints/step-000020/$file" "$work/here/checkpoints/step-000020/$file"
done
echo "two hosts: 20 steps, bit for bit equal to two processes on one machine"

(start 0 "$work/cut" --steps 1000000 --timeout 5) & first=$!
(start 1 "$work/cut-elsewhere" --steps 1000000 --timeout 5) & second=$!
while ! grep -q '"step":20,' "$work/cut/metrics.jsonl" 2>/dev/null; do sleep 0.1; done
ip -n "${hosts[1]}" link set "vb$id" down
since=$EPOCHREALTIME
wait $first && exit 1
wait $second && exit 1
awk -v a="$since" -v b="$EPOCHREALTIME" 'BEGIN { printf "cable pulled: both ended after %.1f s with a time-out of 5 s\n", b - a }'
sed -n 's/^ovq:/  rank 0 says:/p' "$work/cut.log"
sed -n 's/^ovq:/  rank 1 says:/p' "$work/cut-elsewhere.log"
grep -q '^ovq: rank 1' "$work/cut.log"
grep -q '^ovq: rank 0' "$work/cut-elsewhere.log"
