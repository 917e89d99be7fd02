#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# agent.sh HOST COMMAND...: mpirun calls this instead of ssh if the hosts are network namespaces
# (hosts.sh).
host=$1
shift
exec ip netns exec "$host" unshare -u bash -c "hostname $host; $*"
