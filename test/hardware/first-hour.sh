#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# first-hour.sh [OPTION]... server            on one machine with an adapter
# first-hour.sh [OPTION]... client ADDRESS    on another; ADDRESS is that of the first one's adapter
# Checks the project's assumptions about eRDMA hardware (docs/hardware.md) in less than 20 minutes. The client
# writes OUT/report.md, with a verdict for each assumption, and OUT/raw.tar.gz, with the output of each program
# on both machines. Both machines need a build (top_builddir, default: build/) and rdma-core's tools. The report
# names tools that are missing and steps that are not permitted. Root can run more of the steps.
#   -o OUT    folder for the results of this run alone (default: first-hour-DATE)
#   -p PORT   first of six TCP ports that both use (default: 18600); the eleventh must be unused
#   -t S      time limit in seconds (default: 1020)
#   -n NAMES  only these steps, separated by commas
# Status: 0 if the report is written, whatever its verdicts; otherwise 1.
# shellcheck disable=SC2317
set -u
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd) || exit 1
top=${top_srcdir:-$here/../..}
top=$(cd "$top" && pwd) || exit 1
usage() { sed -n '3,13p' "$0" | sed 's/^# \?//'; exit 2; }
out=first-hour-$(date +%Y%m%d-%H%M%S) port=18600 limit=1020 only=
while getopts o:p:t:n: option; do
  case $option in
    o) out=$OPTARG ;;
    p) port=$OPTARG ;;
    t) limit=$OPTARG ;;
    n) only=,$OPTARG, ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
role=${1:-} host=${2:-}
case $role:$# in
  server:1 | client:2) ;;
  *) usage ;;
esac
if ! [[ $port =~ ^[1-9][0-9]{0,4}$ && $limit =~ ^[1-9][0-9]{0,5}$ ]] || [ "$port" -gt 65525 ]; then usage; fi
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
build=${top_builddir:-$top/build}
[ -d "$build" ] || die "there is no build in $build"
build=$(cd "$build" && pwd)
[ ! -e "$out/raw" ] || die "$out has the results of another run"
if ! mkdir -p "$out/raw/client" "$out/raw/server" || ! out=$(cd "$out" && pwd); then
  die "cannot write to $out"
fi
raw=$out/raw mine=$out/raw/$role probe=$build/test/hardware/probe
# shellcheck source=test/hardware/running.sh
. "$here/running.sh"
# shellcheck source=test/hardware/steps.sh
. "$here/steps.sh"
# shellcheck source=test/hardware/verdicts.sh
. "$here/verdicts.sh"
for each in ${only//,/ }; do is_step "$each" || die "there is no step '$each'; there are: $(all_steps | tr '\n' ' ')"; done

# --- programs that are not built yet, before the time limit starts
old_probe=
prepare() {
  if [ ! -x "$probe" ] ||
    [ -n "$(find "$here" "$top"/prov/fi_erdma/{libfabric,pair/{cuda,options}}.{cc,h} -name '*.[ch]*' -newer "$probe" 2>/dev/null)" ]; then
    if ! timeout -k 5 240 make -C "$build" test/hardware/probe >"$mine/build.txt" 2>&1; then
      old_probe="$probe could not be built from its sources: $(tail -n 1 "$mine/build.txt")"
      [ -x "$probe" ] || die "$old_probe"
      old_probe+=' An earlier one ran.'
      say "$old_probe"
    fi
  fi
  # shellcheck disable=SC2016
  timeout -k 5 240 bash -c 'top=$1 here=$1/test/clients bin=$2; . "$here/build.sh"; mkdir -p "$bin" && build_clients' \
    _ "$top" "$clients" >>"$mine/build.txt" 2>&1 </dev/null
}

# --- the two scripts exchange lines over one connection
meet() {
  # The descriptors close with the process, which therefore waits for a line.
  coproc RELAY { read -r && exec timeout -k 5 $((limit + 700)) "$probe" relay "$host" "$port" 2>"$mine/relay.txt"; }
  # shellcheck disable=SC2153
  relay_pid=$RELAY_PID
  exec {from_other}<&"${RELAY[0]}" {to_other}>&"${RELAY[1]}"
  tell begin
  local word
  read -r -t 600 -u "$from_other" word own peer || word=
  [ "$word" = connected ] || die "there is no other machine: ${word:-nothing heard in 10 minutes} ${own:-} ${peer:-}"
  say "This machine is $own, the other one $peer."
}
tell() { [ -n "$lost" ] || printf '%s\n' "$*" >&"$to_other" || lost=yes; }
# hear SECONDS: reads the next line into `heard`.
hear() {
  heard=
  [ -n "$lost" ] || read -r -t "$1" -u "$from_other" heard || lost=yes
  [ -z "$lost" ]
}
lost=
trap : PIPE

# --- the server executes the steps that the client names, if it knows them
serve() {
  local word step rest
  while hear 900; do
    read -r word step rest <<<"$heard"
    case $word in
      alone | begin) is_step "$step" || { tell "cannot $step there is no such step"; continue; } ;;
    esac
    case $word in
      own) device_is "$own"; tell "own $device" ;;
      alone) say "$step"; run_alone "$step"; tell "ended $step" ;;
      begin) say "$step"; begin_step "$step" ;;
      end) end_step; tell "ended $step" ;;
      files) send_files ;;
      bye) return 0 ;;
    esac
  done
  die 'the other machine is gone'
}

