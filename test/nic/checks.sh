# shellcheck shell=bash disable=SC2154,SC2034
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks of test/nic/run.sh, in addition to those of test/clients/checks.sh, some of whose functions they replace. They
# also use softerdma, the library that simulates the NIC, from the environment.

# simulated COMMAND...: runs the command with its own simulated NIC, and fails if a rule of the NIC is broken.
simulated() {
  SOFTERDMA_DIR=$(mktemp -d) SOFTERDMA_REPORT=$log.violations
  export SOFTERDMA_DIR SOFTERDMA_REPORT
  : >"$SOFTERDMA_REPORT"
  "$@" || wrong "exit status $?"
  rm -rf "$SOFTERDMA_DIR"
  [ ! -s "$SOFTERDMA_REPORT" ] || { cat "$SOFTERDMA_REPORT"; wrong 'a rule of the adapter was broken'; }
}

# Runs programs on the simulated NIC; test/clients/checks.sh refuses calls instead.
refusing() { wrapper=(env "LD_PRELOAD=$softerdma"); }
warnings_match() { ! grep -q 'continuing by copy' "$log" || wrong 'shared memory was used'; }
stress() {
  env FI_LOG_LEVEL=warn FI_LOG_PROV="$provider" LD_PRELOAD="$softerdma" "$bin/$1" "${@:2}"
}
# Runs programs with a simulated GPU.
with_softcuda() {
  [ -e "$softcuda/libcuda.so.1" ] || skip "no simulated CUDA driver in $softcuda (make check builds it)"
  with LD_LIBRARY_PATH "$softcuda:${LD_LIBRARY_PATH:-}" "$@"
}
own_environment=("LD_PRELOAD=$softerdma")

# Checks by the counters at close that all bytes went through the NIC.
carried_by_provider() {
  [ "$provider" = erdma ] || return 0
  nic_bytes
  ! grep -q 'bytes through rings' "$log" || wrong 'shared memory was used'
}
nic_bytes() {
  local sums
  sums=$(grep -oE '[0-9]+ bytes in packets, [0-9]+ by RDMA READ, [0-9]+ by RDMA WRITE' "$log" |
    awk '{ p += $1; r += $5; w += $9 } END { printf "%.0f %.0f %.0f\n", p, r, w }')
  echo "# bytes in packets, by RDMA READ and by RDMA WRITE: ${sums:-none}"
  [ "${sums%% *}" -gt 0 ] 2>/dev/null || wrong 'nothing went through the NIC'
}

one_is_down() {
  needs fi_info
  SOFTERDMA_DIR=$(mktemp -d)
  export SOFTERDMA_DIR SOFTERDMA_DEVICES='erdma_0;erdma_1,ip=10.8.1.1,state=down'
  env FI_LOG_LEVEL=info FI_LOG_PROV="$provider" LD_PRELOAD="$softerdma" \
    fi_info -p "$provider" -v || wrong "exit status $?"
  rm -rf "$SOFTERDMA_DIR"
  grep -q 'name: erdma_0' "$log" || wrong 'the active adapter is not there'
  ! grep -q 'name: erdma_1' "$log" || wrong 'the adapter that is down is there'
  grep -qE 'erdma_1 is not used: port 1 .*is DOWN' "$log" || wrong 'the log does not say why'
}

# mpi_phases RANKS PHASE...: runs these phases of the MPI test.
mpi_phases() {
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  launch "$1" none '' "$bin/mpi_check" "${@:2}"
  grep -q "^mpi_check: .* on $1 ranks passed" "$log" || wrong 'no closing line'
  carried_by_provider none
}

# mpi_two_hosts RANKS [one_sided]: runs half of the ranks on each of two hosts, so that both paths are used.
mpi_two_hosts() {
  [ "$hosts" = yes ] || skip 'no network namespaces can be made here'
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  . "$top/test/lib/hosts.sh"
  use_hosts
  [ "${2:-}" != one_sided ] || use_one_sided
  # shellcheck disable=SC2016
  with_hosts bash -c 'top=$1 ranks=$2 bin=$3
    shift 3
    . "$top/test/lib/hosts.sh"
    on_host A mpirun --map-by node -H "A:$ranks,B:$ranks" -n "$ranks" -x LD_PRELOAD="$softerdma" \
      -x FI_LOG_LEVEL=info -x FI_LOG_PROV="$provider" "$bin/mpi_check" "$@"' _ "$top" "$1" \
    "$bin" "${@:2}" ||
    wrong "exit status $?"
  grep -q "^mpi_check: .* on $1 ranks passed" "$log" || wrong 'no closing line'
  grep -q 'bytes through rings' "$log" || wrong 'shared memory was not used within a host'
  nic_bytes
}

