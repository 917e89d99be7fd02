# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The checks of run.sh. Each runs in a shell of its own with its output in $log; its exit status is the result. They use
# top, provider, here, bin, logs, log and python from the environment.
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"

skip() { echo "$*"; exit 77; }
wrong() { echo "WRONG: $*"; exit 1; }
with() { export "$1=$2"; "${@:3}"; }
needs() { command -v "$1" >/dev/null || skip "there is no $1 here"; }

# refusing CALLS ERRNO: sets `wrapper`, to nothing if CALLS is "none".
refusing() {
  wrapper=()
  [ "$1" = none ] || wrapper=("$bin/refuse_cma" --calls "$1" --errno "$2")
}

# warnings_match CALLS RANKS: checks that there is one warning for each process and peer, and no other. Ranks that
# exchange no long message need not warn; of two ranks, both must.
warnings_match() {
  [ "$provider" = erdma ] || return 0
  local calls=$1 ranks=$2 count unique directions=0
  local pattern='process_vm_[a-z]+ from process [0-9]+ on process [0-9]+'
  count=$(grep -ci 'continuing by copy' "$log")
  unique=$(grep -i 'continuing by copy' "$log" | grep -oE "$pattern" | sort -u | wc -l)
  [ "$calls" = none ] || directions=$((ranks * (ranks - 1)))
  echo "# warnings: $count, of which different: $unique"
  [ "$count" -eq "$unique" ] || wrong 'a warning was repeated'
  if [ $directions -eq 0 ]; then
    [ "$count" -eq 0 ] || wrong 'CMA was refused where it should not be'
    return 0
  fi
  [ "$count" -gt 0 ] || wrong 'no warning at all'
  [ "$count" -le $directions ] || wrong 'more warnings than directions'
  [ "$ranks" -ne 2 ] || [ "$count" -eq 2 ] || wrong 'not one warning for each direction'
  [ "$calls" != writev ] ||
    ! grep -i 'continuing by copy' "$log" | grep -qv 'process_vm_writev from' ||
    wrong 'a warning about reading, which is allowed'
}

# carried_by_provider CALLS: checks the path of the bytes by the counters that are logged at close.
carried_by_provider() {
  [ "$provider" = erdma ] || return 0
  local sums cma_read cma_write copied rings
  grep -q 'bytes through rings' "$log" || wrong 'the provider closed no endpoint: not over erdma?'
  sums=$(grep -oE '[0-9]+ bytes through rings, [0-9]+ by CMA read, [0-9]+ by CMA write, [0-9]+ copied in' \
    "$log" | awk '{ r += $1; cr += $5; cw += $9; c += $13 } END { printf "%.0f %.0f %.0f %.0f\n", r, cr, cw, c }')
  read -r rings cma_read cma_write copied <<<"$sums"
  echo "# bytes: $rings through rings, $cma_read CMA read, $cma_write CMA write, $copied copied"
  [ "$rings" -gt 0 ] || wrong 'nothing went through the rings'
  case $1 in
    none) [ $((cma_read + cma_write)) -gt 0 ] || wrong 'CMA was not used' ;;
    readv)
      [ "$cma_read" -eq 0 ] || wrong 'read by CMA although refused'
      [ "$cma_write" -gt 0 ] || wrong 'nothing was written by CMA although allowed'
      ;;
    writev) [ "$cma_write" -eq 0 ] || wrong 'written by CMA although refused' ;;
    *)
      [ $((cma_read + cma_write)) -eq 0 ] || wrong 'CMA was used although refused'
      [ "$copied" -gt 0 ] || wrong 'nothing was copied'
      ;;
  esac
}

# The log level is info, which includes the counters and the warnings. Runs as user $RUN_AS if that is
# set.
with_log() {
  local as=()
  [ -z "${RUN_AS:-}" ] ||
    as=(setpriv "--reuid=$RUN_AS" "--regid=$RUN_AS" --clear-groups env HOME=/tmp)
  env FI_LOG_LEVEL=info FI_LOG_PROV="$provider" "${as[@]}" "$@" || wrong "exit status $?"
}

fi_info_lists() {
  needs fi_info
  fi_info -p "$provider" | tee /dev/stderr | grep -q "provider: $provider" || wrong 'not listed'
  fi_info -p "$provider" -t FI_EP_RDM -c 'FI_MSG|FI_TAGGED' || wrong 'no tagged RDM endpoint'
}

# ping MESSAGE CALLS [ERRNO]
ping() {
  needs fi_pingpong
  refusing "$2" "${3:-}"
  local port server status=0
  local arguments=(-p "$provider" -e rdm -m "$1" -c -S all -I 10)
  port=$((20000 + RANDOM % 12000))
  with_log "${wrapper[@]}" fi_pingpong "${arguments[@]}" -B "$port" & server=$!
  await_listener "$port" || wrong 'the server does not listen'
  (with_log "${wrapper[@]}" fi_pingpong "${arguments[@]}" -P "$port" 127.0.0.1) || status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
  warnings_match "$2" 2
  carried_by_provider "$2"
}

