# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Stages of run-tests and the sum of their results. The caller sets `build`, `logs`, `selected`.

passed=0 failed=0 skipped=0
table=

# skip REASON: a stage calls this before it returns 77.
skip() { printf 'SKIP: %s\n' "$*"; }

# finish: prints the closing line, and exits with the status of the whole run.
finish() {
  printf '\nSeconds of each stage (%s in all; indented: beside each other)\n%s' "$SECONDS" "$table"
  printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
  exit
}

# count_one LOG STATUS: the stage is one test.
count_one() {
  case $2 in
    0) stage_passed=1 ;;
    77) stage_skipped=1 ;;
    *) stage_failed=1 ;;
  esac
}

# count_lines LOG STATUS: lines "PASS: name", "FAIL: name", "SKIP: reason" (also "ok", "not ok").
count_lines() {
  stage_passed=$(grep -cE '^(PASS:|ok )' "$1")
  stage_failed=$(grep -cE '^(FAIL:|ERROR:|not ok )' "$1")
  stage_skipped=$(grep -cE '^SKIP:' "$1")
  case $2 in
    0) [ "$stage_passed$stage_failed$stage_skipped" != 000 ] || stage_passed=1 ;;
    77) [ "$stage_skipped" -gt 0 ] || stage_skipped=1 ;;
    *) [ "$stage_failed" -gt 0 ] || stage_failed=1 ;;
  esac
}

# show_failure LOG: what failed, and the end.
show_failure() {
  printf '== %s\n' "$1"
  grep -aE -A5 ':[FE]:|AddressSanitizer|ThreadSanitizer|runtime error:' "$1" | head -n 30
  tail -n 5 "$1"
}

# count_trs LOG STATUS: counts the .trs files of make check that are newer than the log of the
# stage, one for each test program. A libcheck program counts its checks; any other program is one
# test.
count_trs() {
  local trs result checks failures errors
  while IFS= read -r trs; do
    result=$(sed -n 's/^:global-test-result: *//p' "$trs")
    read -r checks failures errors < <(sed -nE \
      's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+).*/\1 \2 \3/p' \
      "${trs%.trs}.log" | awk '{ c += $1; f += $2; e += $3 } END { print c + 0, f + 0, e + 0 }')
    case $result in
      PASS) stage_passed=$((stage_passed + (checks > 0 ? checks : 1))) ;;
      SKIP) stage_skipped=$((stage_skipped + 1)) ;;
      *)
        stage_passed=$((stage_passed + checks - failures - errors))
        stage_failed=$((stage_failed + (failures + errors > 0 ? failures + errors : 1)))
        show_failure "${trs%.trs}.log" >>"$1"
        ;;
    esac
  done < <(find "$stage_folder/test" -name '*.trs' -newer "$logs/.stage" 2>/dev/null)
  [ "$2" = 0 ] || [ "$2" = 77 ] || [ "$stage_failed" -gt 0 ] || stage_failed=1
  [ "$2" != 77 ] || stage_skipped=1
}

# stage NAME MINUTES KIND COMMAND: runs COMMAND, a function, for MINUTES at most, with its output in
# a log. count_KIND counts the results. Status 1 if something failed.
stage() {
  local name=$1 minutes=$2 kind=$3 command=$4 log status begin=$SECONDS watchdog
  local stage_passed=0 stage_failed=0 stage_skipped=0 stage_folder=$build
  [ "$selected" = '  ' ] || [[ $selected = *" $name "* ]] || return 0
  case $name in address | thread) stage_folder=$build/$name ;; esac
  log=$logs/$name.log
  printf '%-13s' "$name"
  touch "$logs/.stage"
  # The stage has a process group of its own, so that a timeout ends all of its processes.
  set -m
  "$command" >"$log" 2>&1 </dev/null &
  local job=$!
  (sleep $((minutes * 60)) && echo "FAIL: $name took more than $minutes minutes" >>"$log" &&
    kill -- "-$job") >/dev/null 2>&1 &
  watchdog=$!
  set +m
  trap 'kill -- "-$job" "-$watchdog"; say "interrupted"; exit 1' INT TERM HUP
  wait "$job"
  status=$?
  kill -- "-$watchdog" 2>/dev/null
  wait "$watchdog" 2>/dev/null
  trap - INT TERM HUP
  "count_$kind" "$log" "$status"
  passed=$((passed + stage_passed)) failed=$((failed + stage_failed))
  skipped=$((skipped + stage_skipped))
  table+=$(printf '%s%-13s %5d' "${lane:+  }" "$name" $((SECONDS - begin)))$'\n'
  printf '%4d passed %3d failed %3d skipped %5d s\n' "$stage_passed" "$stage_failed" \
    "$stage_skipped" $((SECONDS - begin))
  if [ "$stage_skipped" -gt 0 ]; then grep -E '^SKIP: ' "$log" | sed 's/^/    /'; fi
  [ "$stage_failed" -gt 0 ] || return 0
  say "    the end of $log:"
  tail -n 60 "$log" | sed 's/^/    /'
  return 1
}

# beside LANE...: functions that run stages, each lane on a core of its own; one lane's lines follow
# the other's. A stage that counts .trs files can't be in a lane.
beside() {
  local lane lanes=()
  for lane in "$@"; do
    (
      passed=0 failed=0 skipped=0 table=
      "$lane"
      declare -p passed failed skipped table | sed 's/^declare -- /lane_/' >"$logs/.$lane"
    ) >"$logs/$lane.out" 2>&1 &
    lanes+=($!)
  done
  wait "${lanes[@]}"
  for lane in "$@"; do
    cat "$logs/$lane.out"
    local lane_passed=0 lane_failed=1 lane_skipped=0 lane_table=
    # shellcheck disable=SC1090
    . "$logs/.$lane"
    passed=$((passed + lane_passed)) failed=$((failed + lane_failed))
    skipped=$((skipped + lane_skipped)) table+=$lane_table
    rm -f "$logs/.$lane"
  done
}
