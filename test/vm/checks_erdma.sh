# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks of guest_erdma.sh, in addition to those of checks_nic.sh. They also use ERDMA_VM_MODULES (vm.sh) from the
# environment.
# shellcheck source=test/vm/checks_nic.sh
. "$top/test/vm/checks_nic.sh"

# Waits until there are two devices: a work queue probes the driver, and scripts get no event.
two_links() {
  local _
  for _ in $(seq 100); do
    [ "$(rdma link show | grep -c '^link erdma')" -eq 2 ] && return
    sleep 0.1
  done
  rdma link show
  return 1
}

# load_modules [NAME=VALUE...]: loads the driver and the model, with these parameters.
load_modules() {
  lsmod | grep -q '^erdma ' || insmod "$ERDMA_VM_MODULES/erdma.ko" || return
  insmod "$ERDMA_VM_MODULES/ermodel.ko" base=0xa0000000 mac=52:54:00:ed:00:0a,52:54:00:ed:00:0b "$@" &&
    two_links
}

# Creates two hosts, each with one of the machine's NICs and its RDMA device.
make_pair() {
  local host
  ip netns add A && ip netns add B || return
  ip link set eth0 netns A name a0 && ip link set eth1 netns B name b0 || return
  ip -n A addr add 10.10.0.1/24 dev a0
  ip -n B addr add 10.10.0.2/24 dev b0
  for host in A B; do ip -n $host link set lo up; done
  ip -n A link set a0 up && ip -n B link set b0 up
}

# Moves the interfaces back to the first namespace and deletes the hosts.
unmake_pair() {
  ip -n A link set a0 netns 1 name eth0 && ip -n B link set b0 netns 1 name eth1 || return
  ip netns del A && ip netns del B
}

two_devices() {
  if ! ip link set eth0 up || ! ip link set eth1 up; then wrong 'the interfaces are not there'; fi
  ibv_devinfo -v
  [ "$(grep -c 'transport:.*iWARP' "$log")" = 2 ] || wrong 'not two iWARP devices'
  [ "$(grep -c 'state:.*PORT_ACTIVE' "$log")" = 2 ] || wrong 'not two active ports'
  [ "$(grep -c 'vendor_id:.*0x1ded' "$log")" = 2 ] || wrong 'not the vendor'
}

reload() {
  local round
  for round in $(seq "$1"); do
    rmmod ermodel || wrong "round $round: rmmod"
    load_modules || wrong "round $round: insmod"
  done
}

# between_programs PORT SIDE...: runs "SIDE... server" on host A, and when it listens "SIDE... client" on host B.
between_programs() {
  local port=$1 server status=0 _
  shift
  "$@" server & server=$!
  for _ in $(seq 200); do
    listens "$port" inside A && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  listens "$port" inside A || {
    kill "$server" 2>/dev/null
    wrong 'the server does not listen'
  }
  ("$@" client) || {
    status=1
    sleep 1 # the server may be about to say why
    kill "$server" 2>/dev/null
  }
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
}

rping_side() {
  case $1 in
    server) exec ip netns exec A timeout --foreground 50 rping -s -a 10.10.0.1 -v -C 10 ;;
    client) exec ip netns exec B timeout --foreground 40 rping -c -a 10.10.0.1 -v -C 10 ;;
  esac
}

# perftest_side PROGRAM OPTION... SIDE: runs one side of a program of perftest.
perftest_side() {
  local side=${*: -1} host=A device=erdma_0 peer=
  [ "$side" = server ] || host=B device=erdma_1 peer=10.10.0.1
  # With --foreground, timeout stays in the process group of the check and ends with it.
  # shellcheck disable=SC2086
  exec ip netns exec $host timeout --foreground 350 "${@:1:$#-1}" -R -d $device $peer
}
# without_calibration PROGRAM: prints the path of a modified copy. perftest compares two clocks before it reports.
# If their correlation is below 0.9, as in a machine without KVM, a bandwidth test ends
# without a message to its peer, whose work is flushed. The copy has 0 instead of its only constant 0.9.
without_calibration() {
  local copy=/tmp/$1
  perl -0777 -pe 's/\xcd\xcc{5}\xec\x3f/\0\0\0\0\0\0\0\0/' "$(command -v "$1")" >"$copy"
  chmod +x "$copy"
  echo "$copy"
}
# The kernel limits connecting to 10 s, in which perftest's server fills its memory. This may be too short on
# a busy host. With -R both sides connect twice, and the client may be too early for the second time: the device rejects
# it.
perftest() {
  local program output status _
  program=$(without_calibration "$1")
  shift
  for _ in 1 2 3; do
    status=0
    output=$(between_programs 18515 perftest_side "$program" "$@" 2>&1) || status=1
    echo "$output"
    [[ $status = 1 && $output =~ RDMA_CM_EVENT_(UNREACHABLE|REJECTED) ]] || break
  done
  return $status
}

# Some functions change what later checks use. An EXIT trap of the check's own shell restores it, also when the limit of
# the check ends that shell with SIGTERM: bash runs the trap at once, and the next check begins when this shell has ended.
# The trap of a subshell would run while the next check begins, and a trap for TERM waits for the command that runs.

