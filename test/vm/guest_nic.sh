#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest_nic.sh TOP BIN PYTHON PROVIDER_PATH PROVIDER [PART-OF-A-NAME]: what `run.sh nic` runs in the
# machine. Two hosts, A and B: network namespaces, each with a siw and an rxe adapter, and adapters of A
# whose port is down. Sizes are small: emulation is slow.
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

# add_siw: between the hosts' own links; a1 stays down.
add_siw() {
  ip -n A link add a1 type dummy
  ip -n A addr add 10.8.1.1/24 dev a1
  ip netns exec A rdma link add siwA type siw netdev a0 &&
    ip netns exec B rdma link add siwB type siw netdev b0 &&
    ip netns exec A rdma link add siwC type siw netdev a1
}

# add_rxe: rxe of this kernel sends and receives in the first network namespace only (rxe_net.c says
# init_net, so ib_send_lat between rxe adapters of other namespaces fails too). So its frames pass
# between r0 and r1 there, really from one to the other: the route is looked up with the interface
# to leave by, and accept_local takes what comes from an address of the same host. Every namespace may
# open the adapters; r0 of A and r1 of B, a pair of their own, carry TCP between the same addresses, and
# have the same indices, by which an adapter names its interface. r2 stays down.
add_rxe() {
  local each
  ip link add r0 mtu 4200 index 50 type veth peer name r1 mtu 4200 index 51 || return
  ip -n A link add r0 index 50 type veth peer name r1 index 51 && ip -n A link set r1 netns B || return
  ip link add r2 index 52 type dummy
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  for each in r0 r1; do
    echo 1 >/proc/sys/net/ipv4/conf/$each/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$each/rp_filter
    ip link set $each up
  done
  ip addr add 10.9.0.1/24 dev r0
  ip addr add 10.9.0.2/24 dev r1
  ip -n A addr add 10.9.0.1/24 dev r0
  ip -n B addr add 10.9.0.2/24 dev r1
  ip -n A link set r0 up
  ip -n B link set r1 up
  for each in A,r0 B,r1 C,r2; do rdma link add "rxe${each%,*}" type rxe netdev "${each#*,}" || return; done
}

# Until the ports are up; what an adapter waits for sends no event that a script could take.
all_active() {
  for _ in $(seq 50); do
    [ "$(rdma link show | grep -c 'state ACTIVE')" -ge 4 ] && return
    sleep 0.1
  done
  rdma link show
  return 1
}
make_hosts && add_siw && add_rxe && all_active ||
  { echo 'FAIL: two hosts with RDMA devices'; exit 1; }

collectives='broadcast scatter_gather varying all_to_all all_to_all_v reductions scans
  reduce_scatter barriers communicators'
# checks_of KIND ADDRESS_OF_A NETDEV_OF_C LINK_DOWN LINK_UP: of siw or rxe.
checks_of() {
  local kind=$1 address=$2 netdev=$3 down=$4 up=$5
  export FI_ERDMA_DEVICE=${kind}A,${kind}B
  check "$kind: fi_info" 60 info_lists A "${kind}A" "${kind}B" "$address"
  check "$kind: two adapters, one of them down" 60 one_is_down "${kind}A" "${kind}C" "$netdev"
  check "$kind: fi_pingpong between hosts, tagged, all sizes checked" 120 \
    between_hosts "$address" tagged all
  check "$kind: fi_pingpong between hosts, msg" 120 between_hosts "$address" msg 300000
  check "$kind: fi_pingpong through the adapter's own loop" 120 own_loop A "$address" all
  check "$kind: users 1000 and 1001 of one host" 120 two_users "$address"
  # shellcheck disable=SC2086
  check "$kind: Open MPI, 2 hosts with 2 ranks each" 300 mpi_hosts 4 datatypes storm probes \
    truncation $collectives
  check "$kind: mixed orders and sizes" 120 across fi_order --messages 1500 --batches 4
  check "$kind: a receiver stopped for 2 s" 180 across fi_stop_stress --seconds 2 --messages 1500
  check "$kind: 12 processes killed" 180 across fi_kill_stress --rounds 12 --limit-ms 30000
  check "$kind: the link goes down and comes up" 120 link_flap "$down" "$up"
}
checks_of siw 10.8.0.1 a1 'ip -n B link set b0 down' 'ip -n B link set b0 up'
checks_of rxe 10.9.0.1 r2 'ip link set r1 down; ip -n B link set r1 down' \
  'ip link set r1 up; ip -n B link set r1 up'
cp -r "$logs" /out/ 2>/dev/null
summarize 'vm nic'
