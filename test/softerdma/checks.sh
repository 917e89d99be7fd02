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
# on HOST PERSONALITY COMMAND...: runs the command on host 1 or 2. exec_on does so in place of the shell.
on() { (exec_on "$@"); }
exec_on() {
  export SOFTERDMA_DEVICES=${devices:-erdma_0,ip=10.8.0.$1} SOFTERDMA_PERSONALITY=$2
  shift 2
  exec env LD_PRELOAD="$adapter" "$@"
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

# listens_to_cm PORT: status 0 if a server on host 1 listens at the port of rdma_cm.
listens_to_cm() { [ -e "$SOFTERDMA_DIR/listen.$server_ip.$1.listens" ]; }
# await_server PID PORT: waits until the process listens at the port, in the kernel or in the simulation; 20 s at most.
await_server() {
  for _ in $(seq 400); do
    if listens_to_cm "$2" || listens "$2"; then return 0; fi
    kill -0 "$1" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}
# end_server PID: ends a server whose client has failed. It may be about to say why.
end_server() {
  for _ in $(seq 20); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.05
  done
  kill "$1" 2>/dev/null
}
# pair PERSONALITY PORT SERVER... -- CLIENT...: checks that both succeed.
pair() {
  local personality=$1 port=$2 server=() pid status=0
  shift 2
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  : >"$log.client"
  exec_on 1 "$personality" timeout -k 1 50 "${server[@]}" >"$log.server" 2>&1 &
  pid=$!
  if await_server "$pid" "$port"; then
    on 2 "$personality" timeout -k 1 50 "$@" >"$log.client" 2>&1 || status=1
  else
    echo 'the server does not listen'
    status=1
  fi
  [ "$status" = 0 ] || end_server "$pid"
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
    if pair standard "$port" rping -s -V -v -C 20 -a "$server_ip" -p "$port" -- \
      rping -c -V -v -C 20 -a "$server_ip" -p "$port"; then
      said 'rdma-ping-19' "$log.client" && said 'rdma-ping-19' "$log.server" && clean && left_nothing
      return
    fi
    grep -hxF 'rdma_get_cm_event: Bad file descriptor' "$log.client" "$log.server" || return 1
  done
  return 1
}
# too_early: status 0 if the client of perftest connected before the server listened again. With -R both connect twice,
# and nothing makes the client wait before the second time. The device rejects it, and perftest 4.5 ends in its second
# try by using the id that it has freed. Such a run shows nothing and is repeated.
too_early() {
  grep -qxF 'Event: RDMA_CM_EVENT_REJECTED; error: -104.' "$log.client" &&
    ! grep -qE '^ *[0-9]+ +100 +[0-9.]+' "$log.client"
}
# perftest PERSONALITY PROGRAM [OPTION...]: runs a program of perftest. The client's commands take longer, so that the
# server is seldom late.
perftest() {
  local personality=$1 port target=127.0.0.1
  shift
  [ "$personality" = compat ] || target=$server_ip
  for _ in 1 2 3; do
    port=$(free_port) || return 1
    if pair "$personality" "$port" "$@" -F -n 100 -p "$port" -- \
      env SOFTERDMA_COMMAND_US=20000 "$@" -F -n 100 -p "$port" "$target"; then
      said '^ *[0-9]+ +100 +[0-9.]+' "$log.client" && clean && left_nothing
      return
    fi
    too_early || return 1
  done
  return 1
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
  for _ in $(seq 200); do listens_to_cm 7999 && break; sleep 0.05; done
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
