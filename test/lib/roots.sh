# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Installs releases of Debian into folders, as root. ERDMA_DEBIAN_MIRROR names a mirror other than
# Debian's own.

# can_make_roots: prints the reason and returns 1 if it cannot.
can_make_roots() {
  if [ "$(id -u)" != 0 ]; then
    echo 'debootstrap needs the rights of root'
  elif ! command -v debootstrap >/dev/null; then
    echo 'there is no debootstrap'
  elif ! unshare -m -p -f true 2>/dev/null; then
    echo 'no right to make namespaces of mounts and processes'
  else
    return 0
  fi
  return 1
}

# bootstrap SUITE ROOT: installs a release, unless ROOT is complete already. Mounts of debootstrap end with it.
bootstrap() {
  if [ ! -e "$2/whole" ]; then
    rm -rf --one-file-system "$2"
    unshare -m debootstrap --variant=minbase "$1" "$2" "${ERDMA_DEBIAN_MIRROR:-http://deb.debian.org/debian}" &&
      touch "$2/whole" || return
  fi
  cp /etc/hosts /etc/resolv.conf "$2/etc/"
}

# in_root ROOT COMMAND...: runs the command in ROOT. Its mounts and processes end with it. It does not use chroot,
# because unshare would then refuse namespaces that the tests need. It has its own /dev/shm, without leftovers of
# other runs.
in_root() {
  # shellcheck disable=SC2016
  unshare -m -p -f --kill-child bash -c 'mount --bind "$1" "$1" && cd "$1" || exit
    shift
    mount -t proc proc proc && mount --rbind /sys sys && mount --rbind /dev dev &&
      mount -t tmpfs -o mode=1777 shm dev/shm && pivot_root . . && umount -l . && cd / && exec "$@"' _ "$1" \
    /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${http_proxy:+"http_proxy=$http_proxy"} "${@:2}"
}

# newer_in ROOT PACKAGE...: unpacks packages of Debian 12 in /newer of a root of Debian 11, which lacks them or has older versions.
newer_in() {
  # shellcheck disable=SC2016
  in_root "$1" sh -eu -c 'mkdir -p /newer && cd /newer && [ ! -e whole ] || exit 0
    echo "deb $1 bookworm main" >/etc/apt/sources.list.d/bookworm.list
    printf "%s\n" "Package: *" "Pin: release n=bookworm" "Pin-Priority: 1" >/etc/apt/preferences.d/bookworm
    apt-get -q update
    shift
    for package; do apt-get -qy -o APT::Sandbox::User=root download "$package/bookworm"; done
    for file in *.deb; do dpkg-deb -x "$file" .; done
    touch whole' _ "${ERDMA_DEBIAN_MIRROR:-http://deb.debian.org/debian}" "${@:2}"
}

# install_in ROOT PACKAGE...: installs packages with their dependencies, without recommended packages. dpkg-query also knows packages
# that are not installed.
install_in() {
  # shellcheck disable=SC2016
  in_root "$1" sh -c 'export DEBIAN_FRONTEND=noninteractive
    [ "$(dpkg-query -W -f "\${db:Status-Status}\n" "$@" 2>/dev/null | grep -cx installed)" = $# ] || { apt-get -q update && apt-get -qy install --no-install-recommends "$@"; }' \
    _ "${@:2}"
}