# hooked: fi_pingpong below those of libfabric's layers that this libfabric has: monitor and trace came with 2.x.
hooked() {
  needs fi_pingpong
  local hook hooks=noop
  fi_info -l | grep ofi_hook_noop: || wrong 'this libfabric has no hooks'
  for hook in monitor trace; do
    ! fi_info -l | grep "ofi_hook_$hook:" || hooks+=";$hook"
  done
  FI_HOOK=$hooks ping tagged none
}

# silent_ping CALLS ERRNO [NAME=VALUE...]: runs fi_pingpong without any log variable; the
# provider's lines are then in $log.
silent_ping() {
  needs fi_pingpong
  refusing "$1" "$2"
  shift 2
  local port server status=0 run=(env -u FI_LOG_LEVEL -u FI_LOG_PROV -u FI_LOG_SUBSYS "$@")
  local arguments=(-p "$provider" -e rdm -c -I 10 -S 1048576)
  port=$((20000 + RANDOM % 12000))
  "${run[@]}" "${wrapper[@]}" fi_pingpong "${arguments[@]}" -B "$port" & server=$!
  await_listener "$port" || wrong 'the server does not listen'
  "${run[@]}" "${wrapper[@]}" fi_pingpong "${arguments[@]}" -P "$port" 127.0.0.1 || status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
}

# seen LINES CALLS ERRNO [NAME=VALUE...]: checks that there are LINES lines on standard error, each of another
# process, with cause and remedy.
seen() {
  [ "$provider" = erdma ] || skip 'other providers have other messages'
  local lines=$1 count processes
  shift
  silent_ping "$@"
  count=$(grep -c '^erdma: ' "$log")
  processes=$(grep -oE '^erdma: [^ ]+\[[0-9]+\]: CMA is refused .*\. Remedy: .' "$log" |
    cut -d' ' -f2 | sort -u | wc -l)
  echo "# lines of the provider: $count, of processes that name a remedy: $processes"
  [ "$count" -eq "$lines" ] || wrong "$count lines instead of $lines"
  [ "$processes" -eq "$lines" ] || wrong 'a line without cause and remedy, or two of one process'
}

# seen_in_one_place: checks that standard error has no further line if libfabric's log shows warnings.
seen_in_one_place() {
  seen 0 readv,writev EPERM FI_LOG_LEVEL=warn FI_LOG_PROV="$provider"
  warnings_match readv,writev 2
}

# launch RANKS CALLS ERRNO PROGRAM...: runs an MPI job on this node, unless the caller has set
# `nodes`.
nodes=()
launch() {
  local ranks=$1
  refusing "$2" "$3"
  shift 3
  needs mpirun
  with_log mpirun "${nodes[@]}" -n "$ranks" "${wrapper[@]}" "$@"
}

# mpi RANKS CALLS [ERRNO]
mpi() {
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  launch "$1" "$2" "${3:-}" "$bin/mpi_check"
  grep -q "^mpi_check: .* on $1 ranks passed" "$log" || wrong 'no closing line'
  warnings_match "$2" "$1"
  carried_by_provider "$2"
}

# one_sided RANKS CALLS [ERRNO]: tests MPI windows with osc/rdma over btl/ofi, which has its own
# endpoint.
use_one_sided() { export OMPI_MCA_osc=rdma OMPI_MCA_btl=ofi,self; }
one_sided() {
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  use_one_sided
  launch "$1" "$2" "${3:-}" "$bin/mpi_check" one_sided
  grep -q "^mpi_check: .* on $1 ranks passed" "$log" || wrong 'no closing line'
  carried_by_provider "$2"
}

# one_sided_apart RANKS CALLS [ERRNO]: the same as if on two nodes, so that Open MPI does not use
# its own shared memory.
one_sided_apart() {
  unshare -u true 2>/dev/null || skip 'no right to make a namespace of host names'
  use_agent "$top/test/lib/node_agent.sh"
  nodes=(--map-by node -H "A:$1,B:$1" -x FI_LOG_LEVEL -x FI_LOG_PROV)
  one_sided "$@"
}

mpi_without_cma() {
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  export FI_ERDMA_CMA=off
  launch 2 none '' "$bin/mpi_check"
  warnings_match none 2
  carried_by_provider readv,writev
}

