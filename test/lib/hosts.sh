# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Two simulated hosts on one machine: network namespaces A (10.8.0.1) and B (10.8.0.2), connected by a veth pair.
# The caller sets `top`.

# make_hosts: creates the hosts. Needs root in this network namespace and a writable /run.
make_hosts() {
  local host
  ip netns add A && ip netns add B || return
  ip link add a0 type veth peer name b0 || return
  ip link set a0 netns A && ip link set b0 netns B || return
  ip -n A addr add 10.8.0.1/24 dev a0
  ip -n B addr add 10.8.0.2/24 dev b0
  for host in A B; do ip -n $host link set lo up; done
  ip -n A link set a0 up
  ip -n B link set b0 up
}

# can_make_hosts: status 0 if with_hosts works here.
can_make_hosts() {
  command -v ip >/dev/null && with_hosts true >/dev/null 2>&1
}

# with_hosts COMMAND...: runs COMMAND with two hosts that no other process sees and that end with
# it. A user other than root gets the rights in a user namespace, if the kernel permits that.
with_hosts() {
  local as=()
  unshare -m -n true 2>/dev/null || as=(-U -r)
  # shellcheck disable=SC2016
  unshare "${as[@]}" -m -n bash -c 'top=$1
    . "$top/test/lib/hosts.sh"
    mount -t tmpfs run /run && make_hosts || exit 77
    shift
    exec "$@"' _ "$top" "$@"
}

# on_host HOST COMMAND...: runs COMMAND on the host, under its host name, by which MPI distinguishes
# hosts.
on_host() { bash "$top/test/lib/agent.sh" "$1" "$(printf '%q ' "${@:2}")"; }

# use_hosts: lets mpirun on host A reach B without ssh. Needs common.sh.
use_hosts() {
  use_agent "$top/test/lib/agent.sh"
  export OMPI_MCA_oob_tcp_if_include=10.8.0.0/24 OMPI_MCA_btl=self
}
