#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest_hardware.sh TOP BIN PYTHON PROVIDER_PATH PROVIDER [PART-OF-A-NAME]: `run.sh hardware` runs it in
# the machine: test/hardware/first-hour.sh between two hosts with siw, as it would run between two rented
# instances; with modelled=yes, on the kernel's own erdma.ko and the model of the NIC (`run.sh
# hardware-erdma`).
# shellcheck disable=SC2034
set -u
export here=$1/test/clients bin=$2 provider=$5
filter=${6:-}
export top=$1 more_checks=$1/test/vm/checks_hardware.sh
export TMPDIR=/tmp
logs=/tmp/vm-logs
mkdir -p "$logs"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
echo # ends a line of the console
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd # nothing else creates it in this machine

if [ -n "${modelled:-}" ]; then
  # shellcheck source=test/vm/checks_erdma.sh
  . "$top/test/vm/checks_erdma.sh"
  kind=erdma address=10.10.0.1
  if ! load_modules || ! make_pair; then echo 'FAIL: two hosts with modelled adapters'; exit 1; fi
else
  # shellcheck source=test/lib/hosts.sh
  . "$top/test/lib/hosts.sh"
  # shellcheck source=test/vm/adapters.sh
  . "$top/test/vm/adapters.sh"
  kind=siw address=10.8.0.1
  if ! make_hosts || ! add_siw; then echo 'FAIL: two hosts with siw'; exit 1; fi
fi
check "$kind: first hour, one command on each host" 1500 first_hour "$address"
check "$kind: a verdict for each assumption" 20 verdicts_of "$kind"
cp -r "$logs" /out/ 2>/dev/null
cp -r /tmp/client /tmp/server /out/ 2>/dev/null
summarize "vm hardware $kind"
