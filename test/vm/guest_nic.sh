#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest_nic.sh TOP BIN PYTHON PROVIDER_PATH PROVIDER [PART-OF-A-NAME]: what `run.sh nic` runs in the
# machine. Two hosts, A and B: network namespaces joined by a veth pair, each with a siw adapter, and A
# with a second one whose port is down. rxe of this kernel finds its routes in the first namespace only
# (ib_send_lat -d rxeA between such hosts fails too), so there is one rxe adapter there, and processes
# talk through its own loop.
# shellcheck disable=SC2034
set -u
export here=$1/test/clients bin=$2 provider=$5 more_checks=$1/test/vm/checks_nic.sh
filter=${6:-}
# shellcheck source=test/lib/common.sh
top=$1 && . "$1/test/lib/common.sh"
use_open_mpi
export FI_PROVIDER=$5 FI_PROVIDER_PATH=$4
[ -n "$4" ] || unset FI_PROVIDER_PATH
# shellcheck source=test/lib/hosts.sh
export top && . "$top/test/lib/hosts.sh"
use_hosts
export TMPDIR=/tmp
logs=/tmp/vm-logs
mkdir -p "$logs"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
echo # the console's own noise ends here

add_adapters() {
  ip -n A link add a1 type dummy
  ip -n A addr add 10.8.1.1/24 dev a1
  ip netns exec A rdma link add siwA type siw netdev a0 &&
    ip netns exec B rdma link add siwB type siw netdev b0 &&
    ip netns exec A rdma link add siwC type siw netdev a1 || return
  ip link add r0 type dummy
  ip addr add 10.9.0.1/24 dev r0
  ip link set r0 up
  rdma link add rxe0 type rxe netdev r0 || return
  for _ in $(seq 50); do
    [ "$(rdma link show | grep -c 'state ACTIVE')" -ge 3 ] && return
    sleep 0.1
  done
  rdma link show
  return 1
}
make_hosts && add_adapters || { echo 'FAIL: two hosts with RDMA devices'; exit 1; }

collectives='broadcast scatter_gather varying all_to_all all_to_all_v reductions scans
  reduce_scatter barriers communicators'
export kind=siw FI_ERDMA_DEVICE=siwA,siwB
check 'siw: fi_info' 60 info_lists A siwA siwB 10.8.0.1
check 'siw: two adapters, one of them down' 60 one_is_down
check 'siw: fi_pingpong between hosts, tagged, all sizes checked' 120 between_hosts tagged all
check 'siw: fi_pingpong between hosts, msg' 120 between_hosts msg 300000
check "siw: fi_pingpong through the adapter's own loop" 120 own_loop A 10.8.0.1 all
check 'siw: users 1000 and 1001 of one host' 120 two_users
# shellcheck disable=SC2086
check 'siw: Open MPI, 2 hosts with 2 ranks each' 300 mpi_hosts 4 datatypes storm probes truncation \
  $collectives
check 'siw: mixed orders and sizes' 120 across fi_order --messages 1500 --batches 4
check 'siw: a receiver stopped for 2 s' 120 across fi_stop_stress --seconds 2
check 'siw: 12 processes killed' 180 across fi_kill_stress --rounds 12 --limit-ms 30000
check 'siw: the link goes down and comes up' 120 link_flap 'ip -n B link set b0'

export kind=rxe FI_ERDMA_DEVICE=rxe0 FI_ERDMA_SHM=off
check 'rxe: fi_info' 60 info_lists '' rxe0 siwA 10.9.0.1
check 'rxe: fi_pingpong, tagged, all sizes checked' 120 own_loop '' 10.9.0.1 all
# shellcheck disable=SC2086
check 'rxe: Open MPI, 4 ranks' 300 mpi_here 4 datatypes storm probes truncation $collectives
check 'rxe: mixed orders and sizes' 120 stress fi_order --messages 1500 --batches 4
check 'rxe: a receiver stopped for 2 s' 120 stress fi_stop_stress --seconds 2
check 'rxe: 12 processes killed' 180 stress fi_kill_stress --rounds 12 --limit-ms 30000
cp -r "$logs" /out/ 2>/dev/null
summarize 'vm nic'
