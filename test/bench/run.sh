#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/bench/run.sh [--quick|--tiny] [--rounds N] [--only STAGES] [--realtime]: measures erdma and its
# competitors between processes of one host, in turn, round after round, so that other load on the
# host affects all alike. Prints a table; writes bench.txt, bench.json and the samples to
# $top_builddir. docs/benchmarks.md explains the options and variables. A peer that is not installed
# is skipped.
set -u -o pipefail
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
build=${top_builddir:-$top/build}
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
here=$top/test/bench clients=$top/test/clients
# shellcheck source=test/bench/build.sh
. "$here/build.sh"

all_stages='curves one-sided patterns senders matching mpi collectives'
rounds='' stages=$all_stages realtime=${BENCH_REALTIME:-} set=full
while [ $# -gt 0 ]; do
  case $1 in
    --quick | --tiny) set=${1#--} ;;
    --rounds) rounds=${2:?} && shift ;;
    --only) stages=${2:?} && shift ;;
    --realtime) realtime=1 ;;
    *) die "usage: run.sh [--quick|--tiny] [--rounds N] [--only '$all_stages'] [--realtime]" ;;
  esac
  shift
done
for stage in $stages; do
  [[ " $all_stages " = *" $stage "* ]] || die "there is no stage '$stage', only: $all_stages"
done
limit=200 senders='2 8 32' ranks='2 4 8 16' collective_sizes='8 1024 16384 65536 1048576'
case $set in
  tiny) # only checks that everything runs
    default_rounds=1 sizes='8 65536' budget=0.2 senders=2 ranks='2 4' collective_sizes='8 65536'
    ;;
  quick)
    default_rounds=3 sizes='8 256 1024 4096 16384 65536 262144 1048576 4194304' budget=20
    ;;
  full)
    default_rounds=7 budget=40 limit=300
    sizes=$(for ((s = 8; s <= 64 << 20; s *= 2)); do echo "$s"; done)
    ;;
esac
rounds=${rounds:-$default_rounds}
sizes=$(tr '\n' ' ' <<<"${BENCH_SIZES:-$sizes}")
export BENCH_SIZES=$sizes BENCH_BUDGET_MS=${BENCH_BUDGET_MS:-$budget}
export BENCH_COLLECTIVE_SIZES=${BENCH_COLLECTIVE_SIZES:-$collective_sizes}
ranks=${BENCH_RANKS:-$ranks}
[ "$(jobs)" -ge 2 ] || die 'this needs two cores'
mkdir -p "$build/bench" || exit 1
build=$(cd "$build" && pwd)
bin=$build/bench samples=$build/bench/samples.tsv log=$build/bench/run.log
: >"$samples"
: >"$log"

rt=()
if [ -n "$realtime" ]; then
  chrt -r 10 true 2>/dev/null || die '--realtime: no right to use SCHED_RR here (root has it)'
  rt=(chrt -r 10) # not FIFO: a thread of a provider needs time on the same core
fi

build_programs() {
  compile_pair_bench || return 1
  refuse=$build/test/clients/refuse_cma
  if [ ! -x "$refuse" ]; then
    refuse=$bin/refuse_cma
    "${CC:-cc}" -O2 "$clients/refuse_cma.c" -o "$refuse" || return 1
  fi
  compile_ucx_bench 2>>"$log" || ucx_bench=
  command -v mpicc >/dev/null && command -v mpirun >/dev/null || return 0
  local program
  for program in mpi_latency mpi_collectives; do
    mpicc -O2 -Wall -Wextra "$here/$program.c" -o "$bin/$program" || return 1
  done
}

# record PEER: records lines "key value" as samples of this round.
record() { awk -v OFS='\t' -v r="$turn" -v p="$1" 'NF == 2 { print r, p, $1, $2 }' >>"$samples"; }

# A host may move virtual processors at any time, and they are near one moment and far the next. Figures of a round are
# compared, so all of them are measured at the same distance.
# distance FILE: prints near or far, mixed if it changed while FILE was written, or nothing if FILE does not tell.
distance() {
  awk '$1 ~ /^line/ { if ($2 < 0.08) near = 1; else far = 1 }  # NEAR of table.py
    END { if (near && far) print "mixed"; else if (near) print "near"; else if (far) print "far" }' "$1"
}
# was_moved FILE: true if the results in FILE were not measured at the distance of this round.
was_moved() {
  local now
  now=$(distance "$1")
  if [ -z "$now" ]; then # an MPI program, or many senders
    "$bin/fi_pair_bench" line >"$bin/line" 2>>"$log"
    now=$(distance "$bin/line")
  fi
  [ "$now" != "$round_distance" ]
}

