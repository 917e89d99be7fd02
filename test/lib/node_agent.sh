#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# node_agent.sh NODE COMMAND...: mpirun calls this instead of ssh if the nodes are names of this host. MPI sees ranks on
# different nodes, the provider on one.
node=$1
shift
exec unshare -u bash -c "hostname $node; $*"
