#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/bench/run.sh [--quick] [--rounds N] [--realtime]: erdma and the other ways between two
# processes of one host, each in turn, round after round, so that what the host does meanwhile
# strikes all alike. Prints a table; writes bench.txt, bench.json and the samples to $top_builddir.
# --realtime (or BENCH_REALTIME=1), as root: the measured pairs run under SCHED_RR and shut other
# load out. BENCH_CORES="A B": the two cores (else 0 and 1). A peer that is not installed is skipped.
set -u -o pipefail
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
build=${top_builddir:-$top/build}
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
here=$top/test/bench clients=$top/test/clients
# shellcheck source=test/bench/build.sh
. "$here/build.sh"

rounds=7 realtime=${BENCH_REALTIME:-}
while [ $# -gt 0 ]; do
  case $1 in
    --quick) rounds=3 ;;
    --rounds) rounds=${2:?} && shift ;;
    --realtime) realtime=1 ;;
    *) die 'usage: run.sh [--quick] [--rounds N] [--realtime]' ;;
  esac
  shift
done
read -r core_a core_b <<<"${BENCH_CORES:-0 1}"
export BENCH_CORES="$core_a $core_b"
[ "$(jobs)" -ge 2 ] || die 'this needs two cores'
mkdir -p "$build/bench" || exit 1
build=$(cd "$build" && pwd)
bin=$build/bench samples=$build/bench/samples.tsv log=$build/bench/run.log
: >"$samples"
: >"$log"

rt=()
if [ -n "$realtime" ]; then
  chrt -r 10 true 2>/dev/null || die '--realtime: no right to use SCHED_RR here (root has it)'
  rt=(chrt -r 10) # never FIFO: a provider's own thread needs time on the same core
fi

build_programs() {
  compile_pair_bench || return 1
  refuse=$build/test/clients/refuse_cma
  if [ ! -x "$refuse" ]; then
    refuse=$bin/refuse_cma
    "${CC:-cc}" -O2 "$clients/refuse_cma.c" -o "$refuse" || return 1
  fi
  command -v mpicc >/dev/null && command -v mpirun >/dev/null || return 0
  mpicc -O2 -Wall -Wextra "$here/mpi_latency.c" -o "$bin/mpi_latency"
}

# record PEER: lines "key value" become samples of this round.
record() { awk -v OFS='\t' -v r="$round" -v p="$1" 'NF == 2 { print r, p, $1, $2 }' >>"$samples"; }

# measure PEER COMMAND...: a failure is told once; the table shows what is missing.
measure() {
  local peer=$1 start=$SECONDS
  shift
  if ! "$@" 2>>"$log" | record "$peer" && [ -z "${told[$peer]:-}" ]; then
    say "$peer: failed at least once; see $log" >&2
    told[$peer]=1
  fi
  echo "# round $round: $peer took $((SECONDS - start)) s" >>"$log"
}

# fabric PROVIDER WHAT [WRAPPER...]
fabric() {
  local provider=$1 what=$2
  shift 2
  FI_PROVIDER=$provider timeout 100 "$@" "$bin/fi_pair_bench" "$what"
}

# One latency is half a round trip there as here; the rate is that of a stream with 64 in flight.
ucx_batch() {
  sed 's/^  //' <<'  BATCH'
  half_8 -t tag_lat -s 8 -n 40000 -w 4000
  half_4096 -t tag_lat -s 4096 -n 10000 -w 1000
  half_65536 -t tag_lat -s 65536 -n 1000 -w 100
  half_1048576 -t tag_lat -s 1048576 -n 150 -w 20
  half_4194304 -t tag_lat -s 4194304 -n 50 -w 10
  stream_8 -t tag_bw -s 8 -n 100000 -O 64 -w 10000
  stream_8 -t tag_bw -s 8 -n 100000 -O 64 -w 1000
  stream_8 -t tag_bw -s 8 -n 100000 -O 64 -w 1000
  stream_8 -t tag_bw -s 8 -n 100000 -O 64 -w 1000
  stream_8 -t tag_bw -s 8 -n 100000 -O 64 -w 1000
  BATCH
}

