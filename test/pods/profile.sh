# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Creates the seccomp profiles for pod.sh. The caller sets `profiles`, a folder, `top` and `python`.

# default_profile: creates $profiles/default.json. It gives up after 2 minutes if the archive does not answer.
default_profile() {
  local package=golang-github-containers-common
  local from=${ERDMA_SECCOMP_PROFILE:-$profiles/$package/usr/share/containers/seccomp.json}
  [ -s "$from" ] || (cd "$profiles" && timeout 120 apt-get -o Acquire::Retries=0 download "$package" &&
    dpkg-deb -x "$package"_*.deb "$package") || return
  cp "$from" "$profiles/default.json"
}
python_with_seccomp() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import seccomp' 2>/dev/null || continue
    command -v "$candidate"
    return
  done
  return 1
}

# more_profile [FILE]: creates $profiles/more.json, which also allows the calls that erdma uses.
more_profile() {
  "$python" "$top/examples/allow_calls.py" "${1:-$profiles/default.json}" userfaultfd process_vm_readv process_vm_writev \
    >"$profiles/more.json"
}
# kubernetes_profile: creates $profiles/kubernetes.json, the same for a kubelet on this machine.
kubernetes_profile() {
  local arch=amd64
  [ "$(uname -m)" != aarch64 ] || arch=arm64
  "$python" "$top/examples/allow_calls.py" --kubernetes $arch "$profiles/default.json" userfaultfd process_vm_readv process_vm_writev \
    >"$profiles/kubernetes.json"
}
