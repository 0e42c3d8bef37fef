#!/usr/bin/env bash
# Trains eight language models that differ only in their layers on the same text, and shows their loss by position at
# four times the training length: results/text/books and report/index.html. Parameters (within 1 %), tokens, tokenizer
# and the search for a learning rate are the same; experiments/text.json lists the runs.
#   DIR/train/*.txt and DIR/valid/*.txt are the text, a document each.
# Finished runs are skipped and interrupted ones are resumed: start the script again as often as needed.
# Usage: scripts/language-model.sh --data DIR [further options of ovq reproduce, such as --only sw-ovq --seeds 1]
# A reported run takes 10 (sw) to 15 (std-att) minutes on one core of an AMD EPYC with AVX-512, all runs about 4 core
# hours.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release --target ovq

build/release/ovq reproduce text "$@"
build/release/ovq report results/ --out report/
