# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs the functions of checks.sh one by one and counts the results. The caller sets here, logs and
# filter; more_checks (exported) names a further file with checks.

passed=0 failed=0 skipped=0

# check NAME SECONDS COMMAND...: runs a check. Status 0 is a pass; 77 is a skip, with the reason in the last line.
check() {
  local name=$1 limit=$2 status=0 begin=$SECONDS
  shift 2
  [[ $name == *"$filter"* ]] || return 0
  log=$logs/$(tr -c 'a-zA-Z0-9\n' _ <<<"$name").log
  export log
  # shellcheck disable=SC2016
  timeout -k 5 "$limit" bash -c '. "$here/checks.sh"
    [ -z "${more_checks:-}" ] || . "$more_checks"
    "$@"' _ "$@" >"$log" 2>&1 </dev/null ||
    status=$?
  case $status in
    0) passed=$((passed + 1)); echo "PASS: $name ($((SECONDS - begin)) s)" ;;
    77) skipped=$((skipped + 1)); echo "SKIP: $name ($(tail -n 1 "$log"))" ;;
    *)
      failed=$((failed + 1))
      echo "FAIL: $name (status $status; $log)"
      tail -n 12 "$log" | sed 's/^/  | /'
      ;;
  esac
}

# summarize WHAT: prints the last line; returns 1 if a check failed.
summarize() {
  echo "# $1: $passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
}
