# shellcheck shell=bash disable=SC2154,SC2034
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The steps of first-hour.sh: the command of each, its machine, and its time limit.
#   both: on each machine at the same time; pair: a server and a client; here: only on the client's machine.
clients=$build/clients fi_erdma=$build/prov/fi_erdma/fi_erdma
step_table='
uname            both 10
ibv_devinfo      both 20
rdma_link        both 10
modinfo          both 10
parameters       both 10
iwpmd            both 10
limits           both 30
forks            both 10
memory_events    both 10
costs            here 60
small_pages      here 60
gpu              both 30
data             pair 60
first_event      pair 30
rping            pair 40
ib_send_lat      pair 60
ib_read_bw       pair 60
ib_write_bw      pair 60
loop             here 40
passive_first    pair 30
no_receive       pair 30
too_large        pair 30
revoked          pair 30
flush            pair 40
closes           pair 30
killed           pair 60
silent           here 10
region_below     pair 60
region_4g        pair 60
ports            pair 120
no_listener      pair 40
unanswered       here 60
destroy_waits    here 60
pingpong_tagged  pair 120
pingpong_msg     pair 120
paths_message    pair 60
paths_read       pair 60
paths_write      pair 60
peer_death       pair 120
own_loop         here 90
kill_stress      here 120
mpi              here 120
'
column() { awk -v step="$1" -v at="$2" '$1 == step { print $at }' <<<"$step_table"; }
all_steps() { awk 'NF { print $1 }' <<<"$step_table"; }
is_step() { [[ $1 =~ ^[a-z0-9_]+$ ]] && [ -n "$(column "$1" 2)" ]; }
kind_of() { column "$1" 2; }
# No step gets more than the remaining time. A server runs longer than its client, which would fail without it.
limit_of() {
  local seconds rest
  seconds=$(column "$1" 3) rest=$((limit - SECONDS))
  if [ "$role" = server ]; then
    seconds=$((seconds + 30))
  elif [ $rest -le "$seconds" ]; then
    seconds=$((rest > 5 ? rest : 5))
  fi
  echo "$seconds"
}
# Each program has a port of its own, as one that was just used may still be taken.
port_of() {
  case $1 in
    loop | rping) echo $((port + 2)) ;;
    ib_*) echo $((port + 3)) ;;
    pingpong_* | own_loop) echo $((port + 4)) ;;
    paths_* | peer_death) echo $((port + 5)) ;;
    *) echo $((port + 1)) ;;
  esac
}

# device_is ADDRESS: sets `device` to the NIC that has the address, or to nothing.
device_is() {
  bounded 30 "$mine/device.txt" "$probe" limits --own "$1"
  device=$(sed -n 's/^fact device //p' "$mine/device.txt")
  # shellcheck disable=SC2034
  no_device=$(tail -n 1 "$mine/device.txt")
}

# command_of STEP server|client|alone: sets `command`; or returns 1 and sets `cause` if the step cannot run.
command_of() {
  command=() cause=
  case $1 in
    uname) command=(uname -a) ;;
    ibv_devinfo) tool ibv_devinfo -v ;;
    rdma_link) tool rdma link show ;;
    modinfo) tool modinfo erdma ;;
    parameters) command=(grep -r . /sys/module/erdma/parameters) ;;
    iwpmd) command=(bash -c 'grep -sl "^iwpmd$" /proc/[0-9]*/comm; true') ;;
    forks | memory_events) command=("$probe" "$1") ;;
    limits | costs | small_pages | gpu) of_device && command=("$probe" "$1" --own "$own") ;;
    unanswered | destroy_waits) of_device && to_nobody "$1" ;;
    silent) cause='nothing here can take frames of the adapter away: deny the traffic in the security group while fi_pingpong runs' ;;
    rping | loop | ib_*) of_device && of_others "$@" ;;
    pingpong_* | paths_* | peer_death | own_loop | kill_stress | mpi) of_device && of_ours "$@" ;;
    *) of_device && of_pair "$@" ;;
  esac
  [ -z "$cause" ] && [ ${#command[@]} -gt 0 ]
}
tool() {
  command -v "$1" >/dev/null || { cause="there is no $1 here"; return 1; }
  command=("$@")
}
of_device() {
  [ -n "$device" ] || cause=${no_device:-there is no adapter}
  [ -n "$device" ]
}

# of_pair CASE server|client: sets the command of a case of probe; each case needs further options on one side.
of_pair() {
  command=("$probe" "$1" --own "$own" --port "$(port_of "$1")")
  [ "$2" = server ] || command+=(--peer "$peer")
  case $1:$2 in
    region_*:server) huge_page ;;
    ports:client) narrow_range && command+=(--extra 40000-40199) ;;
  esac
}
huge_page() {
  local file=/proc/sys/vm/nr_hugepages
  [ "$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)" = 0 ] || return 0
  set_file $file $(($(cat $file) + 2)) || true # the case itself reports missing huge pages
}
narrow_range() {
  set_file /proc/sys/net/ipv4/ip_local_port_range '40000 40199' && return
  command=() cause='the range of ports can be narrowed by root alone'
  return 1
}

