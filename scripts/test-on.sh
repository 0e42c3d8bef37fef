#!/usr/bin/env bash
# Builds and tests on another release of Debian, in a root below build/roots that debootstrap makes once (needs root).
# Usage: scripts/test-on.sh SUITE [COMMAND...]
# SUITE is bookworm, trixie, sid or another that debootstrap knows. COMMAND runs in the root, in this tree; the default
# builds the release and runs its tests. The tree is at /ovq there; its build/ is a directory of the root's own.
# Exit status 75: the root could not be made, for want of a package or of the network. Anything else is COMMAND's.
# OVQ_MIRROR: the mirror to take packages from, if not debootstrap's default.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
no_root_status=75

suite=${1:?"usage: scripts/test-on.sh SUITE [COMMAND...]"}
shift
root=$tree/build/roots/$suite
(($#)) || set -- scripts/test-release.sh

no_root() {
  echo "test-on.sh: no root for $suite: $*" >&2
  exit $no_root_status
}

if ((EUID != 0)); then no_root "debootstrap and chroot need root"; fi

# Runs a command in the root, with mounts that end with it.
in_root() {
  unshare --mount --pid --fork --kill-child -- bash -c '
    set -euo pipefail
    root=$1 tree=$2 cache=$3
    shift 3
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o size=2g shm "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    mount --bind "$root/dev/pts/ptmx" "$root/dev/ptmx"
    mount --bind "$tree" "$root/ovq"
    mount --bind "$root/build" "$root/ovq/build"
    mount --bind "$cache" "$root/root/.cache/ccache"
    exec chroot "$root" /usr/bin/env -i HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      bash -c '\''cd /ovq && exec "$@"'\'' bash "$@"
  ' bash "$root" "$tree" "$cache" "$@"
}

cache=${CCACHE_DIR:-$HOME/.cache/ccache}
mkdir -p "$cache" "$tree/build"

if [[ ! -e $root/made ]]; then
  command -v debootstrap >/dev/null || apt-get -qq install --yes --no-install-recommends debootstrap >/dev/null ||
    no_root "debootstrap cannot be installed"
  echo "test-on.sh: making a root for $suite"
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" ${OVQ_MIRROR:-} >"$root.log" 2>&1 ||
    no_root "debootstrap failed; see $root.log"
  mkdir -p "$root/ovq" "$root/build" "$root/root/.cache/ccache"
  # A mirror that keeps a snapshot of sid serves it longer than its week.
  echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/snapshot"
  in_root scripts/setup.sh || no_root "scripts/setup.sh failed"
  touch "$root/made"
fi
in_root scripts/setup.sh || no_root "scripts/setup.sh failed"
in_root "$@"
