# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The checks of test/pods/run.sh, in addition to those of test/clients/checks.sh. They also use profiles and python from
# the environment.

# pod PROFILE BYTES COMMAND...: runs the command in a pod.
pod() { bash "$top/test/pods/pod.sh" "$profiles/$1.json" "${@:2}"; }
# one_pod PROFILE BYTES CHECK...: runs the whole check in one pod.
one_pod() {
  # shellcheck disable=SC2016
  pod "$1" "$2" bash -c '. "$here/checks.sh" && . "$more_checks" && "$@"' _ "${@:3}"
}

# call_is permitted|refused CALL PROFILE: CALL is userfaultfd, or clock_settime, which default profiles permit administrators alone.
call_is() {
  local found
  found=$(pod "$3" 1m "$python" -c 'import ctypes, errno, platform, sys
numbers = {"x86_64": {"userfaultfd": 323, "clock_settime": 227}, "aarch64": {"userfaultfd": 282, "clock_settime": 112}}
libc = ctypes.CDLL(None, use_errno=True)
# No clock has the number 99, which the kernel finds before it asks for rights.
done = libc.syscall(numbers[platform.machine()][sys.argv[1]], {"userfaultfd": 1, "clock_settime": 99}[sys.argv[1]], None)
print("permitted" if done >= 0 or ctypes.get_errno() == errno.EINVAL else "refused")' "$2") || wrong 'it could not be tried'
  [ "$found" = "$1" ] || wrong "$2 is $found"
}
# Checks whether the profile refuses the call by a rule of its own, as Podman's, or by the lack of one, as Docker's.
allowed_calls_work() {
  . "$top/test/pods/profile.sh"
  more_profile || wrong "exit status $?"
  call_is permitted userfaultfd more
  more_profile "$profiles/refusing.json" || wrong "exit status $?"
  call_is permitted userfaultfd more
  one_pod more 64m ranks 2 0 ''
}
# containerd, which starts the containers of Kubernetes, ignores the conditions of rules.
allowed_calls_work_in_kubernetes() {
  . "$top/test/pods/profile.sh"
  kubernetes_profile || wrong "exit status $?"
  more_profile || wrong "exit status $?"
  call_is refused clock_settime more
  export profile_reader=containerd
  call_is permitted clock_settime more
  call_is refused clock_settime kubernetes
  call_is permitted userfaultfd kubernetes
  one_pod kubernetes 64m ranks 2 0 ''
}

# ping_between "SERVER_PREFIX" "CLIENT_PREFIX" [NAME=VALUE...]: runs fi_pingpong; the words of a prefix contain no blanks.
ping_between() {
  needs fi_pingpong
  local port server status=0 first second arguments=(fi_pingpong -p "$provider" -e rdm -c -S all -I 5)
  read -ra first <<<"$1"
  read -ra second <<<"$2"
  port=$((20000 + RANDOM % 12000))
  env "${@:3}" "${first[@]}" "${arguments[@]}" -B "$port" & server=$!
  await_listener "$port" || wrong 'the server does not listen'
  env "${@:3}" "${second[@]}" "${arguments[@]}" -P "$port" 127.0.0.1 || status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
}
ping_checked() {
  ping_between '' ''
  told 0 ''
}
one_pod_uses_cma() {
  one_pod default 64m ping_between '' '' FI_LOG_LEVEL=info FI_LOG_PROV="$provider"
  carried_by_provider none
}
pods_each() {
  local own="bash $top/test/pods/pod.sh $profiles/default.json 64m"
  ping_between "$own" "$own"
  told 2 "CMA is refused as the peer is in a pid namespace that can't be seen"
}

# told LINES WHY: checks that the log has LINES lines of the provider, and that each begins with WHY.
told() {
  [ "$provider" = erdma ] || return 0
  local lines of_this
  lines=$(grep -c '^erdma: ' "$log")
  of_this=$(grep -cE "^erdma: [^ ]+\[[0-9]+\]: $2" "$log")
  echo "# lines of the provider: $lines, of which $of_this as expected"
  [ "$lines,$of_this" = "$1,$1" ] || wrong "not $1 lines"
}

# ranks N LINES WHY: runs a job of N ranks without any log variable.
ranks() { job "$1" "$2" "$3"; }
# ranks_apart PROFILE N LINES WHY: the same with each rank in its own pod.
ranks_apart() { job "${@:2}" bash "$top/test/pods/pod.sh" "$profiles/$1.json" 64m; }
# job N LINES WHY PREFIX...: runs the job and checks its lines.
job() {
  needs mpirun
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  mpirun -n "$1" "${@:4}" "$bin/mpi_check" lengths storm broadcast all_to_all reductions || wrong "exit status $?"
  grep -q "^mpi_check: .* on $1 ranks passed" "$log" || wrong 'no closing line'
  told "$2" "$3"
}

# without_shm CHECK...: runs a check while /dev/shm is full.
without_shm() {
  ! dd if=/dev/zero of=/dev/shm/full bs=4k status=none || wrong '/dev/shm has no end'
  "$@"
}
