#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/vm/run.sh cma|nic|erdma|erdma-long|fork|hardware|hardware-erdma [PART-OF-A-NAME]: tests the provider in a
# virtual machine: cma, with a kernel that refuses CMA for various reasons (Yama, namespaces, users); nic,
# between two hosts with kernel RDMA devices; erdma, with the driver of the eRDMA NIC on a model of the NIC;
# erdma-long, the same with each setting of the model; fork, with a kernel that does not copy registered memory
# for the child of a fork; hardware and hardware-erdma, test/hardware/first-hour.sh on
# the devices of nic and of erdma. Prints "PASS: name", "FAIL: name", "SKIP: name". Logs: $top_builddir/vm.
set -u
case ${1:-} in
  cma) guest=guest.sh options=() ;;
  nic) guest=guest_nic.sh options=(-r) ;;
  erdma) guest=guest_erdma.sh options=(-e) ;;
  erdma-long) guest=guest_erdma_long.sh options=(-e) ;;
  fork) guest=guest_fork.sh options=(-f) ;;
  hardware) guest=guest_hardware.sh options=(-r) ;;
  hardware-erdma) guest=guest_hardware_erdma.sh options=(-e) ;;
  *) sed -n '3,8p' "$0"; exit 2 ;;
esac
part=${2:-} what=$1
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
build=${top_builddir:-$top/build}
[ -n "${FI_PROVIDER:-}" ] || use_build "$build"
here=$top/test/clients bin=$build/clients
mkdir -p "$bin/logs" "$build/vm" || exit 1
# shellcheck source=test/clients/build.sh
. "$here/build.sh"
build_clients >"$bin/logs/build.log" 2>&1 || { tail -n 20 "$bin/logs/build.log"; echo 'FAIL: build'; exit 1; }
"${CC:-cc}" -shared -fPIC "$top/test/vm/not_dumpable.c" -o "$bin/not_dumpable.so"
programs=()
case $what in
  hardware*) programs=(test/hardware/probe) ;;
  fork) programs=(test/transport/verbs_{memory_changes,single_uses}_test) ;;
  # Where configure lacked what fi_erdma needs, there is no fi_erdma, and the checks of it are skipped.
  nic) [ ! -x "$build/prov/fi_erdma/fi_erdma" ] || programs=(test/fi_erdma/rank) ;;
esac
[ ${#programs[@]} = 0 ] || make -C "$build" "${programs[@]}" >>"$bin/logs/build.log" 2>&1 ||
  { tail -n 20 "$bin/logs/build.log"; echo 'FAIL: build'; exit 1; }
python=$(python_with_mpi) || python=
if [ "$what" = nic ]; then
  # shellcheck source=test/pods/profile.sh
  profiles=$build/vm/pods && . "$top/test/pods/profile.sh"
  mkdir -p "$profiles"
  { python=$(python_with_seccomp) && default_profile && more_profile; } >"$bin/logs/profile.log" 2>&1 ||
    rm -f "$profiles"/*.json
fi

mkdir -p "$build/vm/$what"
output=$build/vm/$what/output
bash "$top/test/vm/vm.sh" "${options[@]}" -t "${ERDMA_VM_SECONDS:-1800}" -o "$build/vm/$what" \
  "$top/test/vm/$guest" "$top" "$bin" "${python:-none}" "${FI_PROVIDER_PATH:-}" "$FI_PROVIDER" \
  "$part" >"$output" 2>&1
status=$?
tr -d '\r' <"$output" | grep -E '^(PASS|FAIL|SKIP): |^  \| |^# '
case $status in
  0)
    if ! tr -d '\r' <"$output" | grep -qE '^(PASS|SKIP): '; then
      echo "FAIL: virtual machine (no check ran: $(tail -n 1 "$output"))"
      status=1
    fi
    ;;
  77) echo "SKIP: virtual machine ($(tail -n 1 "$output"))" ;;
  125) echo "FAIL: virtual machine ($(tail -n 1 "$output"))" ;;
esac
exit $status
