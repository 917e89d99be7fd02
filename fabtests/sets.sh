# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs sets of upstream's fabtests in the current folder. The caller sets `top` and `prefix`.
# shellcheck disable=SC2154

# take_runner SSH: prints upstream's script without its clean-up, which kills every process of the host whose
# name begins with "fi_". SSH is the command that reaches another host.
take_runner() {
  sed -e '/xargs kill -9/s/.*/:/' -e "s#^declare bssh=.*#declare bssh='$1'#" \
    "$prefix/bin/runfabtests.sh" >runfabtests.sh
}

# run_set WRAPPER... -- SET OPTION...: runs a set with options of runfabtests.sh, from the time limit to the
# names of the hosts. Log: SET.log. Status 1 if a test failed.
run_set() {
  local around=() set_name status=0
  while [ "$1" != -- ]; do
    around+=("$1")
    shift
  done
  set_name=$2
  shift 2
  case $set_name in
    ubertest-*) # hundreds of tests in one
      set -- -t complex -u "$top/fabtests/ubertest/${set_name#ubertest-}.test" "$@" -T 3600
      ;;
    *) set -- -t "$set_name" "$@" ;;
  esac
  title "$set_name ($PWD/$set_name.log)"
  "${around[@]}" bash ./runfabtests.sh -vvv -p "$prefix/bin" -f "$top/fabtests/erdma.exclude" \
    "$@" >"$set_name.log" 2>&1 || status=1
  grep -B2 -E '^  result: Fail' "$set_name.log" | sed -n 's/^- name: */FAIL: /p'
  grep -E '^# Total' "$set_name.log" || status=1
  return "$status"
}
