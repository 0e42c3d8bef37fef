#!/usr/bin/env bash
# Installs the packages that a fresh Debian 12, 13 or sid lacks for building, testing and formatting, and packages given
# as arguments. Does and prints nothing if everything is installed.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache git
  libhwy-dev
  libtorch-dev libgloo-dev libopenblas0-openmp python3-torch
  libcli11-dev libfmt-dev nlohmann-json3-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev libreadline-dev
  libgtest-dev
  clang-format clang-tidy
  python3-pytest python3-numpy python3-pip python3-venv python3-setuptools python3-wheel
  "$@"
)

# The differences between releases, by codename.
case $(. /etc/os-release && echo "${VERSION_CODENAME:-}") in
  bookworm | trixie | noble) ;;
  *) packages+=(libabsl-dev) ;;  # SentencePiece's headers include abseil's since 0.2.2
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed* ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: missing ${missing[*]}; run as root or install sudo" >&2
    exit 1
  fi
  as_root=(sudo)
fi

apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null
}

echo "setup.sh: installing ${missing[*]}"
apt_get update
apt_get install --yes --no-install-recommends "${missing[@]}"
