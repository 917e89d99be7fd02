# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs the stages of run-tests and sums up their results. The caller sets `build`, `logs`, `selected`.

passed=0 failed=0 skipped=0
table=

# end_tree PID: ends the process, its group, and all processes that it started, in any group.
end_tree() {
  local found=("$1") at=0
  while [ $at -lt ${#found[@]} ]; do
    # shellcheck disable=SC2207
    found+=($(ps -o pid= --ppid "${found[at]}"))
    at=$((at + 1))
  done
  kill -- "${found[@]}" "-$1" 2>/dev/null
}

# interrupted: ends the run with all processes that it started. A lane gets the signal as well, and ends its stage.
interrupted() {
  local job
  trap '' INT TERM HUP
  for job in $(jobs -p); do end_tree "$job"; done
  wait
  printf '\ninterrupted\n'
  exit 1
}

# skip REASON: a stage calls this before it returns 77.
skip() { printf 'SKIP: %s\n' "$*"; }

# finish: prints the last line, and exits with the status of the whole run.
finish() {
  printf '\nSeconds of each stage, and seconds of processors (%s in all; indented: beside each other)\n%s' "$SECONDS" "$table"
  printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
  exit
}

# count_one LOG STATUS: counts the stage as one test.
count_one() {
  case $2 in
    0) stage_passed=1 ;;
    77) stage_skipped=1 ;;
    *) stage_failed=1 ;;
  esac
}

# count_lines LOG STATUS: counts lines "PASS: name", "FAIL: name", "SKIP: reason" (also "ok", "not ok").
count_lines() {
  stage_passed=$(grep -cE '^(PASS:|ok )' "$1")
  stage_failed=$(grep -cE '^(FAIL:|ERROR:|not ok )' "$1")
  stage_skipped=$(grep -cE '^SKIP:' "$1")
  case $2 in
    0) ;;
    77) [ "$stage_skipped" -gt 0 ] || stage_skipped=1 ;;
    *) [ "$stage_failed" -gt 0 ] || stage_failed=1 ;;
  esac
}

# show_failure LOG: prints the failed tests (of libcheck, and of Python's unittest with their traces) and the end of the log.
show_failure() {
  printf '== %s\n' "$1"
  grep -aE -A5 ':[FE]:|AddressSanitizer|ThreadSanitizer|runtime error:' "$1" | head -n 30
  sed -nE '/^(ERROR|FAIL): .* \(/,/^$/p' "$1" | head -n 40
  tail -n 5 "$1"
}

# count_trs LOG STATUS: counts the .trs files of make check, one for each test program. A libcheck
# program counts its checks, and fails if there are none; any other program is one test.
count_trs() {
  local trs result checks failures errors unit_tests=0
  while IFS= read -r trs; do
    result=$(sed -n 's/^:global-test-result: *//p' "$trs")
    # What the stage leaves out has a result, too.
    case $result$trs in SKIP*) ;; *_test.trs) unit_tests=1 ;; esac
    read -r checks failures errors < <(sed -nE \
      's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+).*/\1 \2 \3/p' \
      "${trs%.trs}.log" | awk '{ c += $1; f += $2; e += $3 } END { print NR ? c : "none", f + 0, e + 0 }')
    [ "$result$checks" != PASS0 ] || result='no check ran'
    case $result in
      PASS) stage_passed=$((stage_passed + ${checks/none/1})) ;;
      SKIP) stage_skipped=$((stage_skipped + 1)) ;;
      *)
        stage_passed=$((stage_passed + ${checks/none/0} - failures - errors))
        stage_failed=$((stage_failed + (failures + errors > 0 ? failures + errors : 1)))
        { echo "FAIL: ${trs#"$stage_folder/"}: $result"; show_failure "${trs%.trs}.log"; } >>"$1"
        ;;
    esac
  done < <(find "$stage_folder/test" -name '*.trs' 2>/dev/null)
  if [ "$2$unit_tests" = 00 ]; then
    echo 'FAIL: no unit test ran' >>"$1"
    stage_failed=$((stage_failed + 1))
  fi
  [ "$2" = 0 ] || [ "$2" = 77 ] || [ "$stage_failed" -gt 0 ] || stage_failed=1
  [ "$2" != 77 ] || stage_skipped=1
}

