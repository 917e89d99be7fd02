#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# gasnet.sh SOURCES FOLDER [TESTS...]: builds the ofi conduit of GASNet-EX in FOLDER and runs its own tests with erdma. SOURCES is the tree
# of a release. TESTS are names of programs, such as testsmall (without them: all). Needs perl. A later call with the same FOLDER runs the
# tests without another build. See common.sh for variables, and:
#   MODE      how GASNet and the tests are built: par, with threads (which is the default), or seq
#   RANKS     processes of a test (2)
#   LIMIT     seconds for a test (300)
#   PRELOAD   a library for the processes of the tests, such as that of the simulated NIC
#   PROVIDER  libfabric's provider, to compare another one with erdma
#
# GASNet uses only the providers of a list in its configure. The script adds erdma to its copy of the sources.
set -u
[ $# -ge 2 ] || { sed -n '3,12s/^# //p' "$0" >&2; exit 2; }
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/upstream/common.sh
. "$top/test/upstream/common.sh"

# add_provider: puts erdma before the others of the list.
# shellcheck disable=SC2317
add_provider() {
  sed -i 's/^ *known_providers="/&erdma /' "$folder/sources/configure" && grep -q 'known_providers="erdma ' "$folder/sources/configure"
}

# build_gasnet: the debug build checks what it gets from the provider. GASNet would move messages inside a host itself; --disable-pshm
# leaves them to libfabric. "generic" is GASNet's word for any provider of the list.
build_gasnet() {
  copy_sources
  step provider add_provider
  mkdir -p "$folder/build" && cd "$folder/build" || exit 1
  step configure ../sources/configure --enable-ofi --with-ofi-home="$libfabric" --with-ofi-provider=generic --with-ofi-spawner=ssh \
    --disable-auto-conduit-detect --disable-mpi --disable-mpi-compat --disable-udp --disable-smp --disable-ibv --disable-ucx \
    --disable-pshm --enable-debug --enable-pthreads
}

# start_here: writes what GASNet calls instead of ssh: it starts the processes on this host.
# shellcheck disable=SC2016
start_here() {
  printf '%s\n' '#!/bin/sh' '# Skips the options and the name of the host.' \
    'while case $1 in -o) shift ;; -*) ;; *) false ;; esac; do shift; done' 'shift' 'exec sh -c "$*"' >"$folder/start-here" &&
    chmod +x "$folder/start-here"
}

prepare "$1" "$2"
needs perl perl
uses_erdma
[ -e "$folder/build/config.status" ] || build_gasnet
start_here || exit 1
mode=${MODE:-par}
conduit=$folder/build/ofi-conduit
step "build-$mode" make -C "$folder/build" -j"$(jobs)" "$mode"
tests=("${@:3}")
targets=("${tests[@]/%/-$mode}")
step "build-tests-$mode" make -C "$conduit" "${targets[@]:-tests-$mode}"
say "== the tests (output: $folder/tests-$mode.log)"
# GASNet's rule writes the lines with "ERROR" of each test that failed into this file.
results=$folder/results-$mode.log
: >"$results"
export FI_PROVIDER=${PROVIDER:-erdma} GASNET_SSH_CMD=$folder/start-here GASNET_SSH_SERVERS=localhost GASNET_MASTERIP=127.0.0.1 \
  GASNET_HOST_DETECT=hostname
make -C "$conduit" run-tests TEST_NODES="${RANKS:-2}" TESTLOG="$results" TESTLOG_INHERIT=1 ${tests:+TESTS="${tests[*]}"} \
  CONDUIT_RUNCMD="timeout -k 10 ${LIMIT:-300} ${PRELOAD:+env LD_PRELOAD=$PRELOAD} $conduit/contrib/gasnetrun_ofi -np %N %P %A" \
  >"$folder/tests-$mode.log" 2>&1 </dev/null
cat "$results"
ran=$(grep -c '^\*\*\* Running ' "$folder/tests-$mode.log")
failed=$(grep -c '^ \*-\* ' "$results")
result $((ran - failed)) "$failed" 0
