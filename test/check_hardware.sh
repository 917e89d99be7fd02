#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that test/hardware/first-hour.sh claims no more than its steps showed, with invented facts, and that it refuses
# tasks that it cannot do.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0"
set -u
top=$(cd "${srcdir:-.}" && pwd) || exit 1
tree=$(mktemp -d "${TMPDIR:-/tmp}/erdma-hardware.XXXXXX") || exit 1
trap 'rm -rf "$tree"' EXIT
bad=0

# --- verdicts
# shellcheck disable=SC2034
build=$tree/build role=client limit=1000 raw=$tree/raw mine=$tree/raw/client lost='' own=10.0.0.1 peer=10.0.0.2 port=18600
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/hardware/running.sh
. "$top/test/hardware/running.sh"
# shellcheck source=test/hardware/steps.sh
. "$top/test/hardware/steps.sh"
# shellcheck source=test/hardware/verdicts.sh
. "$top/test/hardware/verdicts.sh"

# begin VERDICTS: tests this function, without any facts yet.
begin() { verdicts=$1 && rm -rf "$raw" && mkdir -p "$raw/client" "$raw/server"; }
# step SIDE STEP STATUS FACT...
step() {
  printf '%s\n' "$3" >"$raw/$1/$2.status"
  [ "$3" = 0 ] || echo "cause of $1" >"$raw/$1/$2.cause"
  printf 'fact %s\n' "${@:4}" >"$raw/$1/$2.txt"
}
both_ran() { step client "$@" && step server "$@"; }
# gives VERDICT ASSUMPTION [EVIDENCE]
gives() {
  local rows
  rows=$("$verdicts")
  grep -E "^\| $2 \| \*\*$1\*\* " <<<"$rows" | grep -qF -- "${3:-}" && return
  printf '%s is not "%s", or without "%s":\n%s\n' "$2" "$1" "${3:-}" "$(grep "^| $2 " <<<"$rows")"
  bad=1
}

begin of_machines
gives 'not known' adapter 'limits: it was not reached'
gives 'not known' adapter device_list.cc # docs/hardware.md names this file
step client limits 0 'port ACTIVE'
gives 'not known' adapter 'nothing came from the other machine'
step server limits 77
gives 'not known' adapter 'on the other machine: cause of server'

begin of_machines
both_ran limits 0 'max_qp 10' 'max_mr 20' 'vectors 2' 'page_size 4096'
gives held regions
gives held vectors
gives held pages
gives 'does not hold' gid # neither fact is known
step server limits 0 'max_qp 10' 'max_mr 19' 'vectors 1' 'page_size 65536' 'gid a' 'mac a'
gives 'does not hold' regions
gives 'does not hold' vectors
gives 'does not hold' pages 65536
gives 'does not hold' gid
both_ran limits 0 'gid a' 'mac a'
gives held gid

begin of_handshakes
step client unanswered 0 'outcome RDMA_CM_EVENT_UNREACHABLE' 'us 10000000'
step client destroy_waits 0 'destroy_qp_us 10'
gives held unanswered
gives 'does not hold' destroy_waits
step client unanswered 0 'outcome RDMA_CM_EVENT_REJECTED' 'us 10'
gives 'not known' unanswered "somebody answered at nobody's address"
gives 'not known' destroy_waits
step client unanswered 124
gives 'not known' unanswered
step client data 0
gives 'does not hold' unanswered 'cause of client'

begin of_suite
both_ran pingpong_msg 0
gives held suite_pingpong_msg 'it passed'
step server pingpong_msg 143
gives 'not known' suite_pingpong_msg
step client data 0
gives 'does not hold' suite_pingpong_msg 'on the other machine: cause of server'
step client pingpong_msg 77
gives 'not known' suite_pingpong_msg 'cause of client'
step client pingpong_msg 124
gives 'does not hold' suite_pingpong_msg 'cause of client'
mine=$raw/client seconds=15
record pingpong_msg 124
gives 'not known' suite_pingpong_msg 'it did not end within the 15 s that were left'

# --- processes that a step leaves behind are ended
begin of_endings
running=closes
from_other=0 to_other=1
start 30 "$mine/closes.txt" sleep 25
settle 0
gives 'not known' peer_closes 'closes: it was stopped'
[ -z "$running_pid" ] || { echo 'a step that was stopped still runs'; bad=1; }

# --- what is refused: with a probe whose relay ends at once
# refused WHAT TEXT [OPTION]...
mkdir -p "$build/test/hardware" "$tree/used/raw"
printf '#!/bin/sh\necho "TCP port 1: it is taken"\nexit 77\n' >"$build/test/hardware/probe"
chmod +x "$build/test/hardware/probe"
refused() {
  local what=$1 text=$2 output status=0
  shift 2
  output=$(CC=false CXX=false top_srcdir=$top top_builddir=$build timeout 60 bash "$top/test/hardware/first-hour.sh" "$@" \
    2>&1 </dev/null) || status=$?
  [ $status -ne 0 ] && [ $status -ne 124 ] && grep -qF -- "$text" <<<"$output" && return
  printf '%s: status %s, or without "%s":\n%s\n' "$what" "$status" "$text" "$output"
  bad=1
}
refused 'a step that is none' "there is no step 'dta'" -o "$tree/a" -n data,dta server
refused 'a folder with results' 'has the results of another run' -o "$tree/used" server
refused 'a port that is too high' 'first-hour.sh [OPTION]... server' -o "$tree/b" -p 65526 server
for round in 1 2 3 4 5; do
  refused "a relay that ends at once ($round)" 'there is no other machine: TCP port 1: it is taken' -o "$tree/c$round" server
done
exit $bad
