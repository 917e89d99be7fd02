# shellcheck shell=bash disable=SC2154,SC2034
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks between the hosts of guest_nic.sh, in addition to those of test/clients/checks.sh. They also use top, profiles
# and python from the environment.
. "$top/test/lib/hosts.sh"
# shellcheck source=test/pods/checks.sh
. "$top/test/pods/checks.sh"

# on HOST COMMAND...: runs the command on a host; '' is the first namespace.
inside() { if [ -n "$1" ]; then ip netns exec "$@"; else "${@:2}"; fi; }
on() { inside "$1" env FI_LOG_LEVEL=info FI_LOG_PROV="$provider" "${@:2}"; }

# by_nic: checks by the counters at close that bytes left through a NIC.
by_nic() {
  [ "$provider" = erdma ] || return 0
  local sent
  sent=$(grep -oE '[0-9]+ bytes in packets' "$log" | awk '{ s += $1 } END { printf "%.0f\n", s }')
  echo "# bytes in packets through the NIC: $sent"
  [ "${sent:-0}" -gt 0 ] || wrong 'nothing went through the NIC'
}

# info_lists HOST DEVICE OTHER_DEVICE ADDRESS: checks the output of fi_info.
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

# two_users ADDRESS: checks that different users are connected by the NIC, not by shared memory.
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

