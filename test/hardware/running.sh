# shellcheck shell=bash disable=SC2154,SC2034
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs programs with a time limit and keeps the results of each: $mine/STEP.txt with its output; STEP.status with its exit
# status, "short" (the remaining time was less than its limit) or "stuck"; and STEP.cause with one line, unless the status
# is 0. Sourced by first-hour.sh.

# start SECONDS FILE COMMAND...: starts the command in the background; await() waits for its end.
start() {
  local file=$2
  seconds=$1
  shift 2
  # Any of its processes that still runs holds the pipe. It does not get the connection to the other machine.
  exec {pipe}< <(exec {from_other}<&- {to_other}>&-
    exec timeout -k 5 "$seconds" "$@" 3>&1 >"$file" 2>&1 </dev/null)
  running_pid=$!
}
# await SECONDS: sets `status`; returns 1 if the command still runs.
await() {
  local rc=0
  read -r -t "$1" -u "$pipe" _ || rc=$?
  status=stuck
  [ $rc -le 128 ] || return 1
  exec {pipe}<&-
  status=0
  wait "$running_pid" || status=$?
  running_pid=
}
stop() { kill "$running_pid" 2>/dev/null; }
# A process that waits in the kernel cannot be killed.
leave() { exec {pipe}<&-; running_pid=; }
# bounded SECONDS FILE COMMAND...: runs the command with a time limit.
bounded() {
  start "$@"
  await $(($1 + 25)) || leave
}
# settle SECONDS: waits so long for the running step to end by itself, ends it, and records it.
settle() {
  if [ "$1" = 0 ] || ! await "$1"; then
    stop
    if await 20; then status=143; else leave; fi
  fi
  record "$running" "$status"
}

# record STEP STATUS: writes the results of a step.
record() {
  local status=$2
  [ "$status" != 124 ] || [ "$seconds" -ge "$(column "$1" 3)" ] || status=short
  printf '%s\n' "$status" >"$mine/$1.status"
  shorten "$mine/$1.txt"
  [ "$status" = 0 ] || why_of "$1" "$status" >"$mine/$1.cause"
}
why_of() {
  local last
  last=$(tail -n 1 "$mine/$1.txt" 2>/dev/null | tr -cd '[:print:]' | cut -c 1-200)
  case $2 in
    77) echo "${last:-it says no more}" ;;
    124) echo "it did not end within $seconds s" ;;
    short) echo "it did not end within the $seconds s that were left" ;;
    137) echo 'it was killed' ;;
    143) echo 'it was stopped' ;;
    stuck) echo "it did not end within $seconds s, and could not be killed" ;;
    *) echo "it ended with status $2${last:+: $last}" ;;
  esac
}
# shorten FILE: reduces a long log to its beginning, its facts and its end.
shorten() {
  [ "$(stat -c %s "$1" 2>/dev/null || echo 0)" -gt 400000 ] || return 0
  { head -c 100000 "$1"; printf '\n[...]\n'; grep -a '^fact ' "$1"; tail -c 100000 "$1"; } >"$1.short" && mv "$1.short" "$1"
}
# cannot_run STEP CAUSE: records that a step cannot run.
cannot_run() {
  printf '77\n' >"$mine/$1.status"
  printf '%s\n' "$2" >"$mine/$1.cause"
}
run_alone() {
  if command_of "$1" alone; then
    bounded "$(limit_of "$1")" "$mine/$1.txt" "${command[@]}"
    record "$1" "$status"
  else
    cannot_run "$1" "$cause"
  fi
  put_back
}

# status_of SIDE STEP, cause_of SIDE STEP: print the result of a step; empty if it did not run.
status_of() { cat "$raw/$1/$2.status" 2>/dev/null; }
cause_of() { cat "$raw/$1/$2.cause" 2>/dev/null; }
outcome_of() {
  case $(status_of client "$1") in
    0) echo ran ;;
    *) cause_of client "$1" ;;
  esac
}

# ready_or_gone STEP: waits until the started program can be reached; returns 1 if it has ended. Scripts get no event
# from a program; one that listens on no TCP port gets 10 s.
ready_or_gone() {
  local tries=100 program=${command[0]##*/} _
  [ "$program" != probe ] || tries=600
  running=$1
  for _ in $(seq $tries); do
    kill -0 "$running_pid" 2>/dev/null || return 1
    if [ "$program" = probe ]; then
      ! grep -qs '^ready' "$mine/$1.txt" || return 0
    else
      ! listens "$(port_of "$1")" || return 0
    fi
    sleep 0.1
  done
  [ "$program" != probe ]
}

# --- settings of the kernel that a step needs, and that are restored
declare -A settings=()
# set_file FILE TEXT: returns 1 if that is not permitted.
set_file() {
  local before
  before=$(cat "$1" 2>/dev/null) || return 1
  { echo "$2" >"$1"; } 2>/dev/null || return 1
  settings[$1]=${settings[$1]:-$before}
}
put_back() {
  local file
  for file in "${!settings[@]}"; do
    { echo "${settings[$file]}" >"$file"; } 2>/dev/null
  done
  settings=()
  [ -z "${neighbour:-}" ] || ip neigh del "${neighbour%% *}" dev "${neighbour##* }" 2>/dev/null
  neighbour=
}
