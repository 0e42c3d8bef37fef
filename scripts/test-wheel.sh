#!/usr/bin/env bash
# Packs the sources, builds a wheel from them, installs it in a clean virtual environment with the system's torch, and
# runs the Python tests and examples there, in another directory. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD

scripts/setup.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

/usr/bin/python3 -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$work" >"$work/sdist.log"
/usr/bin/python3 -m venv --system-site-packages "$work/venv"
cd "$work"
venv/bin/pip wheel --quiet --no-build-isolation --no-deps --no-index --wheel-dir . ovq-*.tar.gz
venv/bin/pip install --quiet --no-deps --no-index ./ovq-*.whl
mkdir elsewhere
cd elsewhere
unset PYTHONPATH
export PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=PASSIVE
"$work/venv/bin/python" -c 'import ovq, torch; print(f"ovq {ovq.__version__} of {ovq.__file__} with torch {torch.__version__}")'
tar -xzf ../ovq-*.tar.gz --strip-components 1  # the tests also read sources and docs
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider tests/python "$@"
for example in drop_in generate ddp; do
  echo "== examples/python/$example.py"
  "$work/venv/bin/python" "$tree/examples/python/$example.py"
done