# measure PEER COMMAND...: runs and records the command. It reports a failure once; the table shows missing results. A
# command that exceeded the time limit is not repeated. One whose processors were moved is, up to 8 times.
measure() {
  local peer=$1 start=$SECONDS status tries
  shift
  [ -z "${hung[$peer $*]:-}" ] || return 0
  for ((tries = 1; tries <= 8; ++tries)); do
    "$@" 2>>"$log" >"$bin/results"
    status=$?
    if [ "$peer" = machine ]; then round_distance=$(distance "$bin/results"); fi
    if [ "$status" != 0 ] || [ -z "$round_distance" ] || ! was_moved "$bin/results"; then break; fi
  done
  if [ "$tries" -gt 8 ]; then
    echo "# turn $turn: $peer, $*: never at the distance of this round ($round_distance)" >>"$log"
  else
    record "$peer" <"$bin/results"
  fi
  [ "$status" != 124 ] || hung[$peer $*]=1
  if [ "$status" != 0 ] && [ -z "${told[$peer]:-}" ]; then
    say "$peer: failed at least once (${*:1:4}: status $status); see $log" >&2
    told[$peer]=1
  fi
  echo "# turn $turn: $peer, $*: $((SECONDS - start)) s, run $tries" >>"$log"
}

# fabric PROVIDER ARGUMENT...: measures this provider; a competitor uses the libfabric of LIBFABRIC.
fabric() {
  local setting=("FI_PROVIDER=$1")
  [ "$1" = erdma ] || setting=("${peer_libfabric[@]}" "FI_PROVIDER=$1")
  shift
  timeout "$limit" env "${setting[@]}" "${rt[@]}" "$bin/fi_pair_bench" "$@"
}
fabric_refused() { # PROVIDER ARGUMENT...: where the kernel refuses CMA
  local rt=("$refuse" "${rt[@]}") BENCH_SIZES=$refused_sizes
  fabric "$@"
}
ucx() { # TRANSPORTS ARGUMENT...
  local transports=$1
  shift
  timeout "$limit" env UCX_TLS="$transports" "${rt[@]}" "$ucx_bench" "$@"
}

# everyone ARGUMENT...: measures erdma and each competitor that is installed.
everyone() {
  local provider
  measure erdma fabric erdma "$@"
  [ -z "$ucx_bench" ] || measure 'UCX posix' ucx posix,self "$@"
  for provider in $providers; do measure "$provider" fabric "$provider" "$@"; done
  [ -z "$ucx_bench" ] || measure 'UCX posix+cma' ucx posix,cma,self "$@"
}

# open_mpi WAY PROGRAM RANKS: runs an MPI program. Ranks that share a core yield to each other while they wait.
open_mpi() {
  local setting=(OMPI_MCA_mpi_yield_when_idle=$(($3 > 2)))
  case $1 in
    erdma) setting+=(OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_btl=^ofi) ;;
    vader) setting+=(OMPI_MCA_pml=ob1 "OMPI_MCA_btl=self,vader") ;;
    UCX) setting+=(OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any "UCX_TLS=posix,cma,self"
      ${UCX:+"LD_LIBRARY_PATH=$UCX/lib:${LD_LIBRARY_PATH:-}"}) ;;
  esac
  timeout "$limit" env "${setting[@]}" mpirun -n "$3" "${rt[@]}" "$bin/$2"
}
mpi_ways() { # PROGRAM RANKS
  local way
  [ -n "$has_mpi" ] || return 0
  for way in $mpi_peers; do measure "Open MPI $way" open_mpi "$way" "$1" "$2"; done
}

run_stage() {
  local number provider
  case $1 in
    curves)
      everyone curves
      for provider in erdma $providers; do
        measure "$provider, CMA refused" fabric_refused "$provider" curves
      done
      ;;
    one-sided)
      measure erdma fabric erdma one-sided
      [[ $providers != *shm* ]] || measure shm fabric shm one-sided
      ;;
    patterns) everyone patterns ;;
    senders) for number in $senders; do everyone senders "$number"; done ;;
    matching) measure erdma fabric erdma matching ;;
    mpi) mpi_ways mpi_latency 2 ;;
    collectives) for number in $ranks; do mpi_ways mpi_collectives "$number"; done ;;
  esac
}