# ucx TRANSPORTS: medians, as the others print: the percentile of ucx_perftest, and of its rates.
ucx() {
  local port server csv
  port=$(free_port) || return 1
  UCX_TLS=$1 timeout 60 "${rt[@]}" taskset -c "$core_a" ucx_perftest -p "$port" \
    -b "$bin/ucx_batch" >/dev/null 2>&1 &
  server=$!
  until grep -q "$(printf ':%04X 0' "$port")" /proc/net/tcp; do
    kill -0 "$server" 2>/dev/null || return 1
    sleep 0.02
  done
  csv=$(UCX_TLS=$1 timeout 60 "${rt[@]}" taskset -c "$core_b" ucx_perftest 127.0.0.1 -p "$port" \
    -b "$bin/ucx_batch" -f -v)
  wait "$server" || return 1
  awk -F, '/^half_/ { print $1, $3 }' <<<"$csv"
  awk -F, '/^stream_8,/ { print $9 / 1e6 }' <<<"$csv" | sort -n | sed -n '3s/^/stream_8 /p'
}

# open_mpi SETTING...
open_mpi() { timeout 100 env "$@" mpirun -n 2 "${rt[@]}" "$bin/mpi_latency"; }

one_round() {
  measure erdma fabric erdma curves "${rt[@]}"
  [ -z "${has[ucx]}" ] || measure 'UCX posix' ucx posix,self
  [ -z "${has[shm]}" ] || measure shm fabric shm curves "${rt[@]}"
  measure erdma fabric erdma one-sided "${rt[@]}"
  [ -z "${has[shm]}" ] || measure shm fabric shm one-sided "${rt[@]}"
  [ -z "${has[ucx]}" ] || measure 'UCX posix+cma' ucx posix,cma,self
  measure 'erdma, CMA refused' fabric erdma curves "$refuse" "${rt[@]}"
  [ -z "${has[psm3]}" ] || measure psm3 fabric psm3 curves "${rt[@]}"
  measure erdma fabric erdma matching "${rt[@]}"
  [ -n "${has[mpi]}" ] || return 0
  measure 'Open MPI erdma' open_mpi OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_btl=^ofi
  measure 'Open MPI vader' open_mpi OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader
}

find_peers() {
  local provider
  for provider in shm psm3; do
    if FI_PROVIDER=$provider fi_info -p $provider -t FI_EP_RDM >/dev/null 2>&1; then
      has[$provider]=1
    else
      say "$provider: skipped (this libfabric does not offer it)"
    fi
  done
  if command -v ucx_perftest taskset >/dev/null; then has[ucx]=1; else
    say 'UCX: skipped (no ucx_perftest; Debian: ucx-utils)'
  fi
  if [ -x "$bin/mpi_latency" ]; then has[mpi]=1; else say 'Open MPI: skipped (no mpicc, mpirun)'; fi
}

declare -A told=() has=([ucx]='' [shm]='' [psm3]='' [mpi]='')
build_programs 2>>"$log" || { tail -n 20 "$log" >&2; die 'building the programs failed'; }
[ -n "${FI_PROVIDER_PATH:-}" ] || use_build "$build"
export FI_ERDMA_DEVICE=${FI_ERDMA_DEVICE:-shm} FI_PROVIDER=erdma
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=0 UCX_WARN_UNUSED_ENV_VARS=n
find_peers
ucx_batch >"$bin/ucx_batch"
begin=$SECONDS
round=0
measure erdma fabric erdma memory env
[ -z "${has[shm]}" ] || measure shm fabric shm memory env
for ((round = 1; round <= rounds; ++round)); do
  say "round $round of $rounds" >&2
  one_round
done
python3 "$here/table.py" "$samples" "$build" "$rounds rounds in $((SECONDS - begin)) s, cores \
$core_a and $core_b${realtime:+, SCHED_RR}"
