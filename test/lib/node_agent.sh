#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# node_agent.sh NODE COMMAND...: what mpirun uses in place of ssh where the nodes are names of this host:
# to MPI its ranks are apart, to the provider they are not.
node=$1
shift
exec unshare -u bash -c "hostname $node; $*"
