#!/usr/bin/env bash
# Tests the library without torch on ARM64 (NEON): cross-compiles it and its tests and runs them under qemu. Libraries
# come from Debian's arm64 packages, unpacked into build/arm64/sysroot; on the machine itself it only installs the
# cross-compiler and qemu.
# Usage: scripts/test-arm64.sh [--quick] [ctest arguments]
#   --quick    at most 5 minutes on 2 cores: every kernel, without the long tests
set -Eeuo pipefail
cd "$(dirname "$0")/.."
trap 'echo "test-arm64.sh: failed after ${SECONDS} s" >&2' ERR
selected=()
if [[ ${1:-} == --quick ]]; then
  selected=(--exclude-regex '^(LargeRecurrences|LongStream)\.|^Threads\..*SameBits|LinearInTimeWhateverN|CentralDifferences')
  shift
fi
root=$PWD/build/arm64 packages="libhwy-dev libgtest-dev nlohmann-json3-dev libfmt-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev libgomp1"

# With its own lists and state, apt neither reads nor changes this machine's packages and needs no root.
fill_sysroot() {
  rm -rf "$root/apt" "$root/sysroot"
  mkdir -p "$root"/apt/state/lists/partial "$root"/apt/cache/archives/partial "$root/sysroot"
  touch "$root/apt/status"
  cat >"$root/apt/apt.conf" <<END
APT { Architecture "arm64"; Architectures { "arm64"; }; Sandbox::User ""; };
Dir { State "$root/apt/state"; State::status "$root/apt/status"; Cache "$root/apt/cache"; };
END
  local apt_get=(env "APT_CONFIG=$root/apt/apt.conf" apt-get -qq)
  "${apt_get[@]}" update
  # shellcheck disable=SC2086  # the packages are words
  "${apt_get[@]}" install --yes --no-install-recommends --download-only $packages >/dev/null
  local package
  for package in "$root"/apt/cache/archives/*.deb; do dpkg --extract "$package" "$root/sysroot"; done
  rm -r "$root/apt"
  echo "$packages" >"$root/sysroot/packages"
}

scripts/setup.sh g++-aarch64-linux-gnu qemu-user-static
[[ $(cat "$root/sysroot/packages" 2>/dev/null) == "$packages" ]] || fill_sysroot
cmake --preset arm64 --log-level=WARNING >/dev/null
cmake --build --preset arm64
ctest --preset arm64 --parallel "$(nproc)" "${selected[@]}" "$@"
