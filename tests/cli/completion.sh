#!/usr/bin/env bash
# Checks that the script of `ovq completion bash` completes commands, subcommands and options.
set -Eeuo pipefail
ovq=$1
source <("$ovq" completion bash)
failures=0

expect() {  # the completions, in order; the words typed so far
  local wanted=$1
  shift
  COMP_WORDS=(ovq "$@") COMP_CWORD=$#
  COMPREPLY=()
  _ovq
  if [[ ${COMPREPLY[*]} != "$wanted" ]]; then
    echo "FAILED: ovq $* -> '${COMPREPLY[*]}'; expected '$wanted'"
    failures=$((failures + 1))
  fi
}

expect "bench" ben
expect "kernels" bench k
expect "--threads" bench kernels --th
expect "--resume" train --task recall --resu
expect "" train nothing-like-it

exit $((failures > 0))