find_peers() {
  local provider fi_info=fi_info
  "$bin/fi_pair_bench" offered >/dev/null 2>>"$log" || die "libfabric does not find erdma; see $log"
  [ -z "${LIBFABRIC:-}" ] || fi_info=$LIBFABRIC/bin/fi_info
  providers=''
  for provider in shm psm3; do
    if fabric $provider offered >/dev/null 2>&1; then
      providers+="$provider "
    else
      say "$provider: skipped (this libfabric does not offer it)"
    fi
  done
  peers="libfabric $(env "${peer_libfabric[@]}" "$fi_info" --version | sed -n 's/^libfabric: //p')"
  if [ -n "$ucx_bench" ]; then peers+=", UCX $("$ucx_bench" version)"; else
    say 'UCX: skipped (no headers of UCX; Debian: libucx-dev, or UCX=PREFIX)'
  fi
  has_mpi=
  if [ -x "$bin/mpi_collectives" ]; then has_mpi=1; else
    say 'Open MPI: skipped (no mpicc, mpirun)'
    return
  fi
  peers+=", $(mpirun --version | sed -n '1s/mpirun (\(.*\)) /\1 /p')"
  mpi_peers='erdma vader'
  if ompi_info 2>/dev/null | grep -q 'MCA pml: ucx'; then mpi_peers+=' UCX'; fi
}

# core_pairs: prints the nearest and, if it differs, the farthest partner of the first core, by the time to move
# a cache line. If there are many cores, it tries only some.
core_pairs() {
  python3 - "$bin/fi_pair_bench" <<'END'
import os, subprocess, sys
cores = sorted(os.sched_getaffinity(0))
others = cores[1:][::max(1, (len(cores) - 1) // 12)]
times = {}
for other in others:
    setting = dict(os.environ, BENCH_CORES=f"{cores[0]} {other}")
    out = subprocess.run([sys.argv[1], "line"], env=setting, capture_output=True, text=True, check=True)
    times[other] = float(out.stdout.split()[1])
near, far = min(others, key=times.get), max(others, key=times.get)
print(cores[0], near)
if times[far] > 1.5 * times[near]:
    print(cores[0], far)
END
}

declare -A told=() hung=()
round_distance=''
peer_libfabric=() peers='' providers='' mpi_peers='' has_mpi=''
[ -z "${LIBFABRIC:-}" ] || peer_libfabric=(-u FI_PROVIDER_PATH "LD_LIBRARY_PATH=$LIBFABRIC/lib")
refused_sizes=$(for size in $sizes; do [ "$size" -lt 65536 ] || printf '%s ' "$size"; done)
build_programs 2>>"$log" || { tail -n 20 "$log" >&2; die 'building the programs failed'; }
[ -n "${FI_PROVIDER_PATH:-}" ] || use_build "$build"
export FI_ERDMA_DEVICE=${FI_ERDMA_DEVICE:-shm} FI_PROVIDER=erdma
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export UCX_WARN_UNUSED_ENV_VARS=n
find_peers
mapfile -t pairs < <(if [ -n "${BENCH_CORES:-}" ]; then echo "$BENCH_CORES"; else core_pairs; fi)
[ "${#pairs[@]}" -gt 0 ] || die 'no pair of cores'
begin=$SECONDS
turn=0
export BENCH_CORES=${pairs[0]}
measure erdma fabric erdma memory
[[ $providers != *shm* ]] || measure shm fabric shm memory
for ((round = 1; round <= rounds; ++round)); do
  for BENCH_CORES in "${pairs[@]}"; do
    turn=$((turn + 1))
    say "round $round of $rounds, cores $BENCH_CORES" >&2
    measure machine "$bin/fi_pair_bench" machine
    for stage in $stages; do run_stage "$stage"; done
  done
done
places=$(printf ', %s' "${pairs[@]/ / and }")
python3 "$here/table.py" "$samples" "$build" "$set set, $rounds rounds in $((SECONDS - begin)) s; \
cores ${places#, }${realtime:+, SCHED_RR}; peers: $peers"