# unlike_hosts A B EXPRESSION...: runs two hosts whose adapters differ by a variable. They do not connect, and the log
# has the reason. Without an expression, they connect.
unlike_hosts() {
  [ "$hosts" = yes ] || skip 'no network namespaces can be made here'
  . "$top/test/lib/hosts.sh"
  local status=0 each
  # shellcheck disable=SC2016
  FI_ERDMA_CONNECT_TIMEOUT=1500 with_hosts bash -c 'top=$1 a=$2 b=$3
    . "$top/test/lib/common.sh"
    run=(env -u FI_LOG_LEVEL LD_PRELOAD="$softerdma" SOFTERDMA_TCP=1)
    ping=(fi_pingpong -p "$provider" -e rdm -c -I 5 -S 300000)
    ip netns exec A "${run[@]}" "$a" "${ping[@]}" -B 20000 & server=$!
    await_listener 20000 ip netns exec A || exit 2
    ip netns exec B "${run[@]}" "$b" "${ping[@]}" -P 20000 10.8.0.1 || { kill $server; exit 1; }
    wait $server' _ "$top" "$1" "$2" || status=$?
  shift 2
  [ "$status" = $(($# > 0)) ] || wrong "exit status $status"
  for each in "$@"; do grep -qE "$each" "$log" || wrong "the log does not say: $each"; done
}

# --- test/hardware/first-hour.sh, between two hosts
# first_hour STEPS PRELOAD PATH_OF_THE_CLIENT: runs the script; the report is then in $log.
first_hour() {
  [ "$hosts" = yes ] || skip 'no network namespaces can be made here'
  . "$top/test/lib/hosts.sh"
  local out
  out=$(mktemp -d)
  # shellcheck disable=SC2016
  SOFTERDMA_DIR=$out/nic top_builddir=${bin%/clients} with_hosts bash -c 'steps=$1 preload=$2 path=$3 top=$4 out=$5
    run=("$top/test/hardware/first-hour.sh" -t 100 -n "$steps")
    ip netns exec A env LD_PRELOAD="$preload" "${run[@]}" -o "$out/server" server & server=$!
    ip netns exec B env LD_PRELOAD="$preload" PATH="$path" "${run[@]}" -o "$out/client" client 10.8.0.1 &&
      wait $server' _ "$1" "$2" "$3" "$top" "$out" || wrong 'a side failed'
  cat "$out/client/report.md"
  [ -s "$out/client/raw.tar.gz" ] || wrong 'no raw output'
  rm -rf "$out"
}
# gives VERDICT ASSUMPTION [EVIDENCE]: checks a row of the report.
gives() {
  grep -E "^\| $2 \| \*\*$1\*\* " "$log" | grep -qF -- "${3:-}" || wrong "$2 is not «$1»"
}
# A NIC that flushes only half of the pending work requests, and a machine without rping.
first_hour_simulated() {
  local tools
  tools=$(mktemp -d)
  cp -s /usr/bin/* /usr/sbin/* "$tools/" 2>/dev/null
  rm "$tools/rping"
  SOFTERDMA_FLUSH=half first_hour limits,data,first_event,rping,revoked,flush,silent "$softerdma" "$tools"
  rm -rf "$tools"
  local each
  for each in adapter vendor regions transfers first_event revoked; do gives held $each; done
  gives 'does not hold' flush 'of 128 in 20 ms'
  gives 'not known' programs 'rping: there is no rping here'
  gives 'not known' costs 'costs: it was not asked for'
  gives 'not known' silent_peer 'security group'
}
# Without a NIC, no verdict is given.
first_hour_alone() {
  first_hour limits,forks,data,flush,region_4g,pingpong_tagged '' "$PATH"
  gives held fork
  gives 'not known' adapter
  gives 'not known' transfers
  gives 'not known' suite_pingpong_tagged
  [ "$(grep -cE '\*\*(held|does not hold)\*\*' "$log")" = 1 ] || wrong 'a verdict without an adapter'
}
