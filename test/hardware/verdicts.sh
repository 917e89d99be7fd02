# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Judges each assumption of docs/hardware.md by the facts of the steps. A verdict is "held", "does not
# hold", or "not known" if a step did not finish; it is never a guess. Sourced by first-hour.sh.

# fact SIDE STEP NAME: prints the last fact of that name, or nothing.
fact() { sed -n "s/^fact ${3//./\\.} //p" "$raw/$1/$2.txt" 2>/dev/null | tail -n 1; }
both() { echo "$(fact client "$1" "$2"), $(fact server "$1" "$2")"; }
ms() { if [[ ${1:-} =~ ^[0-9]+$ ]]; then printf '%d.%03d ms' $(($1 / 1000)) $(($1 % 1000)); else echo never; fi; }
at_most() { [[ ${1:-} =~ ^[0-9]+$ ]] && [ "$1" -le "$2" ]; }
at_least() { [[ ${1:-} =~ ^[0-9]+$ ]] && [ "$1" -ge "$2" ]; }
# each TEXT WANTED...: returns 0 if all words of TEXT ("A, B") are among WANTED.
each() {
  local value
  for value in "${1%%, *}" "${1#*, }"; do
    printf '%s\n' "${@:2}" | grep -qxF -- "$value" || return 1
  done
}

# assume NAME RESTS: begins an assumption, which docs/hardware.md explains. RESTS are the steps that it needs, for example
# "STEP,client:STEP": both sides of the first, and only the client's side of the second.
assume() { name=$1 rests=$2; }
# row VERDICT EVIDENCE: prints a row of the report.
row() {
  local what where
  IFS='|' read -r _ _ what where _ < <(grep -F "| \`$name\` |" "$top/docs/hardware.md")
  printf '| %s | **%s** |%s| %s |%s|\n' "$name" "$1" "$what" "${2//|/\\|}" "$where"
}
sides_of() {
  case $1 in
    client:*) echo client ;;
    *) if [ "$(kind_of "$1")" = here ]; then echo client; else echo client server; fi ;;
  esac
}
# why_unknown: prints the first step without a result, with the cause; returns 1 if each has one.
why_unknown() {
  local each step side
  for each in ${rests//,/ }; do
    step=${each#client:}
    for side in $(sides_of "$each"); do
      case $(status_of "$side" "$step"):$side in
        0:*) continue ;;
        :client) echo "$step: it was not reached" ;;
        :server) echo "$step: nothing came from the other machine${lost:+, which is gone}" ;;
        *) echo "$step: $(cause_at "$side" "$step")" ;;
      esac
      return 0
    done
  done
  return 1
}
cause_at() { echo "$([ "$1" = client ] || echo 'on the other machine: ')$(cause_of "$@")"; }
# verdict EVIDENCE TEST...: prints "held" if TEST... is true.
verdict() {
  local why
  if why=$(why_unknown); then
    row 'not known' "$why"
  elif "${@:2}"; then
    row held "$1"
  else
    row 'does not hold' "$1"
  fi
}

# --- the machines
of_machines() {
  assume adapter limits
  verdict "$(both limits device): port $(both limits port), firmware $(both limits firmware)" \
    each "$(both limits port)" ACTIVE
  assume vendor limits
  verdict "$(both limits vendor)" each "$(both limits vendor)" 7661
  assume queues limits
  verdict "max_qp $(both limits max_qp); max_qp_wr $(both limits max_qp_wr); reads $(both limits reads); inline $(both limits inline)" \
    on_each deep_enough
  assume regions limits
  verdict "max_mr $(both limits max_mr), max_qp $(both limits max_qp)" on_each enough_regions
  assume vectors limits
  verdict "$(both limits vectors)" on_each several_vectors
  assume pages limits
  verdict "$(both limits page_size)" each "$(both limits page_size)" 4096
  assume gid limits
  verdict "$(both limits gid); interfaces $(both limits mac)" on_each gid_is_mac
  assume tcp_ports limits
  verdict "$(both limits listener_in_tcp)" each "$(both limits listener_in_tcp)" yes
  assume fork forks
  verdict "by the kernel: $(both forks kernel_copies); ibv_fork_init: $(both forks fork_init)" \
    each "$(both forks fork_init)" works
  assume memory_events memory_events
  verdict "$(both memory_events userfaultfd)" each "$(both memory_events userfaultfd)" works
  assume port_mapper iwpmd
  verdict "$(cat "$raw/client/iwpmd.txt" "$raw/server/iwpmd.txt" 2>/dev/null | wc -l) processes" \
    [ ! -s "$raw/client/iwpmd.txt" -a ! -s "$raw/server/iwpmd.txt" ]
}
# on_each TEST: returns 0 if TEST is true for the client and for the server.
on_each() { "$1" client && "$1" server; }
deep_enough() { at_least "$(fact "$1" limits max_qp_wr)" 64 && at_least "$(fact "$1" limits reads)" 1; }
enough_regions() {
  local queue_pairs
  queue_pairs=$(fact "$1" limits max_qp)
  at_least "$queue_pairs" 1 && at_least "$(fact "$1" limits max_mr)" $((2 * queue_pairs))
}
several_vectors() { at_least "$(fact "$1" limits vectors)" 2; }
gid_is_mac() {
  local gid
  gid=$(fact "$1" limits gid)
  [ -n "$gid" ] && [ "$gid" = "$(fact "$1" limits mac)" ]
}