begin_step() {
  if command_of "$1" server; then
    start "$(limit_of "$1")" "$mine/$1.txt" "${command[@]}"
    if ready_or_gone "$1"; then tell "ready $1"; return; fi
    settle 5
  else
    cannot_run "$1" "$cause"
  fi
  put_back
  tell "cannot $1 $(cause_of server "$1")"
}
# The program may run on for a while, to see the effects of the end of its peer.
end_step() {
  case $running in
    ports | no_listener) settle 0 ;; # these wait for any connection
    *) settle 15 ;;
  esac
  put_back
}

send_files() {
  local line
  while read -r line; do tell "$line"; done < <(tar cz -C "$raw" server | base64 -w 76)
  tell end
}
fetch_files() {
  tell files
  while hear 60 && [ "$heard" != end ]; do printf '%s\n' "$heard"; done |
    base64 -d 2>/dev/null | tar xz --no-same-owner -C "$raw" 2>/dev/null ||
    say 'What programs said on the other machine did not come whole.'
}

# --- the client names the steps
drive() {
  local step kind begin
  tell own
  hear 60 # without a server, only the steps on one machine run
  read -r _ other_device <<<"$heard"
  device_is "$own"
  say "Its adapter is ${device:-unknown}, that of the other machine: ${other_device:-unknown}."
  for step in $(all_steps); do
    [ -z "$only" ] || [[ $only = *,$step,* ]] || { cannot_run "$step" 'it was not asked for'; continue; }
    if [ "$(left)" -lt 15 ]; then cannot_run "$step" 'no time was left'; continue; fi
    printf '%-18s' "$step"
    kind=$(kind_of "$step") begin=$SECONDS
    "drive_$kind" "$step"
    put_back
    say "$(outcome_of "$step") ($((SECONDS - begin)) s)"
  done
}
drive_here() { run_alone "$1"; }
drive_both() {
  tell "alone $1"
  run_alone "$1"
  hear $(($(limit_of "$1") + 60)) || say 'the other machine does not answer any more'
}
drive_pair() {
  command_of "$1" client || { cannot_run "$1" "$cause"; return; }
  if [ -n "$lost" ]; then cannot_run "$1" 'the other machine is gone'; return; fi
  tell "begin $1"
  hear 90 || { cannot_run "$1" 'the other machine does not answer any more'; return; }
  if [ "${heard%% *}" != ready ]; then
    cannot_run "$1" "on the other machine: ${heard#cannot "$1" }"
    return
  fi
  bounded "$(limit_of "$1")" "$mine/$1.txt" "${command[@]}"
  record "$1" "$status"
  tell "end $1"
  hear 60 || say 'the other machine does not answer any more'
}
left() { echo $((limit - SECONDS)); }

finish() {
  [ -z "${running_pid:-}" ] || stop
  put_back
  [ -z "${relay_pid:-}" ] || kill "$relay_pid" 2>/dev/null
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

# The shell reads the whole function before it runs it, since the file may change meanwhile.
main() {
  ulimit -l unlimited 2>/dev/null
  prepare
  say "Waiting for the other machine (TCP port $port)."
  meet
  SECONDS=0
  if [ "$role" = server ]; then
    serve
    say "What programs said here: $mine"
    exit 0
  fi
  drive
  fetch_files
  tell bye
  write_report >"$out/report.md" || exit 1
  tar czf "$out/raw.tar.gz" -C "$out" raw || say "$out/raw.tar.gz is not whole: $out/raw is." # a hung program may still write
  sed -n '/^## /q; p' "$out/report.md"
  say "The report: $out/report.md"
}
main
exit
