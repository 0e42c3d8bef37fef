#!/usr/bin/env bash
# From a folder of text to a tokenizer, tokens, a model, its loss and its generated text; saving and loading states;
# errors print one line on stderr and set the right exit code.
set -uo pipefail
ovq=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

failed() { echo "FAILED: $*"; failures=$((failures + 1)); }
check() {  # what it is, command ...
  local what=$1
  shift
  "$@" >"$work/out" 2>"$work/err" || { failed "$what"; cat "$work/err"; }
}
expect() {  # exit code, text on stderr, command ...
  local code=$1 text=$2 status=0
  shift 2
  "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  if ((status != code)) || ! grep -qF -- "$text" "$work/err" || (($(wc -l <"$work/err") != 1)); then
    failed "$* -> $status (expected $code, \"$text\")"
    cat "$work/err"
  fi
}
damage() {  # file, byte from its end
  printf '\xff' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - $2)) conv=notrunc status=none
}
tokens_of() { sed -n 's/.*"token":\([0-9]*\)}/\1/p' | tr '\n' ' '; }

# Text, a tokenizer, tokens.
mkdir -p "$work/books/train" "$work/books/valid"
for i in 1 2; do seq "$i" 7 9000 | sed 's/.*/The captain saw & whales, and said so./' >"$work/books/train/$i.txt"; done
seq 3 11 9000 | sed 's/.*/The sailor heard & songs, he said./' >"$work/books/valid/a.txt"
for type in unigram bpe; do
  check "tokenize train $type" "$ovq" tokenize train "$work/books/train" --type $type --vocab 300 --out "$work/$type.model"
done
for split in train valid; do
  check "tokenize apply $split" "$ovq" tokenize apply "$work/books/$split" --tokenizer "$work/bpe.model" --out "$work/$split.tokens"
done
grep -q 'tokens of 1 documents' "$work/out" || failed "what tokenize apply says"
expect 2 '--type: word; must be unigram or bpe' "$ovq" tokenize train "$work/books/train" --type word --out "$work/x"
expect 2 '--vocab: 12; must be in [260, ' "$ovq" tokenize train "$work/books/train" --vocab 12 --out "$work/x"
expect 2 '[tokenizer] vocab is 50000; must be at most ' "$ovq" tokenize train "$work/books/train" --vocab 50000 --out "$work/x"
expect 1 'does not exist' "$ovq" tokenize apply "$work/none" --out "$work/x"
expect 1 'is not a SentencePiece model' "$ovq" tokenize apply "$work/books/train" --tokenizer "$work/books/train/1.txt" --out "$work/x"
printf 'caf\xe9' >"$work/latin.txt"
expect 1 "$work/latin.txt is not UTF-8 at byte 3" "$ovq" tokenize train "$work/latin.txt" --out "$work/x"
expect 1 'the text is not UTF-8 at byte 3' "$ovq" tokenize apply "$work/latin.txt" --tokenizer "$work/bpe.model" --out "$work/x"
printf '字%.0s' {1..9} >"$work/few.txt" && echo 'the captain' >>"$work/few.txt"
expect 2 '[tokenizer] vocab is 262; must be at least 2' "$ovq" tokenize train "$work/few.txt" --vocab 262 --out "$work/x"
echo >"$work/line.txt"
expect 2 'the text has no line to learn from' "$ovq" tokenize train "$work/line.txt" --vocab 262 --out "$work/x"
expect 2 '--vocab: 9; must be in [260, 1048576]' "$ovq" tokenize train "$work/books/train" --vocab 9 --out "$work/x"
[[ ! -e $work/x ]] || failed "a refused file was written"

