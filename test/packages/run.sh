#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/packages/run.sh: builds each kind of package from one tarball and tries it in a minimal Debian system that
# debootstrap creates. Prints "PASS: name", "FAIL: name" and "SKIP: name (why)". Packages, roots, which later runs use
# again, and the output of each command are in $top_builddir/packages. Exit status 1 if something failed. The portable archive with
# libfabric needs the variable ERDMA_LIBFABRIC_SOURCES, a folder of libfabric's sources.
# shellcheck disable=SC2016,SC2317
set -u
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/lib/roots.sh
. "$top/test/lib/roots.sh"
work=${top_builddir:-$top/build}/packages
failed=0
export XZ_OPT=-1
# Many files are compiled together, in a fifth of the time.
export ERDMA_CONFIGURE=--enable-joined=all

# try NAME COMMAND...: prints one line with the result; returns 0 if the command passed.
try() {
  local log
  log=$work/$(tr -c 'a-z0-9\n' _ <<<"$1").log
  if "${@:2}" >"$log" 2>&1 </dev/null; then
    say "PASS: $1"
    return
  fi
  tail -n 20 "$log" | sed 's/^/  | /'
  say "FAIL: $1 (all of its output is in $log)"
  failed=1
  return 1
}

make_tarball() {
  generate && configure_in "$work/dist" --disable-tests && rm -f "$work"/dist/*.tar.xz && make -C "$work/dist" dist &&
    tarball=$(echo "$work"/dist/erdma-*.tar.xz)
}

# The second package is built in another folder, later, with another time zone and umask.
deb() {
  rm -rf "$work/deb" "$work/elsewhere"
  "$top/packages/build-deb" "$tarball" "$work/deb"
}
deb_again() {
  local file bad=0
  local other=$work/elsewhere/of/another/name
  (umask 077 && TZ=Asia/Shanghai LC_ALL=C.UTF-8 "$top/packages/build-deb" "$tarball" "$other") || return
  for file in "$work"/deb/*.deb "$work"/deb/*.dsc "$work"/deb/*.debian.tar.xz; do
    cmp "$file" "$other/$(basename "$file")" || bad=1
  done
  return "$bad"
}
# The packages close no bug of Debian, as they are not part of it.
deb_lintian() {
  lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs --tag-display-limit 0 \
    "$work"/deb/*.changes
}

# root_of SUITE: creates a root with libfabric.
root_of() {
  bootstrap "$1" "$work/$1" && install_in "$work/$1" libfabric-bin libibverbs1 librdmacm1 &&
    rm -rf "$work/$1/erdma" && mkdir "$work/$1/erdma"
}

deb_installs() {
  root_of bookworm && cp "$work"/deb/*.deb "$work/bookworm/erdma" && in_root "$work/bookworm" sh -euxc '
    cd /erdma
    apt-get -qy --no-install-recommends install ./libfabric-provider-erdma_*.deb ./fi-erdma_*.deb ./softerdma_*.deb
    LD_PRELOAD=$(echo /usr/lib/*/erdma/libsofterdma.so) SOFTERDMA_DIR=/erdma/nic fi_info -p erdma | grep "domain: erdma_0"
    export FI_ERDMA_DEVICE=shm FI_PROVIDER=erdma
    fi_info -p erdma | grep "domain: shm"
    fi_erdma doctor || [ $? = 1 ]
    ulimit -l
    apt-get -qy purge libfabric-provider-erdma fi-erdma softerdma
    ! find / -xdev -name "*erdma*" -not -path "/proc/*" -not -path "/erdma*" -not -path "/var/*" \
      -not -path "*/infiniband/*" -not -path "*/libibverbs*" | grep .'
}

rpm_builds() {
  local listed file
  listed=$(rpmspec -q --buildrequires --define 'erdma_version 1' --without tools "$top/packages/erdma.spec") || return
  ! grep -E 'fmt|cli11|json' <<<"$listed" || { echo 'they are needed without the tools'; return 1; }
  rm -rf "$work/rpm"
  "$top/packages/build-rpm" "$tarball" "$work/rpm" --nodeps &&
    listed=$(find "$work/rpm/RPMS" -name '*.rpm' -exec rpm -qpl {} +) || return
  for file in libfabric/liberdma-fi.so bin/fi_erdma man7/fi_erdma.7 man1/fi_erdma.1 docs/containers.md; do
    grep -F "/$file" <<<"$listed" || { echo "no package has $file"; return 1; }
  done
}

