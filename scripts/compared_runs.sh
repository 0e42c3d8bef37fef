# Shared by the scripts that compare training runs, which source this file.

# read_options "NAMES" "$@": --name VALUE sets the variable `name`, which must be one of NAMES.
read_options() {
  local names=" $1 "
  shift
  while (($#)); do
    if [[ $1 != --* || $names != *" ${1#--} "* || $# -lt 2 ]]; then
      echo "${0##*/}: unknown option $1, or its value is missing" >&2
      exit 2
    fi
    printf -v "${1#--}" %s "$2"
    shift 2
  done
}

losses() { grep '"kind":"step"' "$1/metrics.jsonl" | sed 's/"seconds":[^,}]*,//'; }

# Ends the script unless two runs have the same losses and end with the same weights and optimiser state.
must_be_equal() {
  local last file
  last=$(ls "$1/checkpoints" | tail -n 1)
  for file in model.safetensors optimizer.safetensors; do
    cmp "$1/checkpoints/$last/$file" "$2/checkpoints/$last/$file" >&2 || exit 1
  done
  diff <(losses "$1") <(losses "$2") >/dev/null || { echo "${0##*/}: the losses differ" >&2; exit 1; }
}
