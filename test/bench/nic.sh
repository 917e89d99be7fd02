#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/bench/nic.sh [--quick] [--rounds N] [--realtime] [--limits]: measures the NIC transport on the simulated NIC
# (test/softerdma) and a bare verbs loop on the same NIC (raw_verbs), in turn, round
# after round. Prints a table; writes bench-nic.txt and the samples to $top_builddir.
# --limits: measures instead what zero copy loses on hosts without copy-on-fork, without userfaultfd, and without both. Prints the
# ratios, and writes the samples but no bench-nic.txt. Exit status 1: one is below 0.95 of the speed with both. Noise can do
# that too: on two cores of a shared host, rounds differed by a fifth.
# BENCH_RXM=1 also measures libfabric's verbs;ofi_rxm.
set -u -o pipefail
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
build=${top_builddir:-$top/build}
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
here=$top/test/bench clients=$top/test/clients
# shellcheck source=test/bench/build.sh
. "$here/build.sh"

rounds=5 realtime=${BENCH_REALTIME:-} scale=1 limits=''
while [ $# -gt 0 ]; do
  case $1 in
    --quick) rounds=3 scale=4 ;;
    --rounds) rounds=${2:?} && shift ;;
    --realtime) realtime=1 ;;
    --limits) limits=1 ;;
    *) die 'usage: nic.sh [--quick] [--rounds N] [--realtime] [--limits]' ;;
  esac
  shift
done
[ "$(jobs)" -ge 2 ] || die 'this needs two cores'
mkdir -p "$build/bench" || exit 1
build=$(cd "$build" && pwd)
bin=$build/bench samples=$build/bench/nic.tsv log=$build/bench/nic.log
softerdma=$build/.libs/libsofterdma.so
: >"$samples"
: >"$log"
rt=()
[ -z "$realtime" ] || rt=(chrt -r 10)

build_programs() {
  [ -f "$softerdma" ] || make -C "$build" libsofterdma.la || return 1
  compile_pair_bench &&
    { [ -z "$limits" ] || "${CC:-cc}" -O2 "$clients/refuse_cma.c" -o "$bin/refuse_cma"; } &&
    compile raw_verbs "$here/raw_verbs.cc" -lrdmacm -libverbs &&
    compile fi_many "$clients/fi_many.cc"
}

# measure PEER COMMAND...: records the lines "key value" of the command as samples of this round.
measure() {
  local peer=$1
  shift
  if ! env "LD_PRELOAD=$softerdma" timeout 100 "$@" 2>>"$log" |
    awk -v OFS='\t' -v r="$round" -v p="$peer" 'NF == 2 { print r, p, $1, $2 }' >>"$samples"; then
    say "$peer: failed at least once; see $log" >&2
  fi
}

# many NAME LIMIT ARGUMENT...: records the last line of fi_many as samples.
many() {
  local name=$1 limit=$2 line
  shift 2
  line=$(env "LD_PRELOAD=$softerdma" FI_ERDMA_MAX_CONNECTIONS="$limit" timeout 300 \
    "$bin/fi_many" "$@" --limit 280 2>>"$log") || { say "$name: failed; see $log" >&2; return; }
  say "   $line" >&2
  sed -nE 's/.*: ([0-9]+) peers met in .* s \(([0-9]+) a second\); ([0-9]+) messages .* in ([0-9.]+) s;.*KiB: ([0-9]+) before, ([0-9]+) then, ([0-9]+) at.*/\1 \2 \3 \4 \5 \6 \7/p' <<<"$line" |
    awk -v OFS='\t' -v n="$name" '{ print 0, "erdma", n "_setup", $2; print 0, "erdma", n "_messages", $3 / $4;
      print 0, "erdma", n "_memory", ($6 - $5) / $1; print 0, "erdma", n "_end", $7 - $5 }' >>"$samples"
}

build_programs >>"$log" 2>&1 || { tail -n 20 "$log" >&2; die 'building the programs failed'; }
[ -n "${FI_PROVIDER_PATH:-}" ] || use_build "$build"
unset FI_ERDMA_DEVICE
export BENCH_SIZES='8 1048576' BENCH_BUDGET_MS=20
export FI_PROVIDER=erdma FI_ERDMA_SHM=off SOFTERDMA_PERSONALITY=${SOFTERDMA_PERSONALITY:-standard}
# The folder is in memory, because creating and removing files on a disk would dominate the cost of a connection.
SOFTERDMA_DIR=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
export SOFTERDMA_DIR
trap 'rm -rf "$SOFTERDMA_DIR"' EXIT
address=$(LD_PRELOAD=$softerdma fi_info -p erdma -v 2>>"$log" |
  sed -nE 's,.*src_addr: fi_sockaddr_in://([0-9.]+):.*,\1,p' | head -n 1)
[ -n "$address" ] || { tail -n 5 "$log" >&2; die 'the provider does not see the simulated adapter'; }
# without_userfaultfd COMMAND...: runs the command like a container with the usual profile.
# shellcheck disable=SC2016
without_userfaultfd() {
  local hidden=()
  [ ! -r /dev/userfaultfd ] || hidden=(unshare -m sh -c 'mount --bind /dev/null /dev/userfaultfd && exec "$@"' sh)
  "${hidden[@]}" "$bin/refuse_cma" --calls userfaultfd --errno EPERM "$@"
}
# both_ways LIMITS COMMAND...: measures messages and writes.
both_ways() {
  measure "$1" "${@:2}" "${rt[@]}" "$bin/fi_pair_bench" nic
  measure "$1" "${@:2}" "${rt[@]}" "$bin/fi_pair_bench" one-sided
}
if [ -n "$limits" ]; then
  export -f without_userfaultfd
  export bin
  # timeout cannot run a function.
  # shellcheck disable=SC2016
  refused=(bash -c 'without_userfaultfd "$@"' sh)
  for ((round = 1; round <= rounds; ++round)); do
    say "round $round of $rounds" >&2
    both_ways both
    both_ways 'no copy-on-fork' env SOFTERDMA_COPY_ON_FORK=0
    both_ways 'no userfaultfd' "${refused[@]}"
    both_ways neither env SOFTERDMA_COPY_ON_FORK=0 "${refused[@]}"
  done
  python3 "$here/table_limits.py" "$samples"
  exit
fi
# verbs;ofi_rxm needs features that an eRDMA NIC lacks: a loopback address, and a passive side that
# may send first. It must also be told to use one segment for each receive.
rxm=('FI_PROVIDER=verbs;ofi_rxm' SOFTERDMA_LOOPBACK=1 SOFTERDMA_PASSIVE_FIRST=1 FI_VERBS_RX_IOV_LIMIT=1)
begin=$SECONDS
for ((round = 1; round <= rounds; ++round)); do
  say "round $round of $rounds" >&2
  measure raw "${rt[@]}" "$bin/raw_verbs" "$address"
  measure erdma "${rt[@]}" "$bin/fi_pair_bench" nic
  measure erdma "${rt[@]}" "$bin/fi_pair_bench" one-sided
  [ -z "${BENCH_RXM:-}" ] || measure 'verbs;ofi_rxm' env "${rxm[@]}" "${rt[@]}" "$bin/fi_pair_bench" nic
done
round=0
say 'many peers' >&2
many free 4096 --peers $((1000 / scale)) --messages 4000
many limited 64 --peers $((1000 / scale)) --messages $((10000 / scale))
python3 "$here/table_nic.py" "$samples" "$build/bench-nic.txt" "$rounds rounds in \
$((SECONDS - begin)) s on the simulated adapter, $SOFTERDMA_PERSONALITY${realtime:+, SCHED_RR}"
