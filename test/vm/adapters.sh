# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Creates RDMA devices for the two hosts of test/lib/hosts.sh, which must be sourced before: each host gets a siw
# and an rxe device, and host A one more of each, with its port down. Runs in the machine of vm.sh -r.

# siw uses the links between the hosts; a1 stays down.
add_siw() {
  ip -n A link add a1 type dummy
  ip -n A addr add 10.8.1.1/24 dev a1
  # Large frames as in Alibaba Cloud: with frames of 1500 bytes an emulated processor takes twice as long.
  ip -n A link set a0 mtu 8500; ip -n B link set b0 mtu 8500
  ip netns exec A rdma link add siwA type siw netdev a0 &&
    ip netns exec B rdma link add siwB type siw netdev b0 &&
    ip netns exec A rdma link add siwC type siw netdev a1
}

# rxe of this kernel sends and receives only in the first network namespace (rxe_net.c uses init_net, so
# ib_send_lat between rxe devices of other namespaces fails too). Therefore its frames pass between r0 and
# r1 in the first namespace. They really go from one to the other: the route lookup names the interface, and
# accept_local accepts packets from an address of the same host. Every namespace may open the devices.
# r0 of A and r1 of B, a separate pair, carry TCP between the same addresses, and have the same
# indices, by which a device names its interface. r2 stays down.
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

# all_active PORTS: waits until this number of ports is up; scripts get no event.
all_active() {
  for _ in $(seq 50); do
    [ "$(rdma link show | grep -c 'state ACTIVE')" -ge "$1" ] && return
    sleep 0.1
  done
  rdma link show
  return 1
}

make_adapters() { make_hosts && add_siw && add_rxe && all_active 4; }