# two_pods KIND ADDRESS PROFILE LINES WHY: runs a pod on each host and counts the lines on standard error.
two_pods() {
  [ -s "$profiles/$3.json" ] || skip 'there is no seccomp profile'
  local port=$((20000 + RANDOM % 12000)) server status=0
  local arguments=("$profiles/$3.json" 64m fi_pingpong -p "$provider" -e rdm -c -I 5 -S 300000)
  FI_ERDMA_DEVICE=${1}A inside A bash "$top/test/pods/pod.sh" "${arguments[@]}" -B "$port" & server=$!
  await_listener "$port" inside A || wrong 'the server does not listen'
  FI_ERDMA_DEVICE=${1}B inside B bash "$top/test/pods/pod.sh" "${arguments[@]}" -P "$port" "$2" || status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
  told "$4" "$5"
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

# across PROGRAM ARGUMENT...: runs the program, with its processes alternately on both hosts.
across() { ERDMA_HOSTS=A,B stress "$@"; }

# stopped_receiver SECONDS: stops the receiver until the sender's small queue is full.
stopped_receiver() {
  export FI_ERDMA_TX_SIZE=64
  across fi_stop_stress --seconds "$1" --messages 1000 || wrong "exit status $?"
  [ "$provider" != erdma ] || grep -qE ' [1-9][0-9]* refused with -FI_EAGAIN' "$log" ||
    wrong 'the sender never had to wait'
}

# link_flap DOWN UP: tests a link that goes down and up; DOWN and UP are the commands.
link_flap() {
  export FI_ERDMA_PEER_TIMEOUT=2000
  across fi_flap --command "$1; sleep 1; $2"
}

needs_fi_erdma() {
  fi_erdma=$(dirname "$bin")/prov/fi_erdma/fi_erdma
  [ -x "$fi_erdma" ] || skip "there is no $fi_erdma: configure lacked what it needs"
}
# as_machine HOST COMMAND...: runs the command on the host with a boot id of its own, so that hosts look like machines.
as_machine() {
  local id=/tmp/boot_id.$1
  cat /proc/sys/kernel/random/uuid >"$id"
  # shellcheck disable=SC2016
  on "$1" bash -c 'mount --bind "$1" /proc/sys/kernel/random/boot_id || exit 125; exec "${@:2}"' _ "$id" "${@:2}"
}
# doctors RUN ADDRESS: runs a doctor on A and on B, each started by RUN HOST; `status` is that of B.
doctors() {
  local run=$1 port server served=0
  needs_fi_erdma
  port=$((20000 + RANDOM % 12000))
  "$run" A "$fi_erdma" doctor --serve -P "$port" -T 240 & server=$!
  await_listener "$port" inside A || wrong 'the server does not listen'
  status=0
  "$run" B "$fi_erdma" doctor --peer "$2" -P "$port" -T 240 >"$log.doctor" || status=$?
  wait "$server" || served=$?
  cat "$log.doctor"
  [ "$served" = 0 ] || wrong "the side that serves: exit status $served"
}
# has EXPRESSION...: checks that the output of the doctor matches.
has() {
  local each
  for each in "$@"; do grep -qE "$each" "$log.doctor" || wrong "the doctor does not say: $each"; done
}
moved='arrive both ways \(1 MiB: .*iB/s\), by NIC'

# two_machines ADDRESS: checks bytes, their speed and the MTU of both machines, with rxe.
two_machines() {
  doctors as_machine "$1"
  has 'rxeB \(r1, MTU 1500\) here, rxeA \(r0, MTU 1500\) there' "messages $moved" "RMA writes $moved" "RMA reads $moved"
  ! grep -q W205 "$log.doctor" || wrong 'they were taken for one host'
  [ "$status" = 0 ] || wrong "exit status $status"
}
# two_mtus ADDRESS: checks the report of different MTUs, with rxe.
two_mtus() {
  ip -n B link set r1 mtu 1400
  doctors as_machine "$1"
  ip -n B link set r1 mtu 1500
  has 'SLOW .*the MTU differs: rxeB \(r1, MTU 1400\) here, rxeA \(r0, MTU 1500\) there  \[W215\]' "RMA reads $moved"
  [ "$status" = 1 ] || wrong "exit status $status"
}
# two_containers ADDRESS: checks two network namespaces of one kernel.
two_containers() {
  doctors on "$1"
  has "SLOW .*messages $moved.*: the other side is a process of this host  \[W205\]" 'only one network namespace'
  [ "$status" = 1 ] || wrong "exit status $status"
}

# a_doctor_alone HOST DEVICE: checks that the doctor finds the device and its interface.
a_doctor_alone() {
  needs_fi_erdma
  on "$1" "$fi_erdma" doctor --for openmpi >"$log.doctor"
  cat "$log.doctor"
  has "ok    $2 \(.*, MTU [0-9]+\): messages, zero copy and R.* arrive"
}

# benched ADDRESS SIZES: checks that the statistics pages of both sides show the bytes that the sides counted themselves,
# plus announcing packets of at most 128 bytes.
benched() {
  local port server
  needs_fi_erdma
  port=$((20000 + RANDOM % 12000))
  on A "$fi_erdma" bench --serve -P "$port" -S "$2" & server=$!
  await_listener "$port" inside A || wrong 'the server does not listen'
  on B "$fi_erdma" bench -j --peer "$1" -P "$port" -S "$2" --expect nic >"$log.bench" ||
    wrong "exit status $?"
  wait "$server" || wrong "the side that serves: exit status $?"
  cat "$log.bench"
  python3 - "$log.bench" <<'P' || wrong 'the pages do not count what the sides did'
import json, sys
seen = json.load(open(sys.argv[1], encoding="utf-8"))
told = sum(seen["paths"][x] for x in ["nic_packet_bytes", "nic_read_bytes", "nic_write_bytes"])
operations = 2 * sum(s["operations"] for s in seen["sizes"]) + 2 * 4 * 4 * len(seen["sizes"])
print(f"# {seen['payload']} bytes by the sides, {told} by the pages, {operations} operations")
sys.exit(not seen["payload"] <= told <= seen["payload"] + 2 * 128 * operations)
P
}

# kernel_counts DEVICE COUNTER: checks that the block at the end of `stat -l` has the number of the kernel; '' = none. The
# kernel shows it only in the first namespace.
kernel_counts() {
  local file=/sys/class/infiniband/$1/ports/1/hw_counters/$2 wanted=- shown
  needs_fi_erdma
  [ -z "$2" ] || wanted=$(cat "$file")
  "$fi_erdma" stat -l -i 0.1 -n 1 -d "$1" >"$log.stat" || wrong "exit status $?"
  cat "$log.stat"
  shown=$(sed -n "s/^ packets .*| *//p" "$log.stat")
  [ "$shown" = "$wanted" ] || wrong "packets sent: $shown, and the kernel says $wanted"
  [ -z "$2" ] || [ "$wanted" -gt 0 ] || wrong 'nothing was sent'
}

# hung DEVICE_OF_A DEVICE_OF_B: checks that `fi_erdma hang` names the rank for which a rank on another host waits.
hung() {
  needs_fi_erdma
  local rank
  rank=$(dirname "$bin")/test/fi_erdma/rank
  [ -x "$rank" ] || skip "there is no $rank"
  python3 "$top/test/vm/hang_nic.py" "$fi_erdma" "$rank" "$1" "$2" ||
    wrong 'fi_erdma hang does not name the rank for which the other one waits'
}
