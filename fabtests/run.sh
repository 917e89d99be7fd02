#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# fabtests/run.sh [--prefix DIR] [--refuse-cma] [SET...]: upstream's fabtests, installed in DIR (default
# /usr/local), between two processes of this host over the provider in $top_builddir (default
# ./build). SET is unit, functional, short, standard, threaded, ...; default: unit functional short.
# --refuse-cma: where the kernel refuses process_vm_readv and process_vm_writev.
# LIBFABRIC_PREFIX: the libfabric to run with. Logs: $top_builddir/fabtests. Status 1 if a test failed.
set -u
top=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd) || exit 1
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
prefix=/usr/local wrapper=()

usage() { die 'usage: run.sh [--prefix DIR] [--refuse-cma] [SET...]'; }

build=$(cd "${top_builddir:-$top/build}" 2>/dev/null && pwd) ||
  die "there is no build in ${top_builddir:-$top/build}"
while [ $# -gt 0 ]; do
  case $1 in
    --prefix)
      [ $# -ge 2 ] || usage
      prefix=$2
      shift
      ;;
    --refuse-cma)
      wrapper=("$build/clients/refuse_cma")
      [ -x "${wrapper[0]}" ] || die "${wrapper[0]} is not built: test/clients/run.sh builds it"
      ;;
    -*) usage ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || set -- unit functional short

runner=$prefix/bin/runfabtests.sh
[ -x "$runner" ] || die "no fabtests in $prefix: $runner is missing"
[ -e "$build/.libs/liberdma-fi.so" ] || die "the provider is not built in $build"
use_build "$build"
[ -z "${LIBFABRIC_PREFIX:-}" ] || export LD_LIBRARY_PATH=$LIBFABRIC_PREFIX/lib
logs=$build/fabtests
mkdir -p "$logs" && cd "$logs" || exit 1

# Upstream's own clean-up kills every process of the host whose name begins with "fi_".
sed '/xargs kill -9/s/.*/:/' "$runner" >runfabtests.sh || exit 1

# The tests listen on fixed ports: a network of their own, where there is a right to make one.
# shellcheck disable=SC2016
private=(unshare -n sh -c 'ip link set lo up && exec "$@"' sh)
"${private[@]}" true 2>/dev/null || private=()

status=0
for set_name in "$@"; do
  title "$set_name ($logs/$set_name.log)"
  "${private[@]}" "${wrapper[@]}" bash ./runfabtests.sh -vvv -T 120 -p "$prefix/bin" \
    -f "$top/fabtests/erdma.exclude" -t "$set_name" erdma >"$set_name.log" 2>&1 || status=1
  grep -B2 -E '^  result: Fail' "$set_name.log" | sed -n 's/^- name: */FAIL: /p'
  grep -E '^# Total' "$set_name.log" || status=1
done
exit "$status"
