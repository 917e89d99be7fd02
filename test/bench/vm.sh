#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/bench/vm.sh [--rounds N] [--realtime]: measures the NIC transport on siw and rxe, compared with perftest,
# between two hosts in the virtual machine of test/vm. Emulation slows instructions of a library more than
# waiting, so the ratio of 8 bytes is an upper bound. Prints a table; writes
# bench-vm.txt and the samples to $top_builddir. Skips, with a message, if the machine cannot be created.
set -u -o pipefail
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
build=${top_builddir:-$top/build}
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
here=$top/test/bench clients=$top/test/clients
# shellcheck source=test/bench/build.sh
. "$here/build.sh"
rounds=3 rt=()
[ -z "${BENCH_REALTIME:-}" ] || rt=(chrt -r 10)
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?} && shift ;;
    --realtime) rt=(chrt -r 10) ;;
    *) die 'usage: vm.sh [--rounds N] [--realtime]' ;;
  esac
  shift
done
mkdir -p "$build/bench/vm" || exit 1
build=$(cd "$build" && pwd)
bin=$build/bench out=$build/bench/vm samples=$build/bench/vm.tsv
rm -f "$build/bench-vm.txt"
compile_pair_bench || die 'building the program failed'
begin=$SECONDS
"${rt[@]}" bash "$top/test/vm/vm.sh" -r -t $((120 + 120 * rounds)) -o "$out" "$here/guest.sh" "$top" \
  "$build/bench" "$build/.libs" "$rounds" >"$out/output" 2>&1
status=$?
tr -d '\r' <"$out/output" | grep -E 'failed; see' >&2
case $status in
  0) ;;
  77)
    say "not measured in the virtual machine: $(tail -n 1 "$out/output")"
    exit 0
    ;;
  *) die "the virtual machine failed; see $out/output" ;;
esac
tr -d '\r' <"$out/output" | grep -E $'^[0-9]+\t' >"$samples"
python3 "$here/table_vm.py" "$samples" "$build/bench-vm.txt" "$rounds rounds in \
$((SECONDS - begin)) s on siw and rxe, two hosts in an emulated machine${rt[0]:+, SCHED_RR}"
