#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/vm/run.sh [PART-OF-A-NAME]: the provider where a kernel refuses CMA for reasons of its own
# (Yama, namespaces, users), in a virtual machine. Prints "PASS: name", "FAIL: name", "SKIP: name".
# Logs of the checks: $top_builddir/vm.
set -u
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
python=$(python_with_mpi) || python=

output=$build/vm/output
bash "$top/test/vm/vm.sh" -t "${ERDMA_VM_SECONDS:-540}" -o "$build/vm" "$top/test/vm/guest.sh" \
  "$top" "$bin" "${python:-none}" "${FI_PROVIDER_PATH:-}" "$FI_PROVIDER" "${1:-}" >"$output" 2>&1
status=$?
tr -d '\r' <"$output" | grep -E '^(PASS|FAIL|SKIP): |^  \| |^# '
case $status in
  77) echo "SKIP: virtual machine ($(tail -n 1 "$output"))" ;;
  125) echo "FAIL: virtual machine ($(tail -n 1 "$output"))" ;;
esac
exit $status
