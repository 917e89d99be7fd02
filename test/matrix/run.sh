#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/matrix/run.sh [SUITE...]: builds and tests the tree with the commands of the README on releases of Debian, each in a
# root that debootstrap creates, with that release's compiler, libfabric, rdma-core and Open MPI. Prints "PASS: name",
# "FAIL: name" and "SKIP: name (why)". The roots, which later runs use again, and the output of each command are in
# $top_builddir/matrix. The suite aarch64 is Debian 12, cross-compiled for that processor and run by qemu-user. Debian 11 (bullseye)
# needs sources of libfabric 1.17 or later: those in the folder ERDMA_LIBFABRIC_SOURCES, otherwise Debian 12's source package.
# ERDMA_DEBIAN_MIRROR names a mirror other than Debian's own. Exit status 1 if something failed.
set -u
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/lib/roots.sh
. "$top/test/lib/roots.sh"
matrix=${top_builddir:-$top/build}/matrix
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bullseye bookworm trixie)
failed=0

# Lists the files that git tracks, or all files of a tarball.
sources() {
  git -c safe.directory='*' -C "$top" ls-files -co -z --exclude-standard 2>/dev/null ||
    (cd "$top" && find . -path ./build -prune -o ! -type d -print0)
}

# populate SUITE: copies a fresh tree into the root, as a new user gets it.
populate() {
  local root=$matrix/$1
  rm -rf --one-file-system "$root/erdma"
  mkdir "$root/erdma" && (set -o pipefail; sources | tar -C "$top" --null -T - -cf - | tar -C "$root/erdma" -xf -)
}

# hash_of FOLDER: prints a hash of all files in it, which does not depend on where the folder is.
hash_of() (
  set -o pipefail
  cd "$1" && find . -name .git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
)

debian_sources() {
  # shellcheck disable=SC2016
  in_root "$1" sh -euc 'echo "deb-src $1 bookworm main" >/etc/apt/sources.list.d/bookworm-sources.list
    apt-get -q update && cd /tmp && apt-get -qy -o APT::Sandbox::User=root source libfabric/bookworm && mv libfabric-*/ /libfabric' \
    _ "${ERDMA_DEBIAN_MIRROR:-http://deb.debian.org/debian}"
}

# libfabric_sources ROOT: puts the sources of libfabric in /libfabric of the root, and in /libfabric.stamp which ones they are. An
# earlier run may have left others.
libfabric_sources() {
  local wanted="Debian 12's source package"
  [ -z "${ERDMA_LIBFABRIC_SOURCES:-}" ] || wanted=$(hash_of "$ERDMA_LIBFABRIC_SOURCES") || return
  [ "$(cat "$1/libfabric.stamp" 2>/dev/null)" != "$wanted" ] || return 0
  rm -rf --one-file-system "$1/libfabric" "$1/libfabric.stamp" || return
  if [ -n "${ERDMA_LIBFABRIC_SOURCES:-}" ]; then
    cp -a "$ERDMA_LIBFABRIC_SOURCES/." "$1/libfabric"
  else
    debian_sources "$1"
  fi && echo "$wanted" >"$1/libfabric.stamp"
}

# prepare_bullseye ROOT: gets what test/matrix/debian11.sh needs.
prepare_bullseye() {
  install_in "$1" g++ make autoconf automake libtool pkg-config libibverbs-dev librdmacm-dev libsodium-dev openmpi-bin \
    libopenmpi-dev iproute2 procps dpkg-dev xz-utils && newer_in "$1" libcli11-dev libfmt-dev nlohmann-json3-dev && libfabric_sources "$1"
}

# command_in SUITE COMMAND: prints one line with the result; returns 0 if the command passed.
command_in() {
  local log
  log=$matrix/$1.$(tr -c 'a-z\n' _ <<<"${2#./}").log
  if in_root "$matrix/$1" bash -c "cd /erdma && $2" >"$log" 2>&1 </dev/null; then
    say "PASS: $1: $2 $(sed -n '$s/.* passed, .*/(&)/p' "$log")"
    return
  fi
  tail -n 40 "$log" | sed 's/^/  | /'
  say "FAIL: $1: $2 (all of its output is in $log)"
  failed=1
  return 1
}

# test_in SUITE: returns 0 if all of it passed.
test_in() {
  local what
  case $1 in
    aarch64) for what in build jobs unit large-pages; do command_in "$1" "test/matrix/aarch64.sh $what" || return; done ;;
    bullseye) for what in libfabric build jobs; do command_in "$1" "test/matrix/debian11.sh $what" || return; done ;;
    *)
      command_in "$1" ./quickstart && command_in "$1" test/matrix/old_rdma_core.sh && command_in "$1" './run-tests install build check'
      ;;
  esac
}

# versions SUITE: prints the versions of the release's packages that the provider uses.
versions() {
  local packages=(g++ libfabric1 libibverbs1 openmpi-bin)
  case $1 in
    aarch64) packages[0]=g++-aarch64-linux-gnu ;;
    bullseye) packages=(g++ libibverbs1 openmpi-bin) ;; # test/matrix/debian11.sh builds libfabric
  esac
  # shellcheck disable=SC2016
  in_root "$matrix/$1" dpkg-query -W -f '${Package} ${Version}, ' "${packages[@]}" 2>/dev/null | sed 's/, $//'
  [ "$1" != bullseye ] || in_root "$matrix/$1" /erdma/test/matrix/debian11.sh version | sed -n 's/^libfabric:/, libfabric/p'
}

if ! why=$(can_make_roots); then
  say "SKIP: matrix ($why)"
else
  mkdir -p "$matrix" || exit 1
  for suite in "${suites[@]}"; do
    if ! bootstrap "${suite/aarch64/bookworm}" "$matrix/$suite" >"$matrix/$suite.debootstrap.log" 2>&1; then
      say "SKIP: $suite (debootstrap failed: $(tail -n 1 "$matrix/$suite.debootstrap.log"))"
      continue
    fi
    if [ "$suite" = bullseye ] && ! prepare_bullseye "$matrix/$suite" >"$matrix/$suite.prepare.log" 2>&1; then
      say "SKIP: $suite (packages or the sources of libfabric cannot be had: $(tail -n 1 "$matrix/$suite.prepare.log"))"
      continue
    fi
    populate "$suite" || { say "FAIL: $suite: the tree could not be copied"; failed=1; continue; }
    test_in "$suite"
    say "$suite has $(versions "$suite")"
  done
fi
exit $failed