# --- what is carried
of_transfers() {
  assume transfers data
  verdict "read back: $(fact client data read), written: $(fact server data written), answered: $(fact client data answered)" \
    each "$(fact client data read), $(fact server data written)" yes
  assume programs rping,ib_send_lat,ib_read_bw,ib_write_bw
  verdict 'all of them' true
  assume first_event first_event
  verdict "$(ms "$(fact client first_event event_us)")" at_most "$(fact client first_event event_us)" 100000
  assume loop loop
  if [[ $(cause_of client loop) = 'the connect '* && $(status_of client data) = 0 ]]; then
    row 'does not hold' "$(cause_of client loop)"
  else
    verdict "read back: $(fact client loop read)" [ "$(fact client loop read)" = yes ]
  fi
  assume costs costs
  verdict "queue pair $(ms "$(fact client costs create_qp_us)"), region $(ms "$(fact client costs reg_4k_us)"), error $(ms "$(fact client costs modify_to_error_us)")" \
    cheap
}
cheap() {
  local each
  for each in create_qp reg_4k modify_to_error; do at_most "$(fact client costs "${each}_us")" 1000 || return; done
}

# --- handshakes
of_handshakes() {
  assume passive_silent client:passive_first
  verdict "arrived: $(fact client passive_first arrived); handshake: $(fact client passive_first handshake)" [ "$(fact client passive_first arrived)" = no ]
  assume nobody_listens client:no_listener
  verdict "$(fact client no_listener outcome), error $(fact client no_listener error)" told_soon
  assume taken_ports client:ports
  local met=$(($(fact client ports in_use) + $(fact client ports not_available) + 0))
  local evidence
  evidence="$(fact client ports connected) of $(fact client ports begun) connected, $met met a taken port, $(fact client ports other_errors) failed otherwise"
  if [ "$(status_of client ports)" = 0 ] && [ $met = 0 ] && at_most "$(fact client ports other_errors)" 0; then
    row 'not known' "no connect met a taken port: $evidence"
  else
    verdict "$evidence" [ "$(fact client ports connected)" = "$(fact client ports begun)" ]
  fi
  assume unanswered unanswered
  if [ "$(status_of client unanswered)" = 124 ] && [ "$(status_of client data)" = 0 ]; then
    row 'does not hold' "$(cause_of client unanswered)" # rdma_connect itself may block
  else
    unless_answered "$(fact client unanswered outcome) after $(ms "$(fact client unanswered us)")" \
      at_most "$(fact client unanswered us)" 30000000
  fi
  assume destroy_waits destroy_waits
  unless_answered "$(ms "$(fact client destroy_waits destroy_qp_us)")" at_least "$(fact client destroy_waits destroy_qp_us)" 100000
}
# unless_answered EVIDENCE TEST...: prints a verdict if the unused address did not answer.
unless_answered() {
  case $(fact client unanswered outcome) in
    *_REJECTED | *_ESTABLISHED) row 'not known' "somebody answered at nobody's address: $1" ;;
    *) verdict "$@" ;;
  esac
}
told_soon() {
  each "$(fact client no_listener error), $(fact client no_listener error)" 104 111 &&
    at_most "$(fact client no_listener us || true)" 2000000
}

# --- endings
ended() { [ -n "$(fact client "$1" active.event)" ] || at_least "$(fact client "$1" active.errors)" 1; }
end_of() {
  echo "$(fact client "$1" active.errors) failed completions, the first after $(ms "$(fact client "$1" active.error_us)"); event ${2:-$(fact client "$1" active.event)} after $(ms "$(fact client "$1" active.event_us)")"
}
of_endings() {
  assume no_receive client:no_receive
  verdict "$(end_of no_receive)" ended no_receive
  assume too_large client:too_large
  verdict "$(end_of too_large)" ended too_large
  assume revoked revoked
  verdict "unchanged: $(fact server revoked unchanged); $(end_of revoked)" untouched
  assume flush client:flush
  verdict "$(fact client flush in_20_ms) of $(fact client flush posted) in 20 ms, $(fact client flush in_3_s) in 3 s; a later send: $(fact client flush after_error)" \
    [ "$(fact client flush in_20_ms)" = "$(fact client flush posted)" ]
  assume peer_closes client:closes
  verdict "$(end_of closes)" soon closes 1000000
  assume peer_killed client:killed
  verdict "$(end_of killed); READ: $(fact client killed heartbeat.errors) failed" dead
  assume silent_peer silent
  verdict '' true
}
untouched() { [ "$(fact server revoked unchanged)" = yes ] && ended revoked; }
soon() { at_most "$(fact client "$1" active.event_us)" "$2" || at_most "$(fact client "$1" active.error_us)" "$2"; }
dead() { soon killed 5000000 || at_least "$(fact client killed heartbeat.errors)" 1; }

