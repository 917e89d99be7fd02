#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest.sh TOP PROVIDER_PATH PREFIX KIND SET...: what `run.sh --nic siw|rxe` runs in the virtual
# machine: the server on host A, the client on B. Logs: /out.
set -u
top=$1 prefix=$3 kind=$4
export FI_PROVIDER_PATH=$2 FI_ERDMA_DEVICE=${kind}A,${kind}B
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/lib/hosts.sh
. "$top/test/lib/hosts.sh"
# shellcheck source=test/vm/adapters.sh
. "$top/test/vm/adapters.sh"
# shellcheck source=fabtests/sets.sh
. "$top/fabtests/sets.sh"
echo # the console's own noise ends here
make_adapters || exit 1
case $kind in siw) net=10.8.0 ;; *) net=10.9.0 ;; esac
cd /out && take_runner "bash $top/test/lib/agent.sh" || exit 1
shift 4
status=0
for each in "$@"; do
  run_set -- "$each" -T 300 -s $net.1 -c $net.2 erdma A B || status=1
done
exit "$status"
