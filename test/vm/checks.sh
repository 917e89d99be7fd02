# shellcheck shell=bash disable=SC2154,SC2034
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that make sense in the virtual machine, in addition to those of test/clients/checks.sh. With "refused", the
# kernel itself refuses CMA; in test/clients a filter refuses the calls.

as() { export RUN_AS=$1; "${@:2}"; }
with_ptracer() { export FI_ERDMA_PTRACER=$1; "${@:2}"; }

# Here the kernel refuses the calls.
refusing() { wrapper=(); }

# mpi_phases RANKS CALLS PHASE...: runs these phases of the MPI test.
mpi_phases() {
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  local ranks=$1 calls=$2
  shift 2
  launch "$ranks" "$calls" '' "$bin/mpi_check" "$@"
  grep -q "^mpi_check: .* on $ranks ranks passed" "$log" || wrong 'no closing line'
  warnings_match "$calls" "$ranks"
  carried_by_provider "$calls"
}

# start_server PORT PREFIX...: starts the server of fi_pingpong and waits until it listens.
start_server() {
  local port=$1
  shift
  with_log "$@" fi_pingpong -p "$provider" -e rdm -c -I 20 -S 300000 -B "$port" & server=$!
  await_listener "$port" || wrong 'the server does not listen'
}

# pair any|refused SERVER_PREFIX CLIENT_PREFIX: runs fi_pingpong between them and checks every byte. With "refused", at
# least one direction must have been refused.
pair() {
  local expected=$1 port status=0 before
  local -a first second
  read -ra first <<<"$2"
  read -ra second <<<"$3"
  port=$((20000 + RANDOM % 12000))
  start_server "$port" "${first[@]}"
  (with_log "${second[@]}" fi_pingpong -p "$provider" -e rdm -c -I 20 -S 300000 -P "$port" \
    127.0.0.1) || status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
  before=$(grep -ci 'continuing by copy' "$log")
  echo "# warnings: $before"
  [ "$provider" = erdma ] || return 0
  [ "$before" -le 2 ] || wrong 'more warnings than directions'
  [ "$expected" != refused ] || [ "$before" -gt 0 ] || wrong 'nothing was refused'
  grep -q 'bytes through rings' "$log" || wrong 'not over the provider'
}

not_dumpable() {
  [ -e "$bin/not_dumpable.so" ] || skip 'not_dumpable.so was not built'
  pair refused "setpriv --reuid=1000 --regid=1000 --clear-groups env LD_PRELOAD=$bin/not_dumpable.so" \
    'setpriv --reuid=1000 --regid=1000 --clear-groups'
}

# A process of another user gets an error soon, without a crash or a hang.
other_user() {
  local port status=0
  port=$((20000 + RANDOM % 12000))
  start_server "$port" setpriv --reuid=1000 --regid=1000 --clear-groups timeout 40
  timeout 30 setpriv --reuid=1001 --regid=1001 --clear-groups env FI_LOG_LEVEL=warn \
    FI_LOG_PROV="$provider" fi_pingpong -p "$provider" -e rdm -c -I 20 -S 300000 -P "$port" \
    127.0.0.1 || status=$?
  kill "$server" 2>/dev/null
  wait "$server" 2>/dev/null
  echo "# client's exit status: $status"
  [ "$provider" = erdma ] || return 0
  [ $status -ne 0 ] || wrong 'another user was served'
  [ $status -ne 124 ] || wrong 'the client hangs'
  [ $status -lt 126 ] || wrong 'the client was killed'
  grep -q 'belongs to another user' "$log" || wrong 'the log does not say why'
}

# doctor_says PATTERN: checks the doctor's line about CMA, for a user without the capabilities of root.
doctor_says() {
  local fi_erdma
  fi_erdma=$(dirname "$bin")/prov/fi_erdma/fi_erdma
  [ -x "$fi_erdma" ] || skip "there is no $fi_erdma: configure lacked what it needs"
  # Its exit status covers all troubles of the machine, so it is ignored.
  setpriv --reuid=1000 --regid=1000 --clear-groups "$fi_erdma" doctor --for mpich >"$log.doctor"
  cat "$log.doctor"
  grep -qE "^  $1" "$log.doctor" || wrong "the doctor does not say: $1"
}

# Runs children of init. erdma must not permit access to their common ancestor.
orphans() {
  local port=$((20000 + RANDOM % 12000)) results
  results=$(mktemp -d)
  chmod 777 "$results"
  export results
  # shellcheck disable=SC2016
  setsid -f setpriv --reuid=1000 --regid=1000 --clear-groups bash -c \
    'FI_LOG_LEVEL=info FI_LOG_PROV=$1 fi_pingpong -p "$1" -e rdm -c -I 20 -S 300000 -B "$2"
     echo $? >"$results/server"' _ "$provider" "$port" >>"$log" 2>&1
  await_listener "$port" || wrong 'the server does not listen'
  # shellcheck disable=SC2016
  setsid -f setpriv --reuid=1000 --regid=1000 --clear-groups bash -c \
    'FI_LOG_LEVEL=info FI_LOG_PROV=$1 fi_pingpong -p "$1" -e rdm -c -I 20 -S 300000 -P "$2" 127.0.0.1
     echo $? >"$results/client"' _ "$provider" "$port" >>"$log" 2>&1
  for _ in $(seq 300); do
    [ -s "$results/client" ] && [ -s "$results/server" ] && break
    sleep 0.1
  done
  [ "$(cat "$results/client")$(cat "$results/server")" = 00 ] || wrong 'a side failed'
  [ "$provider" != erdma ] || grep -qi 'continuing by copy' "$log" ||
    wrong 'CMA was allowed: whom did they admit?'
}
