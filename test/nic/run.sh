#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/nic/run.sh [PART-OF-A-NAME]: runs real applications over the NIC transport, on the simulated eRDMA
# NIC (test/softerdma) in both of its modes. Prints "PASS: name", "FAIL: name" and "SKIP:
# name (why)"; the output of each is in $top_builddir/nic/logs. Exit status 1 if one failed.
set -u
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/lib/hosts.sh
. "$top/test/lib/hosts.sh"
build=${top_builddir:-$top/build}
build=$(cd "$build" && pwd)
[ -n "${FI_PROVIDER:-}" ] || use_build "$build"
use_open_mpi
export top provider=${FI_PROVIDER} here=$top/test/clients bin=$build/clients
export fi_erdma=$build/prov/fi_erdma/fi_erdma softcuda=$build/test/softcuda/.libs
export softerdma=$build/.libs/libsofterdma.so more_checks=$top/test/nic/checks.sh
logs=$build/nic/logs
filter=${1:-}
mkdir -p "$bin/logs" "$logs" || exit 1
# shellcheck source=test/clients/build.sh
. "$here/build.sh"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
[ -f "$softerdma" ] || make -C "$build" libsofterdma.la >"$logs/build.log" 2>&1 ||
  { echo 'FAIL: the simulated adapter cannot be built'; exit 1; }
build_clients >"$logs/build.log" 2>&1 || { tail -n 20 "$logs/build.log"; echo 'FAIL: build'; exit 1; }
python=$(python_with_mpi) && export python
hosts=no
! can_make_hosts || hosts=yes
export hosts

make -C "$build" test/hardware/probe >>"$logs/build.log" 2>&1 || { echo 'FAIL: build'; exit 1; }
check 'first hour, on an adapter that flushes half, without rping' 150 first_hour_simulated
check 'first hour, without an adapter' 100 first_hour_alone

unset FI_ERDMA_DEVICE # use every active NIC; there is one
export SYSFS_PATH=/nowhere # no device of this host

mapper=SOFTERDMA_PORT_MAPPER=1 no_mapper=SOFTERDMA_PORT_MAPPER=0
standard=SOFTERDMA_PERSONALITY=standard compat=SOFTERDMA_PERSONALITY=compat
check 'two hosts, a port mapper on both' 60 simulated unlike_hosts $mapper $mapper
check 'two hosts, a port mapper on the one that connects' 60 simulated unlike_hosts $no_mapper $mapper
check 'two hosts, a port mapper on the one that listens' 60 simulated unlike_hosts $mapper $no_mapper \
  'nobody listens at 10\.8\.0\.1.*the port mapper iwpmd runs on its host.*E216'
check 'two hosts, compat mode connects to standard mode' 60 simulated unlike_hosts $standard $compat \
  '10\.8\.0\.1.* hangs up without a word.*its NIC is in standard mode.*E216'
check 'two hosts, standard mode connects to compat mode' 60 simulated unlike_hosts $compat $standard \
  'nobody listens at 10\.8\.0\.1.*its NIC is in compat mode.*E216' \
  'the NIC of .* is in standard mode \(iWARP\), and that of this host in compat mode.*E216'

for personality in standard compat; do
  export SOFTERDMA_PERSONALITY=$personality
  check "$personality: fi_info, two adapters of which one is down" 20 one_is_down
  export FI_ERDMA_SHM=off
  check "$personality: fi_pingpong tagged, all sizes checked" 90 simulated ping tagged none
  check "$personality: fi_pingpong msg, all sizes checked" 90 simulated ping msg none
  check "$personality: Open MPI, 4 ranks" 150 simulated mpi 4 none
  check "$personality: Open MPI, 4 ranks, RDMA READ" 150 \
    with FI_ERDMA_RENDEZVOUS read simulated mpi 4 none
  check "$personality: Open MPI, 4 ranks, without registrations" 150 \
    with FI_ERDMA_MR_CACHE off simulated mpi 4 none
  check "$personality: Open MPI, 6 ranks with 3 connections each" 200 \
    with FI_ERDMA_MAX_CONNECTIONS 3 simulated mpi_phases 6 storm wildcards probes self broadcast \
    all_to_all reductions
  check "$personality: mpi4py broadcast, 4 siblings" 90 simulated story none
  check "$personality: NetPIPE, integrity" 90 simulated netpipe none '' -i -u 1048576
  check "$personality: order and matching as a model says" 90 simulated stress fi_order
  check "$personality: four threads on one endpoint" 90 simulated stress fi_threads
  check "$personality: automatic progress" 60 simulated stress fi_auto
  check "$personality: an application that forks" 60 simulated stress fi_forker
  check "$personality: an application that forks, where registered memory is kept from children" 60 \
    with SOFTERDMA_COPY_ON_FORK 0 simulated stress fi_forker
  check "$personality: a process that forks and goes on likewise" 60 \
    with SOFTERDMA_COPY_ON_FORK 0 simulated stress fi_fork_touch
  check "$personality: an endpoint closed with operations in flight" 60 \
    simulated stress fi_close_inflight
  check "$personality: a million unexpected messages" 200 simulated stress fi_unexpected
  check "$personality: a region and a message of 5 GiB" 200 simulated stress fi_large
  check "$personality: a receiver stopped for 3 s" 60 simulated stress fi_stop_stress --seconds 3
  check "$personality: 40 processes killed" 200 \
    with FI_ERDMA_CONNECT_TIMEOUT 1000 simulated stress fi_kill_stress --rounds 40 --limit-ms 15000
  unset FI_ERDMA_SHM
  for operation in message read write; do
    check "$personality: fi_erdma bench, all sizes, $operation" 240 \
      simulated own bench -S all --nic-only --operation $operation --expect nic
  done
  check "$personality: fi_erdma bench sees another path" 60 \
    simulated own_fails 'carried 0 of' bench --expect nic
  check "$personality: fi_erdma test local-read" 60 simulated own test local-read --nic-only
  check "$personality: fi_erdma test local-read of GPU memory" 60 \
    with_softcuda simulated own test local-read -D cuda
  check "$personality: fi_erdma test peer-death" 60 simulated own test peer-death --nic-only
  check "$personality: Open MPI, 2 hosts with 2 ranks each" 150 simulated mpi_two_hosts 4
  check "$personality: Open MPI one-sided, 2 hosts with 2 ranks each" 150 \
    simulated mpi_two_hosts 4 one_sided
done
summarize nic