# with_setting NAME=VALUE COMMAND...: runs the command with a setting of the model, as the last one of its shell.
with_setting() {
  setting=/sys/module/ermodel/parameters/${1%%=*}
  value=$(cat "$setting") || wrong "there is no $setting"
  trap 'echo "$value" >"$setting"' EXIT
  echo "${1#*=}" >"$setting"
  (shift && "$@")
}

# load_anew [NAME=VALUE...]: reloads the model with these parameters.
load_anew() { unmake_pair && rmmod ermodel && load_modules "$@" && make_pair; }
# with_limit NAME=VALUE COMMAND...: runs the command with a parameter that the driver reads only when it finds a device.
with_limit() {
  local status=0
  load_anew "$1" || wrong "$1 is not loaded"
  (shift && "$@") || status=$?
  load_anew || wrong 'the model is not loaded again without it'
  return $status
}

# busy_vectors: prints each completion vector that had interrupts, with their number.
busy_vectors() {
  awk '/erdma-ceq/ { sum = 0; for (i = 2; $i ~ /^[0-9]+$/; ++i) sum += $i; if (sum) print $NF, sum }' /proc/interrupts
}
# spread_over VECTORS COMMAND...: checks that after the command at least this number of vectors had interrupts.
spread_over() {
  local busy
  "${@:2}" || return
  busy=$(busy_vectors)
  echo "$busy"
  [ "$(wc -l <<<"$busy")" -ge "$1" ] || wrong "fewer than $1 vectors had an interrupt"
}

# The model moves bytes whatever the state of the interface, so it loses each work request while the interface is down.
link_loses_packets() {
  local loss=/sys/module/ermodel/parameters/loss
  link_flap "ip -n B link set b0 down; echo 1 >$loss" "echo 0 >$loss; ip -n B link set b0 up"
}

# --- connects that the network hinders; what must hold is in fi_connects
# connects MODE [LINE]...: runs fi_connects between the hosts; $log.run, the output of the last run, must have each line.
# On a busy host any call may take long, so of runs that miss only a limit of time (status 3) one of three must hold. A
# call that waits for the network does so in each. Any other failure is final.
connects() {
  local each status
  for each in 1 2 3; do
    status=0
    # Not a pipe: a call that writes to the log could wait for its reader.
    ERDMA_HOSTS=A,B env FI_LOG_LEVEL=info FI_LOG_PROV="$provider" "$bin/fi_connects" "$1" >"$log.run" 2>&1 || status=$?
    cat "$log.run"
    [ $status = 3 ] || break
  done
  [ $status = 0 ] || return
  for each in "${@:2}"; do grep -qE "$each" "$log.run" || return; done
}
# Of 40 ports, TCP sockets have 20.
taken_ports() {
  range=/proc/sys/net/ipv4/ip_local_port_range
  before=$(inside A cat $range) || wrong "there is no $range"
  trap 'echo "$before" | inside A tee $range' EXIT
  echo '40000 40039' | inside A tee $range
  connects taken || wrong 'not all connects succeeded'
  [ "$(grep -c 'a connect to .* got a port that is taken' "$log.run")" -ge 10 ] || wrong 'hardly a port was taken'
}
# Packets to B go to a MAC that nobody has.
unanswered() {
  trap 'ip -n A neigh del 10.10.0.2 dev a0' EXIT
  ip -n A neigh replace 10.10.0.2 lladdr 52:54:00:ed:00:ff nud permanent dev a0
  FI_ERDMA_CONNECT_TIMEOUT=2000 connects unanswered || wrong 'a call waited for the peer, or failed'
}
# A packet takes 200 ms each way.
crossing() {
  trap 'ip netns exec A tc qdisc del dev a0 root; ip netns exec B tc qdisc del dev b0 root' EXIT
  ip netns exec A tc qdisc add dev a0 root netem delay 200ms &&
    ip netns exec B tc qdisc add dev b0 root netem delay 200ms || wrong 'there is no netem'
  connects crossing || wrong 'a call waited for the peer, or failed'
}
nobody_there() {
  FI_ERDMA_CONNECT_TIMEOUT=1000 connects nobody 'nobody listens at 10\.10\.0\.2' \
    'cannot connect to .*10\.10\.0\.2.*: Connection refused' || wrong 'the error is late or misleading'
}

few_orders() { across fi_order --messages 300 --batches 2 "$@"; }
# suite: what must pass with each setting of the model.
suite() {
  (ping_pair A B 10.10.0.1 -m tagged -I 2 -S all) && (mpi_hosts 4 datatypes broadcast reductions) && few_orders &&
    across fi_kill_stress --rounds 2 --limit-ms 60000
}

# killed_for SECONDS: kills processes for this time.
killed_for() {
  local end=$((SECONDS + $1)) rounds=0
  while [ $SECONDS -lt $end ]; do
    across fi_kill_stress --rounds 4 --limit-ms 60000 --seed $((4711 + rounds)) || wrong "after $rounds rounds"
    rounds=$((rounds + 4))
  done
  echo "# $rounds processes killed"
}

no_warning() {
  dmesg | grep -E 'WARNING|BUG|Call Trace|refcount|ermodel:.*(broken|lost)' && wrong 'the kernel warned'
  rdma link show
}