# near_nobody INTERFACE: sets `nobody` to an address of the subnet that is unused, as far as this machine knows. The last
# addresses of a subnet belong to the cloud, including the gateway.
near_nobody() {
  local known last
  known=" $own $peer $({ ip -4 neigh show; ip -4 route show; } 2>/dev/null | tr '\n' ' ') "
  for last in $(seq 240 -1 2); do
    nobody=${own%.*}.$last
    [[ $known = *" $nobody "* ]] || [[ $(ip -o route get "$nobody" 2>/dev/null) != "$nobody dev $1 "* ]] || return 0
  done
  cause='this machine knows of no free address beside its own'
  return 1
}
# Packets to the unused address go to the other machine, which drops them.
to_nobody() {
  local line interface='' mac nobody
  tool ip || return
  line=$(ip -o route get "$peer" 2>/dev/null) && interface=$(sed -n 's/.* dev \([^ ]*\).*/\1/p' <<<"$line")
  mac=$(ip neigh show "$peer" dev "${interface:-lo}" 2>/dev/null | sed -n 's/.*lladdr \([^ ]*\).*/\1/p')
  [ -n "$mac" ] || { cause='the MAC address on the way to the other machine is not known'; return 1; }
  near_nobody "$interface" || return
  ip neigh replace "$nobody" lladdr "$mac" nud permanent dev "$interface" 2>/dev/null ||
    { cause='a neighbour can be added by root alone'; return 1; }
  neighbour="$nobody $interface"
  command=("$probe" "$1" --own "$own" --peer "$nobody" --port "$(port_of "$1")")
}

# --- programs of rdma-core and perftest
of_others() {
  local to=()
  [ "$2" != client ] || to=("$peer")
  case $1 in
    rping)
      if [ "$2" = server ]; then tool rping -s -a "$own" -p "$(port_of rping)" -v -C 20
      else tool rping -c -a "$peer" -p "$(port_of rping)" -v -C 20; fi
      ;;
    ib_send_lat) tool "$1" -R -e -n 1000 -d "$device" -p "$(port_of "$1")" "${to[@]}" ;;
    ib_*) tool "$1" -R -n 500 -s 65536 -d "$device" -p "$(port_of "$1")" "${to[@]}" ;;
    loop)
      # shellcheck disable=SC2016
      command=(bash -c '"$1" data --own "$2" --port "$3" >"$4" & server=$!
        for _ in $(seq 100); do ! grep -q ^ready "$4" || break; sleep 0.1; done
        status=0
        "$1" data --own "$2" --peer "$2" --port "$3" || status=$?
        [ $status = 0 ] || kill $server
        wait $server
        exit $status' _ "$probe" "$own" "$(port_of loop)" "$mine/loop.server.txt")
      ;;
  esac
}

# --- programs of the project: the provider must use only this NIC
of_ours() {
  local level=info devices=$device end=() sides=()
  if [ "$2" = server ]; then
    end=(-B "$(port_of "$1")") sides=(--serve -P "$(port_of "$1")")
  else
    end=(-P "$(port_of "$1")" "$peer") sides=(--peer "$peer" -P "$(port_of "$1")")
  fi
  case $1 in
    pingpong_*) tool fi_pingpong -p erdma -e rdm -c -I 20 -S all -m "${1#pingpong_}" "${end[@]}" ;;
    paths_*) of_build "$fi_erdma" bench -S all --nic-only --operation "${1#paths_}" --expect nic "${sides[@]}" ;;
    peer_death) of_build "$fi_erdma" test peer-death --nic-only "${sides[@]}" ;;
    own_loop) of_build "$clients/fi_order" --messages 1500 --batches 4 ;;
    kill_stress) level=warn && of_build "$clients/fi_kill_stress" --rounds 4 --limit-ms 30000 ;;
    mpi) of_mpi && { [ "${other_device:-$device}" = "$device" ] || devices+=,$other_device; } ;;
  esac || return
  command=(env "FI_PROVIDER_PATH=$build/.libs" FI_PROVIDER=erdma "FI_ERDMA_DEVICE=$devices"
    "FI_LOG_LEVEL=$level" FI_LOG_PROV=erdma FI_ERDMA_SHM=off "${command[@]}")
}
of_build() {
  [ -x "$1" ] || { cause="${1##*/} is not built"; return 1; }
  command=("$@")
}
of_mpi() {
  of_build "$clients/mpi_check" && tool mpirun || return
  command -v ssh >/dev/null || { cause='there is no ssh, by which mpirun reaches the other machine'; return 1; }
  timeout 10 ssh -o BatchMode=yes -o ConnectTimeout=5 "$peer" test -x "$clients/mpi_check" </dev/null 2>/dev/null ||
    { cause="ssh does not reach $peer without a password, or there is no $clients/mpi_check"; return 1; }
  command=(env OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_btl=^ofi OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 2 --map-by node -H "$own:1,$peer:1" -x FI_PROVIDER_PATH -x FI_PROVIDER
    -x FI_ERDMA_DEVICE -x FI_LOG_LEVEL -x FI_LOG_PROV "$clients/mpi_check")
}
