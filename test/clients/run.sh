#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/clients/run.sh [PART-OF-A-NAME]: runs real applications over the provider that FI_PROVIDER
# names, with and without CMA. Prints "PASS: name", "FAIL: name" and "SKIP: name (why)"; the output
# of each check is in $top_builddir/clients/logs. Exit status 1 if a check failed.
set -u
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
build=${top_builddir:-$top/build}
[ -n "${FI_PROVIDER:-}" ] || use_build "$build"
use_open_mpi
export top provider=${FI_PROVIDER} here=$top/test/clients bin=$build/clients
export fi_erdma=$build/prov/fi_erdma/fi_erdma
logs=$bin/logs
filter=${1:-}
mkdir -p "$logs" || exit 1
# shellcheck source=test/clients/build.sh
. "$here/build.sh"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"

build_clients >"$logs/build.log" 2>&1 || { tail -n 20 "$logs/build.log"; echo 'FAIL: build'; exit 1; }
python=$(python_with_mpi) && export python

both='readv,writev'
check 'fi_info lists the provider' 20 fi_info_lists
for message in tagged msg; do
  check "fi_pingpong $message, all sizes checked" 60 ping "$message" none
  check "fi_pingpong $message, CMA refused with EPERM" 60 ping "$message" $both EPERM
done
check 'fi_pingpong tagged, CMA refused with ENOSYS' 60 ping tagged $both ENOSYS
check 'fi_pingpong, with hooks of libfabric' 60 hooked

check 'fi_pingpong, nothing to see' 60 seen 0 none ''
check 'fi_pingpong, a refusal is seen once per process' 60 seen 2 $both EPERM
check 'fi_pingpong, a refusal is not seen with FI_ERDMA_LOG=off' 60 seen 0 $both EPERM FI_ERDMA_LOG=off
check 'fi_pingpong, a refusal is seen in one place' 60 seen_in_one_place

check 'Open MPI, 2 ranks' 60 mpi 2 none
check 'Open MPI, 4 ranks' 90 mpi 4 none
check 'Open MPI, 8 ranks' 120 mpi 8 none
check 'Open MPI, 2 ranks, CMA refused with EPERM' 90 mpi 2 $both EPERM
check 'Open MPI, 4 ranks, CMA refused with ENOSYS' 120 mpi 4 $both ENOSYS
check 'Open MPI, 2 ranks, process_vm_readv refused' 60 mpi 2 readv EPERM
check 'Open MPI, 2 ranks, process_vm_writev refused' 60 mpi 2 writev EPERM
check 'Open MPI, 2 ranks, FI_ERDMA_CMA=off' 60 mpi_without_cma
check 'Open MPI, 4 ranks, 64 MiB of /dev/shm' 90 mpi_small_shm
check 'Open MPI one-sided, 4 ranks' 90 one_sided 4 none
check 'Open MPI one-sided, 4 ranks, CMA refused with EPERM' 90 one_sided 4 $both EPERM
check 'Open MPI one-sided, 4 ranks apart' 90 one_sided_apart 4 none
check 'Open MPI one-sided, 4 ranks apart, CMA refused with ENOSYS' 90 one_sided_apart 4 $both ENOSYS

check 'mpi4py broadcast, 4 siblings' 60 story none
check 'mpi4py broadcast, CMA refused with EPERM' 60 story $both EPERM
check 'mpi4py broadcast, CMA refused with ENOSYS' 60 story $both ENOSYS
check 'mpi4py broadcast, process_vm_readv refused' 60 story readv EPERM
check 'mpi4py broadcast, process_vm_writev refused' 60 story writev EPERM

check 'NetPIPE, integrity' 60 netpipe none '' -i -u 1048576
check 'NetPIPE, speed' 60 netpipe none '' -u 4194304
check 'NetPIPE, integrity, CMA refused with EPERM' 60 netpipe $both EPERM -i -u 1048576
check 'NetPIPE, integrity, CMA refused with ENOSYS' 60 netpipe $both ENOSYS -i -u 1048576

check 'HPCC' 120 hpcc_small none
check 'HPCC, CMA refused with EPERM' 120 hpcc_small $both EPERM

check 'order and matching as a model says' 60 stress fi_order
check 'order and matching, CMA refused' 90 stress_refused fi_order --messages 5000 --batches 30
check 'four threads on one endpoint' 90 stress fi_threads
check 'four threads on one endpoint, CMA refused' 90 stress_refused fi_threads --messages 1000
check 'automatic progress' 60 stress fi_auto
check 'an application that forks' 60 stress fi_forker
check 'an endpoint closed with operations in flight' 60 stress fi_close_inflight
check 'a million unexpected messages' 150 stress fi_unexpected
check 'a receiver stopped for 3 s' 60 stress fi_stop_stress --seconds 3
check 'a receiver stopped for 1 s, CMA refused' 60 stress_refused fi_stop_stress --seconds 1
rounds=100
[ -z "${ERDMA_QUICK:-}" ] || rounds=20
check "$rounds processes killed" 200 kill_stress_private --rounds $rounds --limit-ms 10000
check "$((rounds / 5)) processes killed, CMA refused" 100 \
  stress_refused fi_kill_stress --rounds $((rounds / 5)) --limit-ms 10000

check 'fi_erdma test refused-cma' 60 own test refused-cma
check 'fi_erdma test refused-cma, ENOSYS at the server' 60 \
  own test refused-cma --errno ENOSYS --side server
check 'fi_erdma test refused-cma, process_vm_readv at the client' 60 \
  own test refused-cma --refuse readv --side client
check 'fi_erdma test refused-cma, process_vm_writev' 60 own test refused-cma --refuse writev
check 'fi_erdma test refused-cma sees a wrong byte' 60 own_fails 'byte .* is wrong' test refused-cma --spoil
check 'fi_erdma bench, rings' 60 own bench -S 64 --expect rings
check 'fi_erdma bench, CMA' 60 with FI_ERDMA_CMA on own bench -S 1M --expect cma
check 'fi_erdma bench, copy' 60 with FI_ERDMA_CMA off own bench -S 1M --expect copy
for operation in message read write; do
  check "fi_erdma bench, all sizes, $operation" 240 \
    own bench -S all --operation $operation --expect shm
done
check 'fi_erdma bench sees another path' 60 \
  with FI_ERDMA_CMA off own_fails 'carried 0 of' bench -S 1M --expect cma
check 'fi_erdma bench sees a wrong byte' 60 own_fails 'byte .* is wrong' bench --spoil
check 'fi_erdma test local-read' 60 own test local-read
check 'fi_erdma test local-read sees a wrong byte' 60 own_fails 'byte .* is wrong' test local-read --spoil
check 'fi_erdma test peer-death' 60 own test peer-death --limit-ms 10000
check 'fi_erdma test peer-death, without CMA' 60 \
  with FI_ERDMA_CMA off own test peer-death --limit-ms 10000
check 'fi_erdma test peer-death sees what does not end' 60 \
  own_fails 'has not ended' test peer-death --signal STOP --limit-ms 500

summarize clients
