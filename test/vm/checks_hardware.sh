# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks of guest_hardware.sh.

# first_hour ADDRESS_OF_A [OPTION]...: runs the script on both hosts; the client's folder is /tmp/client.
first_hour() {
  local address=$1 server status=0
  local run=(env top_builddir="$(dirname "$bin")" bash "$top/test/hardware/first-hour.sh")
  shift
  ip netns exec A "${run[@]}" -o /tmp/server "$@" server & server=$!
  ip netns exec B "${run[@]}" -o /tmp/client "$@" client "$address" || status=1
  wait "$server" || status=1
  [ $status = 0 ] || wrong 'a side failed'
  cat /tmp/client/report.md
  [ -s /tmp/client/raw.tar.gz ] || wrong 'no raw output'
}

# expect VERDICT ASSUMPTION...: checks rows of the report.
expect() {
  local verdict=$1 each
  for each in "${@:2}"; do
    grep -qE "^\| $each \| \*\*$verdict\*\*" /tmp/client/report.md ||
      wrong "$each: $(grep "^| $each |" /tmp/client/report.md || echo 'no line')"
  done
}

# verdicts_of siw|erdma: the expected verdicts, from the source of the driver or the settings of the model. With siw,
# rdma_connect itself blocks as long as TCP retransmits.
verdicts_of() {
  expect held adapter gid tcp_ports fork transfers first_event taken_ports revoked peer_closes peer_killed
  expect 'not known' silent_peer gpu_memory gpu_free
  [ "$(cat /tmp/client/raw/client/gpu.status)" = 77 ] || wrong "gpu: $(cat /tmp/client/raw/client/gpu.cause)"
  case $1 in
    siw) expect 'does not hold' vendor unanswered ;;
    erdma) expect held vendor unanswered destroy_waits ;;
  esac
  grep '^| ' /tmp/client/report.md
}
