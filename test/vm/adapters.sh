# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# RDMA adapters of the two hosts that test/lib/hosts.sh makes, which is sourced before: each has a siw
# and an rxe adapter, and A one of each besides whose port is down. In the machine of vm.sh -r.

# siw: between the hosts' own links; a1 stays down.
add_siw() {
  ip -n A link add a1 type dummy
  ip -n A addr add 10.8.1.1/24 dev a1
  ip netns exec A rdma link add siwA type siw netdev a0 &&
    ip netns exec B rdma link add siwB type siw netdev b0 &&
    ip netns exec A rdma link add siwC type siw netdev a1
}

# rxe of this kernel sends and receives in the first network namespace only (rxe_net.c says init_net,
# so ib_send_lat between rxe adapters of other namespaces fails too). So its frames pass between r0 and
# r1 there, really from one to the other: the route is looked up with the interface to leave by, and
# accept_local takes what comes from an address of the same host. Every namespace may open the adapters;
# r0 of A and r1 of B, a pair of their own, carry TCP between the same addresses, and have the same
# indices, by which an adapter names its interface. r2 stays down.
add_rxe() {
  local each
  ip link add r0 mtu 4200 index 50 type veth peer name r1 mtu 4200 index 51 &&
    ip -n A link add r0 index 50 type veth peer name r1 index 51 &&
    ip -n A link set r1 netns B &&
    ip link add r2 index 52 type dummy || return
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
  for each in A,r0 B,r1 C,r2; do
    rdma link add "rxe${each%,*}" type rxe netdev "${each#*,}" || return
  done
}

# all_active PORTS: until so many are up, of which no event tells a script.
all_active() {
  for _ in $(seq 50); do
    [ "$(rdma link show | grep -c 'state ACTIVE')" -ge "$1" ] && return
    sleep 0.1
  done
  rdma link show
  return 1
}

make_adapters() { make_hosts && add_siw && add_rxe && all_active 4; }
