# shellcheck shell=bash disable=SC2154,SC2034
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks between the hosts of guest_nic.sh; beside those of test/clients/checks.sh. From the
# environment besides: top.
. "$top/test/lib/hosts.sh"

# on HOST COMMAND...: '' = in the first namespace.
inside() { if [ -n "$1" ]; then ip netns exec "$@"; else "${@:2}"; fi; }
on() { inside "$1" env FI_LOG_LEVEL=info FI_LOG_PROV="$provider" "${@:2}"; }

# by_nic: the counters at close say that bytes left through an adapter.
by_nic() {
  [ "$provider" = erdma ] || return 0
  local sent
  sent=$(grep -oE '[0-9]+ bytes in packets' "$log" | awk '{ s += $1 } END { printf "%.0f\n", s }')
  echo "# bytes in packets through the NIC: $sent"
  [ "${sent:-0}" -gt 0 ] || wrong 'nothing went through the NIC'
}

# info_lists HOST DEVICE OTHER_DEVICE ADDRESS
info_lists() {
  on "$1" fi_info -p "$provider" -v
  grep -q "name: $2" "$log" || wrong "no $2"
  ! grep -q "name: $3" "$log" || wrong "$3 is not this host's"
  grep -q "src_addr: fi_sockaddr_in://$4:0" "$log" || wrong 'not the IP of the adapter'
}

# one_is_down UP DOWN NETDEV_OF_DOWN
one_is_down() {
  FI_ERDMA_DEVICE=$1,$2 on A fi_info -p "$provider"
  [ "$(grep -c 'domain: ' "$log")" = 1 ] || wrong 'not exactly one'
  grep -q "domain: $1" "$log" || wrong 'not the one that is up'
  grep -qE "$2 is not used: port 1 \($3\) is DOWN" "$log" || wrong 'the log does not say why'
}

# ping_pair SERVER_HOST CLIENT_HOST ADDRESS OPTION...
ping_pair() {
  local server_host=$1 client_host=$2 address=$3 port server status=0
  shift 3
  port=$((20000 + RANDOM % 12000))
  on "$server_host" fi_pingpong -p "$provider" -e rdm -c "$@" -B "$port" & server=$!
  await_listener "$port" inside "$server_host" || wrong 'the server does not listen'
  on "$client_host" fi_pingpong -p "$provider" -e rdm -c "$@" -P "$port" "$address" || status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
  by_nic
}
# between_hosts ADDRESS KIND_OF_MESSAGE SIZES
between_hosts() { ping_pair A B "$1" -m "$2" -I 5 -S "$3"; }
# own_loop HOST ADDRESS SIZES
own_loop() {
  export FI_ERDMA_SHM=off
  ping_pair "$1" "$1" "$2" -m tagged -I 5 -S "$3"
}

# two_users ADDRESS: shared memory does not connect different users; the NIC does.
two_users() {
  local port=$((20000 + RANDOM % 12000)) server status=0
  local arguments=(fi_pingpong -p "$provider" -e rdm -c -I 5 -S 300000)
  on A setpriv --reuid=1000 --regid=1000 --clear-groups "${arguments[@]}" -B "$port" & server=$!
  await_listener "$port" inside A || wrong 'the server does not listen'
  on A setpriv --reuid=1001 --regid=1001 --clear-groups "${arguments[@]}" -P "$port" "$1" ||
    status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
  grep -q 'cannot be reached through shared memory' "$log" || wrong 'the log does not say why'
  by_nic
}

# mpi_hosts RANKS PHASE...
mpi_hosts() {
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  local ranks=$1
  shift
  on_host A mpirun --map-by node -H "A:$ranks,B:$ranks" -n "$ranks" -x FI_LOG_LEVEL=info \
    -x FI_LOG_PROV="$provider" "$bin/mpi_check" "$@" || wrong "exit status $?"
  grep -q "^mpi_check: .* on $ranks ranks passed" "$log" || wrong 'no closing line'
  grep -q 'bytes through rings' "$log" || wrong 'nothing went through shared memory'
  by_nic
}

# across PROGRAM ARGUMENT...: its processes take turns on the hosts.
across() { ERDMA_HOSTS=A,B stress "$@"; }

# stopped_receiver SECONDS: few sends in flight are enough for the sender to meet the end of its room.
stopped_receiver() {
  export FI_ERDMA_TX_SIZE=64
  across fi_stop_stress --seconds "$1" --messages 1000 || wrong "exit status $?"
  [ "$provider" != erdma ] || grep -qE ' [1-9][0-9]* refused with -FI_EAGAIN' "$log" ||
    wrong 'the sender never had to wait'
}

# link_flap DOWN UP: commands that take the link away and give it back.
link_flap() {
  export FI_ERDMA_PEER_TIMEOUT=2000
  across fi_flap --command "$1; sleep 1; $2"
}
