#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/hardware/first-hour.sh says no more than its steps showed: verdicts on facts that are made up here. And it refuses
# what it can't do.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0"
set -u
top=$(cd "${srcdir:-.}" && pwd) || exit 1
tree=$(mktemp -d "${TMPDIR:-/tmp}/erdma-hardware.XXXXXX") || exit 1
trap 'rm -rf "$tree"' EXIT
bad=0

# --- verdicts
# shellcheck disable=SC2034
build=$tree/build role=client limit=1000 raw=$tree/raw mine=$tree/raw/client lost='' own=10.0.0.1 peer=10.0.0.2 port=18600
# shellcheck source=test/hardware/running.sh
. "$top/test/hardware/running.sh"
# shellcheck source=test/hardware/steps.sh
. "$top/test/hardware/steps.sh"
# shellcheck source=test/hardware/verdicts.sh
. "$top/test/hardware/verdicts.sh"

# begin VERDICTS: of which function, with no facts yet.
begin() { verdicts=$1 && rm -rf "$raw" && mkdir -p "$raw/client" "$raw/server"; }
# gives VERDICT ASSUMPTION [EVIDENCE]
gives() {
  local rows
  rows=$("$verdicts")
  grep -E "^\| $2 \| \*\*$1\*\* " <<<"$rows" | grep -qF -- "${3:-}" && return
  printf '%s is not "%s", or without "%s":\n%s\n' "$2" "$1" "${3:-}" "$(grep "^| $2 " <<<"$rows")"
  bad=1
}

# --- what a step leaves running is ended
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
