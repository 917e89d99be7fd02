#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest.sh TOP PROVIDER_PATH PREFIX KIND SET...: the part of `run.sh --nic siw|rxe|erdma` that runs in the
# virtual machine, with the server on host A and the client on host B. Logs: /out.
set -u
top=$1 prefix=$3 kind=$4
export top FI_PROVIDER_PATH=$2 FI_ERDMA_DEVICE=${kind}A,${kind}B
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/lib/hosts.sh
. "$top/test/lib/hosts.sh"
# shellcheck source=test/vm/adapters.sh
. "$top/test/vm/adapters.sh"
# shellcheck source=fabtests/sets.sh
. "$top/fabtests/sets.sh"
# shellcheck source=test/vm/checks_erdma.sh
. "$top/test/vm/checks_erdma.sh"
echo # ends a line of the console
case $kind in
  erdma)
    load_modules && make_pair || exit 1
    net=10.10.0 FI_ERDMA_DEVICE=erdma_0,erdma_1
    ;;
  siw) net=10.8.0 ;;
  rxe) net=10.9.0 ;;
esac
[ "$kind" = erdma ] || make_adapters || exit 1
cd /out && take_runner "bash $top/test/lib/agent.sh" || exit 1
shift 4
status=0
for each in "$@"; do
  run_set -- "$each" -T 300 -s "$net.1" -c "$net.2" erdma A B || status=1
done
exit "$status"
