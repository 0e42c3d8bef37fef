#!/bin/bash
# Compares causal attention of public libraries on this machine with this library's and OVQ: ONNX Runtime, ggml
# (llama.cpp's library), torch, and oneDNN's matrix product as the speed that a tuned library reaches. Also compares two
# recurrences with ggml's. Writes the results to results/peers.json and a figure to docs/peers.svg.
#
#   scripts/bench-peers.sh --set-up     what it needs beyond scripts/setup.sh (as root): Debian packages and npm's
#                                       onnxruntime-node and @node-llama-cpp/linux-x64 (which has ggml), into build/peers
#   scripts/bench-peers.sh [--lengths 4096,16384,65536] [--decode 65536] [--recurrences 16384] [--rounds 5] [--threads N]
#                          [--json FILE] [--add] [--ggml DIR]
#
# With --ggml, ggml comes from a build of ggml or llama.cpp with shared libraries: libggml-base.so and libggml-cpu.so
# are in DIR or below it, as in build/bin. OVQ_BUILD names the build directory (build/release). A peer whose part of the
# set-up is missing is skipped.
set -euo pipefail
called_in=$PWD
cd "$(dirname "$0")/.."
build=${OVQ_BUILD:-build/release}
work=build/peers
mkdir -p "$work"

if [[ ${1:-} == --set-up ]]; then
  packages=(libdnnl-dev gnuplot-nox)
  command -v node >/dev/null || packages+=(nodejs)
  command -v npm >/dev/null || packages+=(npm)
  apt-get install -y --no-install-recommends "${packages[@]}"
  # The package contains the CPU library; its install script would download others.
  npm install --prefix "$work" --ignore-scripts --no-audit --no-fund onnxruntime-node@1.30.0
  npm install --prefix "$work" --ignore-scripts --no-audit --no-fund @node-llama-cpp/linux-x64@3.22.1 ||
    echo "no prebuilt ggml for this machine: use --ggml" >&2
  exit
fi

json=results/peers.json
ggml=$work/node_modules/@node-llama-cpp/linux-x64
ggml_given=
arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --add)
      arguments+=(--add)
      shift
      continue
      ;;
    --json) json=$2 ;;
    --ggml) ggml=$(cd "$called_in" && realpath -m "$2") ggml_given=1 ;;
    --lengths | --decode | --recurrences | --rounds | --threads) arguments+=("$1" "$2") ;;
    *)
      echo "bench-peers.sh: unknown option $1" >&2
      exit 2
      ;;
  esac
  shift 2
done

if [[ -d $work/node_modules/onnxruntime-node ]] && command -v node >/dev/null; then
  arguments+=(--packages "$PWD/$work")
else
  echo "no onnxruntime-node: run scripts/bench-peers.sh --set-up" >&2
fi
if [[ -d $ggml || $ggml_given ]]; then
  arguments+=(--ggml "$ggml")
else
  echo "no ggml: run scripts/bench-peers.sh --set-up, or use --ggml" >&2
fi
if [[ -f /usr/include/dnnl.h || -f /usr/include/oneapi/dnnl/dnnl.h ]]; then
  g++ -O2 -o "$work/onednn_worker" scripts/peers/onednn_worker.cpp -ldnnl
  arguments+=(--onednn "$work/onednn_worker")
else
  echo "no oneDNN: run scripts/bench-peers.sh --set-up" >&2
fi

PYTHONPATH=$build/python /usr/bin/python3 scripts/peers/peers.py --work "$work" --json "$json" \
  --commit "$(git rev-parse --short HEAD)" "${arguments[@]}"

if command -v gnuplot >/dev/null; then
  /usr/bin/python3 scripts/peers/figure.py "$json" docs/peers.svg
fi
