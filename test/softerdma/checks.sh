# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The checks of run.sh, with two hosts: servers run on 10.8.0.1, clients on 10.8.0.2.
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
ulimit -c 0
SOFTERDMA_DIR=$(mktemp -d "${TMPDIR:-/tmp}/softerdma.XXXXXX") || exit 1
SOFTERDMA_REPORT=$(mktemp) || exit 1
export SOFTERDMA_DIR SOFTERDMA_REPORT
trap 'cat "$SOFTERDMA_REPORT"; rm -rf "$SOFTERDMA_DIR" "$SOFTERDMA_REPORT"' EXIT

server_ip=10.8.0.1
# on HOST PERSONALITY COMMAND...: runs the command on host 1 or 2.
on() {
  local host=$1 personality=$2
  shift 2
  SOFTERDMA_DEVICES=${devices:-erdma_0,ip=10.8.0.$host} SOFTERDMA_PERSONALITY=$personality \
    LD_PRELOAD=$adapter "$@"
}
# said PATTERN FILE: checks that FILE has a line that matches.
said() { grep -qE "$1" "$2" || { echo "nothing like '$1' in:"; cat "$2"; return 1; }; }
clean() { [ ! -s "$SOFTERDMA_REPORT" ] || { echo 'rules were broken'; return 1; }; }
# left_nothing: checks that the last process has removed the state folder.
left_nothing() { [ ! -e "$SOFTERDMA_DIR/fabric" ] || { ls -lR "$SOFTERDMA_DIR"; return 1; }; }

devices() {
  on 1 "$1" ibv_devices >"$log.out" && said 'erdma_0[[:space:]]+[0-9a-f]{16}' "$log.out"
}
devinfo() {
  local transport='iWARP \(1\)'
  [ "$1" = standard ] || transport='InfiniBand \(0\)'
  on 1 "$1" ibv_devinfo >"$log.out" && said "transport:.*$transport" "$log.out" &&
    said 'vendor_id:.*0x1ded' "$log.out" && said 'vendor_part_id:.*4223' "$log.out" &&
    said 'active_mtu:.*1024' "$log.out" && said 'PORT_ACTIVE' "$log.out" && left_nothing
}
devinfo_down() {
  devices='erdma_0,ip=10.8.0.1;erdma_1,ip=10.8.1.1,state=down' on 1 standard ibv_devinfo >"$log.out" &&
    said 'erdma_1' "$log.out" && said 'PORT_DOWN' "$log.out" && said 'PORT_ACTIVE' "$log.out"
}

# pair PERSONALITY PORT SERVER... -- CLIENT...: checks that both succeed. Starts the client when the port is in use, in
# the kernel or in the simulation.
pair() {
  local personality=$1 port=$2 server=() pid status=0
  shift 2
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  on 1 "$personality" timeout -k 1 50 "${server[@]}" >"$log.server" 2>&1 &
  pid=$!
  for _ in $(seq 200); do
    [ -e "$SOFTERDMA_DIR/listen.$server_ip.$port" ] && break
    listens "$port" && break
    sleep 0.05
  done
  on 2 "$personality" timeout -k 1 50 "$@" >"$log.client" 2>&1 || status=1
  wait "$pid" || status=1
  [ "$status" = 0 ] || cat "$log.server" "$log.client"
  return "$status"
}

rc_pingpong() {
  local port
  port=$(free_port) || return 1
  pair compat "$port" ibv_rc_pingpong -e -g 1 -n 200 -p "$port" -- \
    ibv_rc_pingpong -e -g 1 -n 200 -p "$port" 127.0.0.1 &&
    said '200 iters in' "$log.client" && clean && left_nothing
}
# A thread of rping may still ask for an event when the main thread destroys the channel at the end. Up to version 45 of
# rdma-core this ends the program, on every device. Such a run shows nothing and is repeated.
rping_verified() {
  local port
  for _ in $(seq 20); do
    port=$(free_port) || return 1
    pair standard "$port" rping -s -V -v -C 20 -a "$server_ip" -p "$port" -- \
      rping -c -V -v -C 20 -a "$server_ip" -p "$port" && break
    grep -hxF 'rdma_get_cm_event: Bad file descriptor' "$log.client" "$log.server" || return 1
  done
  said 'rdma-ping-19' "$log.client" && said 'rdma-ping-19' "$log.server" && clean && left_nothing
}
# perftest PERSONALITY PROGRAM [OPTION...]: runs a program of perftest.
perftest() {
  local personality=$1 port target=127.0.0.1
  shift
  port=$(free_port) || return 1
  [ "$personality" = compat ] || target=$server_ip
  pair "$personality" "$port" "$@" -F -n 100 -p "$port" -- "$@" -F -n 100 -p "$port" "$target" &&
    said '^ *[0-9]+ +100 +[0-9.]+' "$log.client" && clean && left_nothing
}
# If the kernel refuses CMA, long data moves through /proc/PID/mem.
perftest_refused() {
  local port
  port=$(free_port) || return 1
  local command=("$refuse_cma" --calls readv,writev --errno EPERM ib_write_bw -F -n 100 -p "$port")
  pair compat "$port" "${command[@]}" -- "${command[@]}" 127.0.0.1 &&
    said '^ *65536 +100 +[0-9.]+' "$log.client" && left_nothing
}

swept() {
  local pid
  SOFTERDMA_DEVICES=erdma_0,ip=$server_ip LD_PRELOAD=$adapter rping -s -a "$server_ip" -p 7999 &
  pid=$!
  for _ in $(seq 200); do [ -e "$SOFTERDMA_DIR/listen.$server_ip.7999" ] && break; sleep 0.05; done
  kill -9 "$pid"
  wait "$pid"
  [ -e "$SOFTERDMA_DIR/fabric" ] || return 1
  on 1 standard ibv_devices && left_nothing
}

verbs_pingpong() {
  local port address
  read -r address _ < <(hostname -I)
  if [ -z "$address" ] || ! command -v fi_pingpong >/dev/null; then
    echo 'no fi_pingpong, or no address but the loopback'
    return 77
  fi
  port=$(free_port) || return 1
  # The device does not support more than one receive segment, or 256 inline bytes.
  export FI_VERBS_RX_IOV_LIMIT=1 FI_VERBS_INLINE_SIZE=64 SOFTERDMA_LOOPBACK=1
  local devices=erdma_0,ip=$address
  pair standard "$port" fi_pingpong -p verbs -e msg -I 20 -B "$port" -- \
    fi_pingpong -p verbs -e msg -I 20 -P "$port" "$address" &&
    said '^1m +20 +=20' "$log.client"
}