# --- memory
of_memory() {
  assume region_below region_below
  verdict "registered: $(fact server region_below registered), last byte written: $(fact server region_below arrived)" \
    [ "$(fact server region_below arrived)" = yes ]
  assume region_4g region_4g
  verdict "registered: $(fact server region_4g registered), last byte written: $(fact server region_4g arrived)" \
    [ "$(fact server region_4g arrived)" = no ]
  assume small_pages small_pages
  verdict "error $(fact client small_pages error), after $(ms "$(fact client small_pages register_us)")" \
    each "$(fact client small_pages error), $(fact client small_pages error)" 0 12
  assume gpu_memory client:gpu
  verdict "$(fact client gpu registered)" [ "$(fact client gpu registered)" = yes ]
  assume gpu_free client:gpu
  verdict "$(ms "$(fact client gpu free_us)")" at_most "$(fact client gpu free_us)" 1000000
}

# --- programs of the project: if one fails or hangs while bare verbs work between the machines, the assumption does
# not hold
of_suite() {
  local each side
  for each in pingpong_tagged pingpong_msg paths_message paths_read paths_write peer_death own_loop kill_stress mpi; do
    assume "suite_$each" "$each"
    if side=$(failed_side "$each") && [ "$(status_of client data)" = 0 ] && began "$each"; then
      row 'does not hold' "$(cause_at "$side" "$each")"
    else
      verdict "$(suite_bytes "$each")" true
    fi
  done
}
# failed_side STEP: prints the side whose program failed; the server only if the client did not fail.
failed_side() {
  local side
  for side in $(sides_of "$1"); do
    case $(status_of "$side" "$1") in
      0) continue ;;
      '' | 77 | short | stuck) return 1 ;;
    esac
    echo "$side"
    return
  done
  return 1
}
# The launcher of the ranks may fail for other reasons.
began() { [ "$1" != mpi ] || grep -q '^mpi_check: ' "$raw/client/mpi.txt"; }
suite_bytes() {
  local bytes
  bytes=$(grep -ohE '[0-9]+ bytes in packets, [0-9]+ by RDMA READ, [0-9]+ by RDMA WRITE' "$raw/client/$1.txt" 2>/dev/null | tail -n 1)
  echo "${bytes:-it passed}"
}

all_verdicts() { of_machines; of_transfers; of_handshakes; of_endings; of_memory; of_suite; }

write_report() {
  local rows step side
  rows=$(all_verdicts)
  printf '# First hour on hardware\n\n'
  printf '%s: %s, adapter %s (this machine), and %s.\n\n' "$(date -u '+%F %T UTC')" "$own" "${device:-none}" "$peer"
  [ -z "$old_probe" ] || printf '%s\n\n' "$old_probe"
  for side in client server; do printf -- '- %s: %s\n' $side "$(head -n 1 "$raw/$side/uname.txt" 2>/dev/null)"; done
  printf -- '- driver: %s\n' "$(grep -m 1 -E '^version:|^vermagic:' "$raw/client/modinfo.txt" 2>/dev/null || cause_of client modinfo)"
  printf -- '- it took %d s\n\n' "$SECONDS"
  printf '%s assumptions held, %s do not hold, %s are not known.\n\n' "$(grep -c '\*\*held\*\*' <<<"$rows")" \
    "$(grep -c '\*\*does not hold\*\*' <<<"$rows")" "$(grep -c '\*\*not known\*\*' <<<"$rows")"
  printf '## Verdicts\n\n| assumption | verdict | what is assumed | evidence | where the code depends on it |\n|---|---|---|---|---|\n%s\n\n' "$rows"
  printf '## Figures\n\n```\n'
  grep -hE '^[a-z0-9_]+: median' "$raw/client/costs.txt" 2>/dev/null
  for step in ib_send_lat ib_read_bw ib_write_bw; do
    grep -hE -A 1 '^ *#bytes' "$raw/client/$step.txt" 2>/dev/null | sed "s/^/$step /"
  done
  printf '```\n\n## Steps\n\n| step | client | server |\n|---|---|---|\n'
  for step in $(all_steps); do
    printf '| %s | %s | %s |\n' "$step" "$(cell client "$step")" "$(cell server "$step")"
  done
  printf '\nWhat each program said: raw.tar.gz.\n'
}
cell() {
  case $(status_of "$1" "$2") in
    0) echo ran ;;
    *) cause_of "$1" "$2" | tr '|' '/' ;;
  esac
}