# read_processor_seconds: sets processor_seconds to what the processes that this shell has waited for took, with those
# that they waited for.
read_processor_seconds() {
  local file=$logs/.times.$BASHPID
  times >"$file" # not in $(), whose shell has waited for nothing
  processor_seconds=$(awk 'NR == 2 { gsub(/[ms]/, " "); $0 = $0; printf "%d", ($1 + $3) * 60 + $2 + $4 }' "$file")
  rm -f "$file"
}

# stage NAME MINUTES KIND COMMAND: runs COMMAND, a function, for MINUTES at most, with its output in
# a log. count_KIND counts the results; none at all is a failure. Status 1 if something failed.
stage() {
  local name=$1 minutes=$2 kind=$3 command=$4 log status begin=$SECONDS watchdog used processor_seconds
  local stage_passed=0 stage_failed=0 stage_skipped=0 stage_folder=$build
  [ "$selected" = '  ' ] || [[ $selected = *" $name "* ]] || return 0
  case $name in address | thread) stage_folder=$build/$name ;; esac
  read_processor_seconds
  used=$processor_seconds
  log=$logs/$name.log
  printf '%-13s' "$name"
  [ "$kind" != trs ] || find "$stage_folder/test" -name '*.trs' -delete 2>/dev/null
  trap interrupted INT TERM HUP
  # Its own process group, so that orphaned processes also end with the stage.
  set -m
  "$command" >"$log" 2>&1 </dev/null &
  local job=$!
  (sleep $((minutes * 60)) && echo "FAIL: $name took more than $minutes minutes" >>"$log" &&
    end_tree "$job") >/dev/null 2>&1 &
  watchdog=$!
  set +m
  wait "$job"
  status=$?
  kill -- "-$watchdog" 2>/dev/null
  wait "$watchdog" 2>/dev/null
  trap - INT TERM HUP
  "count_$kind" "$log" "$status"
  if [ $((stage_passed + stage_failed + stage_skipped)) -eq 0 ]; then
    echo 'FAIL: nothing ran' >>"$log"
    stage_failed=1
  fi
  passed=$((passed + stage_passed)) failed=$((failed + stage_failed))
  skipped=$((skipped + stage_skipped))
  read_processor_seconds
  used=$((processor_seconds - used))
  table+=$(printf '%s%-13s %5d %5d' "${lane:+  }" "$name" $((SECONDS - begin)) "$used")$'\n'
  printf '%4d passed %3d failed %3d skipped %5d s\n' "$stage_passed" "$stage_failed" \
    "$stage_skipped" $((SECONDS - begin))
  if [ "$stage_skipped" -gt 0 ]; then grep -E '^SKIP: ' "$log" | sed 's/^/    /'; fi
  [ "$stage_failed" -gt 0 ] || return 0
  echo "    the end of $log:"
  tail -n 60 "$log" | sed 's/^/    /'
  return 1
}

# beside LANE...: runs lanes in parallel, functions that run stages. The output of one lane follows
# that of the other. Stages that count the .trs files of the same folder must not run in parallel.
beside() {
  local lane status pids=() lane_passed lane_failed lane_skipped lane_table
  trap interrupted INT TERM HUP
  for lane in "$@"; do
    rm -f "$logs/.$lane"
    (
      passed=0 failed=0 skipped=0 table=
      "$lane"
      declare -p passed failed skipped table | sed 's/^declare -- /lane_/' >"$logs/.$lane.new" &&
        mv "$logs/.$lane.new" "$logs/.$lane"
    ) >"$logs/$lane.out" 2>&1 &
    pids+=($!)
  done
  for lane in "$@"; do
    status=0
    wait "${pids[0]}" || status=$?
    pids=("${pids[@]:1}")
    cat "$logs/$lane.out"
    lane_passed=0 lane_failed=0 lane_skipped=0 lane_table=
    # shellcheck disable=SC1090
    [ "$status" != 0 ] || . "$logs/.$lane" || status=$?
    if [ "$status" != 0 ]; then
      echo "FAIL: $lane ended with status $status"
      lane_failed=$((lane_failed + 1))
    fi
    passed=$((passed + lane_passed)) failed=$((failed + lane_failed))
    skipped=$((skipped + lane_skipped)) table+=$lane_table
  done
  trap - INT TERM HUP
}
