# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# What pod.sh needs: a seccomp profile, and a python3. The caller sets `profiles`, a folder, `top` and `python`.

# default_profile: makes $profiles/default.json. An archive that does not answer is given up after 2 minutes.
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

# more_profile: makes $profiles/more.json, with the calls that erdma has a use for.
more_profile() {
  "$python" "$top/examples/allow_calls.py" "${1:-$profiles/default.json}" userfaultfd process_vm_readv process_vm_writev \
    >"$profiles/more.json"
}
