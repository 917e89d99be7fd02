#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# fabtests/run.sh [--prefix DIR] [--refuse-cma | --nic KIND] [SET...]: runs upstream's fabtests, installed
# in DIR (default /usr/local), between two processes of this host over the provider in $top_builddir
# (default ./build). SET is unit, functional, short, standard, threaded, multinode, ..., or
# ubertest-NAME: fi_ubertest with the configuration of that name in fabtests/ubertest. The sets verify-*
# are split because fi_ubertest never frees two buffers of each test.
# The set own runs fi_erdma bench and test; it does not exist in the virtual machine.
# Default: unit functional short.
# --refuse-cma: run while the kernel refuses process_vm_readv and process_vm_writev.
# --nic: use only the NIC transport. KIND is standard or compat: the simulated NIC
# (test/softerdma); siw or rxe: two hosts in the virtual machine of test/vm; or erdma: the same with the
# kernel's own driver on the modelled adapter.
# LIBFABRIC_PREFIX: the libfabric to run with. Logs: $top_builddir/fabtests. Status 1 if a test failed.
set -u
top=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd) || exit 1
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=fabtests/sets.sh
. "$top/fabtests/sets.sh"
prefix=/usr/local wrapper=() kind=''

usage() { die 'usage: run.sh [--prefix DIR] [--refuse-cma | --nic standard|compat|siw|rxe|erdma] [SET...]'; }

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
    --nic)
      [ $# -ge 2 ] || usage
      case $2 in standard | compat | siw | rxe | erdma) kind=$2 ;; *) usage ;; esac
      shift
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
logs=$build/fabtests${kind:+/$kind}
mkdir -p "$logs" && cd "$logs" || exit 1

case $kind in
  siw | rxe | erdma)
    adapters=-r
    [ "$kind" != erdma ] || adapters=-e
    [[ " $* " != *' own '* ]] || die 'own is not run in the virtual machine'
    bash "$top/test/vm/vm.sh" $adapters -t 10800 -o "$logs" "$top/fabtests/guest.sh" "$top" "$build/.libs" \
      "$prefix" "$kind" "$@" | tee machine.log | tr -d '\r' | grep -E '^(==|FAIL:|# Total)'
    status=${PIPESTATUS[0]}
    [ "$status" != 77 ] || die "there can be no virtual machine here: $(tail -n 1 machine.log)"
    exit "$status"
    ;;
esac

# The tests listen on fixed ports, so they get their own network namespace if that is permitted. The
# simulated NIC has an address in it.
address=127.0.0.1
# shellcheck disable=SC2016
private=(unshare -n sh -c 'ip link set lo up && ip addr add 10.8.0.1/32 dev lo && exec "$@"' sh)
if "${private[@]}" true 2>/dev/null; then
  [ -z "$kind" ] || address=10.8.0.1
else
  private=()
fi
if [ -n "$kind" ]; then
  adapter=$build/.libs/libsofterdma.so
  [ -f "$adapter" ] || die "$adapter is not built (make libsofterdma.la)"
  SOFTERDMA_DIR=$(mktemp -d) || exit 1
  trap 'rm -rf "$SOFTERDMA_DIR"' EXIT
  export SOFTERDMA_DIR
  unset FI_ERDMA_DEVICE
  wrapper=(env "LD_PRELOAD=$adapter" "SOFTERDMA_PERSONALITY=$kind"
    "SOFTERDMA_DEVICES=erdma_0,ip=$address" FI_ERDMA_SHM=off)
fi

# run_own WRAPPER...: prints a line for each test of fi_erdma, with the output in NAME.log.
run_own() {
  local name status verdict result=0
  title "own ($PWD)"
  for name in bench local-read peer-death refused-cma; do
    status=0 verdict=Pass
    local command=(test "$name")
    [ "$name" != bench ] || command=(bench -S all)
    timeout 120 "$@" "$build/prov/fi_erdma/fi_erdma" "${command[@]}" -p erdma >"$name.log" 2>&1 || status=$?
    case $status in
      0) ;;
      1) verdict=Notrun ;;
      *) verdict=FAIL result=1 ;;
    esac
    say "$verdict: $name ($(tail -n 1 "$name.log"))"
  done
  return "$result"
}

take_runner ssh || exit 1
status=0
for each in "$@"; do
  if [ "$each" = own ]; then
    run_own "${private[@]}" "${wrapper[@]}" || status=1
    continue
  fi
  run_set "${private[@]}" "${wrapper[@]}" -- "$each" -T 120 -s "$address" -c "$address" erdma || status=1
done
exit "$status"