# in_private_mounts COMMAND...: runs COMMAND with a /dev/shm of 64 MiB and, unless the tested build
# is in /tmp, with its own /tmp; then $private_tmp is set.
private_tmp=yes
case $bin:${FI_PROVIDER_PATH:-} in /tmp/* | *:/tmp/*) private_tmp= ;; esac
in_private_mounts() {
  unshare -m true 2>/dev/null || skip 'no right to make a mount namespace'
  # shellcheck disable=SC2016
  unshare -m bash -c 'mount -t tmpfs -o size=64m shm /dev/shm || exit
    if [ -n "$1" ]; then mount -t tmpfs tmp /tmp || exit; fi
    shift; exec "$@"' _ "$private_tmp" "$@"
}

mpi_small_shm() {
  [ -x "$bin/mpi_check" ] || skip 'there was no mpicc'
  in_private_mounts env FI_LOG_LEVEL=info FI_LOG_PROV="$provider" \
    mpirun -n 4 "$bin/mpi_check" || return
  carried_by_provider none
}

# story CALLS [ERRNO] [MEGABYTES]
story() {
  [ -n "${python:-}" ] || skip 'no python3 with mpi4py and numpy'
  launch 4 "$1" "${2:-}" "$python" "$here/story.py" "${3:-20}"
  grep -q 'story: .* right$' "$log" || wrong 'no closing line'
  warnings_match "$1" 4
  carried_by_provider "$1"
}

# netpipe CALLS ERRNO OPTION...
netpipe() {
  needs NPopenmpi
  local calls=$1 error=$2
  shift 2
  cd "$(mktemp -d)" || return
  launch 2 "$calls" "$error" NPopenmpi -n 10 -p 1 "$@" -o np.out
  ! grep -qiE 'integrity check failed|error:' "$log" || wrong 'wrong data'
  warnings_match "$calls" 2
  carried_by_provider "$calls"
  rm -rf "$PWD"
}

# hpcc_small CALLS [ERRNO]
hpcc_small() {
  needs hpcc
  cd "$(mktemp -d)" || return
  sed 's/^  //' >hpccinf.txt <<'  INPUT'
  HPLinpack benchmark input file
  erdma
  HPL.out      output file name (if any)
  8            device out (6=stdout,7=stderr,file)
  1            # of problems sizes (N)
  300          Ns
  1            # of NBs
  40           NBs
  0            PMAP process mapping (0=Row-,1=Column-major)
  1            # of process grids (P x Q)
  2            Ps
  2            Qs
  16.0         threshold
  1            # of panel fact
  2            PFACTs (0=left, 1=Crout, 2=Right)
  1            # of recursive stopping criterium
  4            NBMINs (>= 1)
  1            # of panels in recursion
  2            NDIVs
  1            # of recursive panel fact.
  1            RFACTs (0=left, 1=Crout, 2=Right)
  1            # of broadcast
  1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
  1            # of lookahead depth
  1            DEPTHs (>=0)
  2            SWAP (0=bin-exch,1=long,2=mix)
  64           swapping threshold
  0            L1 in (0=transposed,1=no-transposed) form
  0            U  in (0=transposed,1=no-transposed) form
  1            Equilibration (0=no,1=yes)
  8            memory alignment in double (> 0)
  0            Number of additional problem sizes for PTRANS
  1200 10000 30000  values of N
  0            number of additional blocking sizes for PTRANS
  40 9 8 13 13 20 16 32 64  values of NB
  INPUT
  launch 4 "$1" "${2:-}" hpcc
  grep -q '^Success=1' hpccoutf.txt || { tail -n 50 hpccoutf.txt; wrong 'HPCC does not say Success=1'; }
  ! grep -E 'FAILED|^[A-Za-z_]*[Ff]ailure=[1-9]' hpccoutf.txt || wrong 'a part of HPCC failed'
  grep -E 'PASSED|residual|Success=|RandomlyOrderedRing|NaturallyOrderedRing' hpccoutf.txt
  warnings_match "$1" 4
  carried_by_provider "$1"
  rm -rf "$PWD"
}

# Programs for libfabric that check themselves. Only warnings are logged, because counters of thousands of
# processes would fill the log.
stress() { env FI_LOG_LEVEL=warn FI_LOG_PROV="$provider" "$bin/$1" "${@:2}"; }
stress_refused() {
  env FI_LOG_LEVEL=warn FI_LOG_PROV="$provider" "$bin/refuse_cma" "$bin/$1" "${@:2}" || return
  [ "$provider" != erdma ] || grep -qi 'continuing by copy' "$log" || wrong 'no warning at all'
}
# Files that are left behind are an error, unless other programs may have left them there.
kill_stress_private() {
  in_private_mounts "$bin/fi_kill_stress" "$@" ${private_tmp:+--strict}
}

# own COMMAND [OPTION...]: runs a subcommand of fi_erdma that moves bytes. Its status 1 means that it cannot be tried
# here, but sanitizers use this status as well. own_environment: VARIABLE=VALUE...
own_environment=()
own() {
  local status=0
  [ -x "$fi_erdma" ] || skip "there is no $fi_erdma: configure lacked what it needs"
  env FI_LOG_LEVEL=warn FI_LOG_PROV="$provider" ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}exitcode=99" \
    UBSAN_OPTIONS="${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}exitcode=99" "${own_environment[@]}" \
    "$fi_erdma" "$@" || status=$?
  [ "$status" != 1 ] || exit 77
  return "$status"
}
# own_fails WHY COMMAND [OPTION...]: checks that the subcommand fails with the text WHY.
own_fails() {
  local why=$1 status=0
  shift
  own "$@" || status=$?
  [ "$status" = 2 ] || wrong "exit status $status instead of 2"
  grep -q "$why" "$log" || wrong "it does not say '$why'"
}