# Builds the Dockerfile without a service or a registry, on a base image that debootstrap created.
builder() { buildah --root "$work/images/root" --runroot "$work/images/run" "$@"; }
image_builds() {
  local base image=docker.io/library/debian:bookworm
  rm -rf "$work/sources" && mkdir "$work/sources" && tar -C "$work/sources" --strip-components=1 -xf "$tarball" &&
    bootstrap bookworm "$work/bare" && tar -C "$work/bare" --one-file-system -cf "$work/bare.tar" . &&
    base=$(builder from scratch) && builder add "$base" "$work/bare.tar" / && builder commit "$base" "$image" &&
    builder tag "$image" "$image-slim" && builder bud --isolation chroot --network host --pull-never \
    --build-arg ERDMA_CONFIGURE="$ERDMA_CONFIGURE CXXFLAGS=-O0" -f "$top/packages/Dockerfile" -t erdma "$work/sources"
}
image_runs() {
  local container
  mpicc -O2 -o "$work/mpi_quick" "$top/test/clients/mpi_quick.c" && container=$(builder from --pull-never erdma) &&
    builder copy "$container" "$work/mpi_quick" /usr/local/bin/ && builder run --isolation chroot "$container" sh -euxc '
    [ "$(id -un)" = user ]
    export FI_ERDMA_DEVICE=shm
    fi_info -p erdma | grep "domain: shm"
    fi_erdma doctor
    fi_erdma bench -S all --expect shm
    mpirun -n 2 --oversubscribe mpi_quick | tee mpi
    grep "2 ranks: result right" mpi'
}

portable() { rm -f "$work"/portable/*.tar.xz && ERDMA_LIBFABRIC_SOURCES='' "$top/packages/build-portable" "$tarball" "$work/portable"; }
portable_again() {
  mv "$work"/portable/*.tar.xz "$work/portable.first" && portable &&
    cmp "$work"/portable/*.tar.xz "$work/portable.first"
}
# check-portable must refuse a build for this system.
others_refused() {
  local output
  rm -rf "$work/other" && mkdir -p "$work/other/x/lib/libfabric" "$work/other/x/bin" &&
    cp "$work"/deb/*/.libs/liberdma-fi.so "$work/other/x/lib/libfabric" &&
    tar -C "$work/other" -cJf "$work/other.tar.xz" x || return
  output=$("$top/packages/check-portable" "$work/other.tar.xz" 2>&1) && { echo 'it was taken'; return 1; }
  printf '%s\n' "$output"
  grep -q 'newer than Debian 11: GLIBCXX_' <<<"$output" && grep -q 'needs the library: libsodium' <<<"$output"
}
# unpacked_in ROOT ARCHIVE: unpacks it in a folder with another name than the archive has, and runs it as its README says.
unpacked_in() {
  rm -rf "$1/erdma/an archive" && mkdir -p "$1/erdma/an archive" && tar -C "$1/erdma/an archive" --strip-components=1 -xf "$2" &&
    cp "$top/test/lib/common.sh" "$1/erdma/" && in_root "$1" bash -euxc '. /erdma/common.sh
      . "/erdma/an archive/env.sh"
      export FI_ERDMA_DEVICE=shm
      fi_info --version
      fi_info -p erdma | grep "domain: shm"
      [ "$(command -v fi_erdma)" = "/erdma/an archive/bin/fi_erdma" ]
      fi_erdma doctor || [ $? = 1 ]
      pingpong /erdma/pingpong -c -S all -I 20 || { cat /erdma/pingpong.*; exit 1; }
      cat /erdma/pingpong.client'
}
# runs_on SUITE: runs the file that was built on Debian 11.
runs_on() { root_of "$1" && unpacked_in "$work/$1" "$work"/portable/*.tar.xz; }
# The root in which the archive was built has libfabric in a folder that no program searches.
with_libfabric() {
  local name archive status=0
  name=$(basename "$work"/portable/*.tar.xz .tar.xz)
  archive=$work/portable.libfabric/$name-libfabric.tar.xz
  mkdir -p "$work/portable.libfabric" && rm -f "$work"/portable.libfabric/*.tar.xz &&
    mv "$work/portable/bullseye" "$work/portable.libfabric/" || return
  "$top/packages/build-portable" "$tarball" "$work/portable.libfabric" || status=$?
  mv "$work/portable.libfabric/bullseye" "$work/portable/" && [ "$status" = 0 ] && cmp "$work"/portable*/"$name.tar.xz" &&
    ! in_root "$work/portable/bullseye" sh -c 'ldconfig -p | grep libfabric' &&
    unpacked_in "$work/portable/bullseye" "$archive"
}
mpi_runs() {
  local folder=$work/bookworm/erdma
  mpicc -O2 -o "$folder/mpi_quick" "$top/test/clients/mpi_quick.c" &&
    install_in "$work/bookworm" openmpi-bin && in_root "$work/bookworm" bash -euxc '. /erdma/common.sh
      use_open_mpi
      . "/erdma/an archive/env.sh"
      FI_ERDMA_DEVICE=shm timeout 300 mpirun -n 2 /erdma/mpi_quick | tee /erdma/mpi
      grep "2 ranks: result right" /erdma/mpi'
}
# An unprivileged user installs into a folder of their own.
user_installs() {
  in_root "$work/portable/bullseye" setpriv --reuid=65534 --regid=65534 --clear-groups sh -euxc '
    cd "$(mktemp -d /var/tmp/erdma.XXXXXX)"
    trap "rm -rf \"$PWD\"" EXIT
    tar -xf /build/erdma.tar.xz
    cd erdma-*
    ./configure --prefix="$PWD/prefix" --disable-tests --enable-joined=all CXXFLAGS=-O0 \
      LIBFABRIC_CFLAGS=-I/newer/usr/include LIBFABRIC_LIBS="-L$(echo /newer/usr/lib/*-linux-gnu) -lfabric" \
      FI_ERDMA_CFLAGS=-I/newer/usr/include FI_ERDMA_LIBS=" "
    make -j"$(nproc)" && make install
    ls prefix/lib/libfabric/liberdma-fi.so prefix/share/man/man7/fi_erdma.7
    prefix/bin/fi_erdma --version'
}