# A model trained on tokens has its tokenizer; training on text and on its tokens is the same.
short=(--task text --scale tiny --steps 6 --tokens-per-step 512 --lengths 64 --eval-rows 2 --checkpoint-every 3)
tiny=("${short[@]}" --model-options '{"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}')
task() { echo "{\"train\": \"$1\", \"test\": \"$2\", \"tokenizer\": \"$3\", \"min_document\": 100}"; }
check 'train on tokens' "$ovq" train "${tiny[@]}" --task-options "$(task "$work/train.tokens" "$work/valid.tokens" "$work/bpe.model")" --out "$work/run"
check 'train on text' "$ovq" train "${tiny[@]}" --task-options "$(task "$work/books/train" "$work/books/valid" "$work/bpe.model")" --out "$work/same"
losses() { grep -o '"loss":[0-9.]*' "$1/metrics.jsonl" | head -n 6; }
[[ $(losses "$work/run") == "$(losses "$work/same")" ]] || failed "tokens are not the text's"
expect 1 'was made with another tokenizer' "$ovq" train "${tiny[@]}" --task-options "$(task "$work/train.tokens" "$work/valid.tokens" "$work/unigram.model")" --out "$work/x"
expect 1 'was made with another tokenizer' "$ovq" train "${tiny[@]}" --task-options "$(task "$work/train.tokens" "$work/valid.tokens" bytes)" --out "$work/x"
cp "$work/train.tokens" "$work/damaged.tokens" && damage "$work/damaged.tokens" 999
expect 1 'damaged.tokens is damaged' "$ovq" train "${tiny[@]}" --task-options "$(task "$work/damaged.tokens" "$work/valid.tokens" "$work/bpe.model")" --out "$work/x"
cp -r "$work/run" "$work/switched"
sed -i "s|bpe.model|unigram.model|; s|\"steps\": 6|\"steps\": 9|; s|$work/train.tokens|$work/books/train|; s|$work/valid.tokens|$work/books/valid|" "$work/switched/run.json"
expect 1 'was trained with another tokenizer' "$ovq" train --resume "$work/switched"
model=$(ls -d "$work"/run/checkpoints/* | tail -n 1)
cmp -s "$model/tokenizer.model" "$work/bpe.model" || failed "the checkpoint's tokenizer"

# The loss on text needs only the model's directory; the number of bytes does not depend on the tokenizer.
for data in "$work/books/valid" "$work/valid.tokens"; do
  check "eval --data $data" "$ovq" eval "$model" --task text --data "$data" --length 128 --bin 64 --json
  grep -q '"bits_per_byte"' "$work/out" && cp "$work/out" "$work/loss-$(basename "$data")"
done
[[ $(grep '"loss"' "$work/loss-valid") == "$(grep '"loss"' "$work/loss-valid.tokens")" ]] || failed "losses of text and tokens"
check 'eval of a whole document' "$ovq" eval "$work/run" --task text --data "$work/books/valid/a.txt" "$work/valid.tokens"
check 'eval of identifiers' "$ovq" eval "$work/run" --task text --data "$work/valid.tokens" --length 64 --identifiers
grep -q 'last spelled *identifiers' "$work/out" || failed "the loss of identifiers"
check 'eval with two dictionaries' "$ovq" eval "$work/run" --task text --data "$work/valid.tokens" --length 64 --centroids 8,16 --json
(($(grep -c '"centroids": \(8\|16\)' "$work/out") == 2)) || failed "an evaluation for each dictionary"
check 'eval at a length' "$ovq" eval "$work/run" --lengths 64 --rows 2
check 'compare by position' "$ovq" compare "$work/run" --by-position --svg "$work/loss.svg"
grep -q 'position in the text' "$work/out" && grep -q '^loss at .* state$' "$work/out" || failed "the picture of the loss by position"
grep -q '<svg' "$work/loss.svg" || failed "the loss by position as SVG"
"$ovq" compare "$work/same" --by-position 2>"$work/err" && failed "a run without evaluations has no picture"
grep -q 'no evaluation at a common length' "$work/err" || failed "why there is no picture"
check 'eval in sliding windows' "$ovq" eval "$work/run" --task text --data "$work/valid.tokens" --length 64 --stride 16 --windows 20
expect 2 'stride is 65; must be at most the length 64' "$ovq" eval "$work/run" --task text --data "$work/valid.tokens" --length 64 --stride 65
expect 2 '--task text requires --data' "$ovq" eval "$work/run" --task text
expect 2 'must be text' "$ovq" eval "$work/run" --task recall --data "$work/valid.tokens"

# Generated text: the same from the run and from the model, for a seed, and through a saved state, token by token.
generate() { "$ovq" generate "$1" --tokens 40 --temperature 1 --seed 5 "${@:2}"; }
check 'generate' generate "$work/run" --prompt 'The captain'
cp "$work/out" "$work/first"
grep -q '^ovq: read [0-9]* tokens in .* tokens/s' "$work/err" && grep -q 'a KV cache would hold' "$work/err" || failed "what generate says"
check 'generate from a model' generate "$model" --prompt 'The captain'
cmp -s "$work/out" "$work/first" || failed "the run's text is not the model's"
printf 'The captain' >"$work/prompt"
check 'generate from a file' generate "$model" --prompt-file "$work/prompt"
cmp -s "$work/out" "$work/first" || failed "the text of a prompt in a file"
check 'generate from stdin' generate "$model" --prompt-file - < <(printf 'The captain')
cmp -s "$work/out" "$work/first" || failed "the text of a prompt on stdin"
check 'generate --json' generate "$model" --prompt-file "$work/books/valid/a.txt" --json
tokens_of <"$work/out" >"$work/expected"
(($(wc -w <"$work/expected") == 40)) && grep -q '"log_probability":-' "$work/out" || failed "generate --json"
check 'save' "$ovq" generate "$model" --prompt-file "$work/books/valid/a.txt" --tokens 0 --save-state "$work/state.ovq"
check 'load, with nothing to read' generate "$model" --load-state "$work/state.ovq" --json
grep -q 'restored [0-9]* tokens from' "$work/err" || failed "what loading saves"
[[ $(tokens_of <"$work/out") == "$(cat "$work/expected")" ]] || failed "the text after a saved state"
check 'save in the middle' "$ovq" generate "$model" --prompt-file "$work/books/valid/a.txt" --temperature 1 --seed 5 --tokens 17 --json --save-state "$work/middle.ovq"
tokens_of <"$work/out" >"$work/half"
check 'go on' "$ovq" generate "$model" --load-state "$work/middle.ovq" --temperature 1 --seed 5 --tokens 23 --json
[[ $(cat "$work/half")$(tokens_of <"$work/out") == "$(cat "$work/expected")" ]] || failed "the text after half of it"
check 'another dictionary' generate "$model" --load-state "$work/state.ovq" --centroids 8
check 'no temperature, every option' "$ovq" generate "$model" --prompt x --tokens 5 --top-k 3 --top-p 0.5 --min-p 0.1 --repetition-penalty 1.1 --repetition-window 8

# bfloat16: half the bytes, nearly the same loss; states can be continued or converted.
narrow=(--weights bf16 --state-dtype bf16)
check 'eval in bfloat16' "$ovq" eval "$model" --task text --data "$work/valid.tokens" --length 128 --bin 64 --json "${narrow[@]}"
cp "$work/out" "$work/loss-narrow"
python3 - "$work/loss-valid.tokens" "$work/loss-narrow" <<'PYTHON' || failed "loss and bytes in bfloat16"
import json, sys
wide, narrow = (json.load(open(name)) for name in sys.argv[1:])
near = abs(narrow["loss"] - wide["loss"]) < 0.02
sys.exit(not (near and 2 * narrow["weight_bytes"] < 1.2 * wide["weight_bytes"] and narrow["state_bytes"] < wide["state_bytes"]))
PYTHON
check 'bench generate of a trained model' "$ovq" bench generate --model "$work/run" --data "$work/valid.tokens" --context 128 --tokens 2 --rounds 1 --windows 100000 --json "$work/bench.json"
python3 - "$work/bench.json" "$work/loss-valid.tokens" "$work/loss-narrow" <<'PYTHON' || failed "the loss that bench generate measures"
import json, sys
bench, wide, narrow = (json.load(open(name)) for name in sys.argv[1:])
losses = [case["loss"]["mean"] for case in bench["cases"]]
sys.exit(not (bench["trained"] and all(abs(a - b["loss"]) < 1e-4 for a, b in zip(losses, (wide, narrow), strict=True))))
PYTHON
expect 2 'must be the directory of a trained one' "$ovq" bench generate --model small/text-sw-ovq --data "$work/valid.tokens"
check 'generate in bfloat16' generate "$model" --prompt-file "$work/books/valid/a.txt" --json "${narrow[@]}"
tokens_of <"$work/out" >"$work/expected-narrow"
check 'save in bfloat16' "$ovq" generate "$model" --prompt-file "$work/books/valid/a.txt" --tokens 0 --save-state "$work/narrow.ovq" "${narrow[@]}"
check 'go on in bfloat16' generate "$model" --load-state "$work/narrow.ovq" --json "${narrow[@]}"
[[ $(tokens_of <"$work/out") == "$(cat "$work/expected-narrow")" ]] || failed "the text after a saved state in bfloat16"
check 'a float32 state in a bfloat16 session' generate "$model" --load-state "$work/state.ovq" --prompt ' and' --state-dtype bf16
expect 1 'is the state of another model' "$ovq" generate "$model" --load-state "$work/state.ovq" --weights bf16
expect 2 '--weights: half; must be' "$ovq" generate "$model" --prompt x --weights half
expect 2 'requires --task text' "$ovq" eval "$work/run" --weights bf16
check 'inspect in bfloat16' "$ovq" inspect "$model" "${narrow[@]}"

# A stop string is never shown, not even partly.
text=$(head -c 24 "$work/first" | tail -c 6)
check 'a stop string' generate "$model" --prompt 'The captain' --stop 'not there' --stop "$text"
grep -qF -- "$text" "$work/out" && failed "the stop string \"$text\" was shown"
head -c 18 "$work/first" | cmp -s -n 10 - "$work/out" || failed "the text before the stop string"

# A closed pipe ends the program with SIGPIPE, as usual, and the state is saved.
{ "$ovq" generate "$model" --prompt x --tokens 100000 --ignore-end --save-state "$work/piped.ovq" 2>"$work/err"; echo $? >"$work/status"; } | head -c 20 >/dev/null
[[ $(cat "$work/status") == 141 && -s $work/piped.ovq ]] && ! grep -qi 'pipe' "$work/err" || { failed "a closed pipe: $(cat "$work/status")"; cat "$work/err"; }

# Errors.
expect 1 'is not a directory with a model' "$ovq" generate "$work/none" --prompt x
expect 2 'the text is not UTF-8 at byte 2' "$ovq" generate "$model" --prompt $'ab\xff'
expect 1 'cannot be read' "$ovq" generate "$model" --prompt-file "$work/none"
: >"$work/nothing"
expect 1 'is empty' "$ovq" generate "$model" --prompt-file "$work/nothing"
expect 2 '--top-p: 2; must be in (0, 1]' "$ovq" generate "$model" --prompt x --top-p 2
expect 2 '--temperature: x is not a number' "$ovq" generate "$model" --prompt x --temperature x
expect 2 'a stop string is empty' "$ovq" generate "$model" --prompt x --stop ''
expect 1 'is not the state' "$ovq" generate "$model" --load-state "$model/model.safetensors"
expect 1 "$work/first" "$ovq" generate "$model" --load-state "$work/first"
cp "$work/state.ovq" "$work/bad.ovq" && damage "$work/bad.ovq" 99
expect 1 'bad.ovq' "$ovq" generate "$model" --load-state "$work/bad.ovq"
expect 1 'is the state of another model' "$ovq" generate "$work/same/checkpoints/step-000003" --load-state "$work/state.ovq"
expect 1 'the tokenizer has 256 tokens' "$ovq" generate "$model" --tokenizer bytes --prompt x
cp -r "$model" "$work/broken" && damage "$work/broken/tokenizer.model" 1000 && head -c 500 "$model/tokenizer.model" >"$work/broken/tokenizer.model"
expect 1 'is not a SentencePiece model' "$ovq" generate "$work/broken" --prompt x
rm "$work/broken/tokenizer.model"
expect 1 'has no tokenizer' "$ovq" generate "$work/broken" --prompt x
check 'an empty prompt, as the tokenizer has a token that begins a text' "$ovq" generate "$model" --prompt '' --tokens 3

# With bytes, invalid UTF-8 is a valid prompt, an empty prompt is an error, and 10 MB are read.
check 'train on bytes' "$ovq" train "${short[@]}" --task-options "$(task "$work/books/train" "$work/books/valid" bytes)" \
  --model-options '{"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16, "mixers": {"ovq": {"heads": 1, "head_dim": 16}, "sw": {"heads": 1, "head_dim": 16}}}' --out "$work/bytes"
check 'invalid UTF-8 as bytes' "$ovq" generate "$work/bytes" --prompt $'ab\xff' --tokens 30 --temperature 2
iconv -f utf-8 -t utf-8 "$work/out" >/dev/null || failed "the text of bytes is not UTF-8"
expect 2 'the prompt is empty, and the tokenizer has no token that begins a text' "$ovq" generate "$work/bytes" --prompt ''
head -c 10000000 /dev/urandom >"$work/large"
check 'a prompt of 10 MB' "$ovq" generate "$work/bytes" --prompt-file "$work/large" --piece 4096 --tokens 4
grep -q 'read 10000000 tokens' "$work/err" || { failed "10 MB"; cat "$work/err"; }

# A conversation from a pipe.
talk() { printf '%s\n' "$@" | "$ovq" chat "$model" --tokens 8 --seed 3; }
check 'chat' talk 'The captain' '/state' '/undo' '/state' 'The captain' "/save $work/talk.ovq" '/reset' "/load $work/talk.ovq" '/state'
(($(grep -c 'tokens so far' "$work/err") == 7)) || { failed "what chat says"; cat "$work/err"; }
mapfile -t states < <(sed -n 's/ovq: \([0-9]*\) tokens so far.*/\1/p' "$work/err")
[[ ${states[1]} == 0 && ${states[0]} == "${states[5]}" && ${states[0]} == "${states[3]}" && ${states[4]} == 0 ]] || failed "undo, reset, load: ${states[*]}"
half=$(($(stat -c %s "$work/out") / 2))
[[ $(head -c $half "$work/out" | base64) == $(tail -c $half "$work/out" | base64) ]] || { failed "the same turn twice"; cat "$work/out"; }
check 'chat goes on after errors' talk '/load nowhere' '/undo' '/nonsense' 'The captain'
(($(grep -c '^ovq: ' "$work/err") == 3)) && [[ -s $work/out ]] || { failed "errors of chat"; cat "$work/err"; }

((failures == 0)) && echo "text, tokens and states as expected"
exit $((failures > 0))
