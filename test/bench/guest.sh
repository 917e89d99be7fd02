#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest.sh TOP BIN PROVIDER_PATH ROUNDS: vm.sh runs it in the virtual machine. It runs fi_pair_bench and perftest
# between two hosts on the same NICs, in turn, and writes samples to /out.
set -u
top=$1 bin=$2 rounds=$4
export FI_PROVIDER=erdma FI_PROVIDER_PATH=$3 ERDMA_HOSTS=A,B
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/lib/hosts.sh
. "$top/test/lib/hosts.sh"
# shellcheck source=test/vm/adapters.sh
. "$top/test/vm/adapters.sh"
echo # ends a line of the console
make_adapters || exit 1
log=/out/guest.log
: >"$log"

# sample PEER KEY: records the value on standard input as a sample.
sample() { awk -v OFS='\t' -v r="$round" -v p="$1" -v k="$2" 'NF { print r, p, k, $1 }'; }

# Options to choose the NIC and the kind of connection: rdma_cm for iWARP. For rxe, rdma_cm works only in the first
# network namespace, so perftest uses its own TCP connection. The data path is the same.
# shellcheck disable=SC2034
siw=(-R) rxe=(-x 1)

# perftest PROGRAM OPTION...: prints the program's last line of numbers.
perftest() {
  local -n how=$kind
  local port=$((20000 + RANDOM % 12000)) server status=0
  ip netns exec A taskset -c 0 timeout 60 "$1" "${how[@]}" -d "${kind}A" -p $port "${@:2}" \
    >>"$log" 2>&1 & server=$!
  await_listener "$port" ip netns exec A || echo "$kind: the server of $1 does not listen" >&2
  ip netns exec B taskset -c 1 timeout 60 "$1" "${how[@]}" -d "${kind}B" -p $port "${@:2}" \
    "$address" 2>>"$log" | grep -E '^ *[0-9]+ +[0-9]+ +[0-9.]+' | tail -n 1
  wait $server || status=1
  [ $status = 0 ] || echo "$kind: $1 failed; see $log" >&2
}

for ((round = 1; round <= rounds; ++round)); do
  for each in siw,10.8.0.1 rxe,10.9.0.1; do
    kind=${each%,*} address=${each#*,}
    echo "# round $round, $kind"
    perftest ib_send_lat -s 8 -n 1000 | awk '{ print $5 }' | sample "$kind perftest" half_8
    FI_ERDMA_DEVICE=${kind}A,${kind}B timeout 120 "$bin/fi_pair_bench" emulated 2>>"$log" |
      while read -r key value; do sample "$kind erdma" "$key" <<<"$value"; done
    perftest ib_write_bw -s 1048576 -n 40 --report_gbits | awk '{ print $4 / 8 }' |
      sample "$kind perftest" bandwidth_1048576
  done
done