mkdir -p "$work" || exit 1
try 'the tarball' make_tarball || exit 1
if [ -n "$(missing_packages debhelper lintian)" ]; then
  say "SKIP: deb (debhelper or lintian is missing)"
elif try deb deb; then
  try 'deb: the same bytes once more, elsewhere' deb_again
  try 'deb: lintian' deb_lintian
fi
if command -v rpmbuild >/dev/null; then try rpm rpm_builds; else say 'SKIP: rpm (there is no rpmbuild)'; fi
try 'Spack: the recipe asks for what configure asks for' python3 "$top/test/packages/check_spack.py" "$top"
if ! why=$(can_make_roots); then
  say "SKIP: portable, and packages in roots of their own ($why)"
  exit $failed
fi
[ ! -e "$work/deb" ] || try 'deb: it installs on a bare Debian 12, works and goes without a trace' deb_installs
if try portable portable; then
  try 'portable: the same bytes once more' portable_again
  [ ! -e "$work/deb" ] || try 'portable: what needs newer libraries is refused' others_refused
  for suite in bookworm trixie; do try "portable: runs on $suite" runs_on "$suite"; done
  try 'portable: MPI on bookworm' mpi_runs
  if [ -n "${ERDMA_LIBFABRIC_SOURCES:-}" ]; then
    try 'portable: with libfabric, on Debian 11 without it' with_libfabric
  else
    say 'SKIP: portable with libfabric (ERDMA_LIBFABRIC_SOURCES is not set)'
  fi
  cp "$tarball" "$work/portable/bullseye/build/erdma.tar.xz" && try 'an ordinary user installs' user_installs
fi
if ! command -v buildah >/dev/null; then
  say 'SKIP: Dockerfile (there is no buildah)'
elif try 'Dockerfile: the image' image_builds; then
  try 'Dockerfile: a user runs it' image_runs
fi
exit $failed
