#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# vm.sh [-r|-e|-f] [-t SECONDS] [-s CPUS] [-o OUTDIR] SCRIPT [ARG...]
# Runs SCRIPT as root in a small virtual machine with Debian's kernel, which has features that a container or
# a build host may lack: Yama and, with -r, software RDMA devices (siw: iWARP over TCP, built
# here as a module, because Debian does not have it; rxe: RoCEv2 over UDP). The guest uses this host's root file system,
# read-only through 9p with a tmpfs over it, so programs of this host run there unchanged.
# OUTDIR, if given, is writable at /out. Exits with SCRIPT's status; 125 if the machine did not start or ran out of
# time; 77 if it cannot be created here. It uses software emulation, without KVM. Packages: see ./packages.
# -e: in addition to -r, provides what the model of the eRDMA NIC in erdma/ needs: the kernel's own erdma.ko and the
# model, in $ERDMA_VM_MODULES in the guest; memory at 0xa0000000 for its PCI functions; two NICs on one hub.
# -f: uses the kernel of Debian 11, Linux 5.10, which does not report copy-on-fork of registered memory, with rxe.
set -euo pipefail
limit=600 cpus=2 out= rdma=
while getopts t:s:o:ref opt; do
  case $opt in
    t) limit=$OPTARG ;;
    s) cpus=$OPTARG ;;
    o) out=$(realpath "$OPTARG") ;;
    r) rdma=-rdma ;;
    e) rdma=-erdma ;;
    f) rdma=-fork ;;
    *) exit 125 ;;
  esac
done
shift $((OPTIND - 1))
[[ $# -ge 1 ]] || { sed -n '3,12p' "$0"; exit 125; }
script=$(realpath "$1")
shift
cache=${ERDMA_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/erdma-vm}
unable() { echo "$*"; exit 77; }
for tool in qemu-system-x86_64 cpio modprobe; do
  command -v $tool >/dev/null || unable "there is no $tool here"
done
[[ -x /bin/busybox ]] || unable 'there is no static busybox here'

# Chooses the present kernel of linux-image-amd64, or one that was prepared earlier. Modules can only be
# built for a kernel whose headers are installed.
newest() { sort -V | tail -n 1; }
# linux_image APT: prints the version of linux-image-amd64, according to apt-get with these options.
linux_image() {
  apt-cache "$@" depends linux-image-amd64 2>/dev/null |
    sed -n 's/.*Depends: linux-image-\([0-9].*-amd64\)$/\1/p' | head -n 1
}
# Uses Debian 11 in addition to the releases of this host, with its own apt folder.
apt=()
if [[ $rdma = -fork ]]; then
  debian11=$cache/debian-11
  mkdir -p "$debian11/lists/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bullseye main" \
    >"$debian11/sources.list"
  apt=(-o "Dir::Etc::sourcelist=$debian11/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$debian11/lists"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
  version=$(find "$cache" -mindepth 1 -maxdepth 1 -name '5.10.*-fork' -printf '%f\n' | newest)
  version=${version%-fork}
  if [[ -z $version ]]; then
    apt-get "${apt[@]}" update >"$debian11/log" 2>&1 ||
      unable "apt-get does not reach Debian 11: $(tail -n 1 "$debian11/log")"
    version=$(linux_image "${apt[@]}") || true
  fi
elif [[ -n $rdma ]]; then
  version=$(find /usr/src -maxdepth 1 -name 'linux-headers-*-amd64' 2>/dev/null |
    sed 's#.*/linux-headers-##' | grep -v -e cloud -e rt | newest) || true
  [[ -n $version && -f /usr/src/linux-source-6.1.tar.xz ]] ||
    unable 'linux-headers-amd64 and linux-source-6.1 are not installed'
else
  version=$(linux_image) || true
fi
[[ -n $version ]] || version=$(find "$cache" -mindepth 1 -maxdepth 1 -name '*-amd64' -printf '%f\n' 2>/dev/null |
  newest) || true
[[ -n $version ]] || unable 'apt knows no linux-image-amd64'
image=$cache/$version$rdma
modules=(crc32c_generic libcrc32c virtio_pci 9pnet_virtio 9p overlay)
[[ -z $rdma ]] || modules+=(crc32_pclmul crc32_generic dummy veth iw_cm rdma_cm ib_uverbs rdma_ucm rdma_rxe)
[[ $rdma != -erdma ]] || modules+=(virtio_net sch_netem)

# The first program in the guest: mounts this host's files under a tmpfs, then runs the command.
write_init() {
  cat >"$1" <<'I'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for m in $($b cat /modules/order); do $b insmod /modules/$m || echo "vm: module $m failed"; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /host
$b mount -t tmpfs tmpfs /upper; $b mkdir /upper/u /upper/w
$b mount -t overlay -o lowerdir=/host,upperdir=/upper/u,workdir=/upper/w overlay /root
$b mount -t proc proc /root/proc; $b mount -t sysfs sys /root/sys; $b mount -t devtmpfs dev /root/dev
$b mkdir -p /root/dev/shm /root/dev/pts /root/out
$b mount -t tmpfs -o mode=1777 tmpfs /root/dev/shm; $b mount -t devpts devpts /root/dev/pts
$b mount -t tmpfs tmpfs /root/run
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 out /root/out 2>/dev/null
# As test/lib/no_kernel_symbols.sh. A user namespace may still mount a /proc, because that of this program stays visible.
$b mount --bind /dev/null /root/proc/kallsyms
$b ip link set lo up
$b sh -c 'echo 1 > /proc/sys/kernel/printk'
command=$($b sed 's/.*vmcommand=//' /proc/cmdline | $b base64 -d)
$b hostname guest
# Not chroot: a process in a chroot cannot create a user namespace.
exec $b switch_root /root /bin/bash -c "($command); echo vm: exit status \$?; /bin/busybox poweroff -f"
I
  chmod +x "$1"
}

# mend_siw FILE: mends two faults of siw_try_1seg(), which copies up to 64 bytes. A thread of the kernel takes a
# response to a READ over while the system call that began to send still counts as running, and fails to copy from
# memory of a user that it does not have: the connection ends, within seconds where both sides WRITE and READ. Of bytes
# on two pages, the first page gives as many as the second should.
mend_siw() {
  sed -i -e 's/else if (c_tx->in_syscall) {/else if (c_tx->in_syscall \&\& !(current->flags \& PF_KTHREAD)) {/' \
    -e 's/unsigned long part = bytes - (PAGE_SIZE - off);/unsigned long part = PAGE_SIZE - off;/' "$1"
}

# build_driver WORK FOLDER CONFIG INTO: builds a module that Debian's kernel lacks, from its source.
build_driver() {
  local name=${2##*/} source=$1/source/drivers/infiniband/$2
  mkdir -p "$1/source"
  tar xJf /usr/src/linux-source-6.1.tar.xz -C "$1/source" --strip-components=1 \
    "linux-source-6.1/drivers/infiniband/$2"
  [[ $name != siw ]] || mend_siw "$source/siw_qp_tx.c"
  make -s -C "/usr/src/linux-headers-$version" M="$source" "$3=m" modules >"$1/$name.log" 2>&1 ||
    unable "$name cannot be built: $(tail -n 1 "$1/$name.log")"
  cp "$source/$name.ko" "$4/"
}

prepare_image() {
  local work root file
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/build.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  (cd "$work" && apt-get "${apt[@]}" download "linux-image-$version" >/dev/null 2>&1 &&
    dpkg-deb -x linux-image-"$version"_*.deb kernel) ||
    unable "apt-get could not download linux-image-$version"
  depmod -b "$work/kernel" "$version"
  root=$work/initrd
  mkdir -p "$root"/{bin,proc,sys,dev,host,upper,root,modules}
  cp /bin/busybox "$root/bin/"
  for module in "${modules[@]}"; do
    modprobe -d "$work/kernel" -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
  done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$root/modules/"
    basename "$file"
  done >"$root/modules/order"
  if [[ $rdma = -rdma || $rdma = -erdma ]]; then
    build_driver "$work" sw/siw CONFIG_RDMA_SIW "$root/modules"
    echo siw.ko >>"$root/modules/order"
  fi
  write_init "$root/init"
  (cd "$root" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd.gz"
  mkdir -p "$image"
  if [[ $rdma = -erdma ]]; then
    build_driver "$work" hw/erdma CONFIG_INFINIBAND_ERDMA "$image"
    cp "$work/source/drivers/infiniband/hw/erdma/erdma_hw.h" "$image/"
  fi
  cp "$work/kernel/boot/vmlinuz-$version" "$image/vmlinuz"
  mv "$work/initrd.gz" "$image/initrd.gz"
}
[[ -f $image/initrd.gz && ! $0 -nt $image/initrd.gz ]] || (prepare_image)

nics=(-nic none) reserved='' built=''
if [[ $rdma = -erdma ]]; then
  # The guest must treat the model's memory as memory.
  [[ ${ERDMA_VM_MEMORY:-3072} -ge 2564 ]] || unable 'ERDMA_VM_MEMORY is less than 2564 MiB'
  built=$(mktemp -d "$cache/modules.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$built'" EXIT
  "$(dirname "$0")/erdma/build.sh" "/usr/src/linux-headers-$version" "$image/erdma_hw.h" "$built" ||
    unable 'the model cannot be built'
  cp "$image/erdma.ko" "$built/"
  # shellcheck disable=SC2016
  nics=() reserved='memmap=4M$0xa0000000 '
  for each in a b; do
    nics+=(-netdev "hubport,id=h$each,hubid=0" -device
      "virtio-net-pci,netdev=h$each,mac=52:54:00:ed:00:0$each,romfile=,speed=25000,duplex=full")
  done
fi

path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Checks that run as other users get to the script's files also if these lie in root's home, as the guest sees it.
folders=() folder=$(dirname "$script")
while [[ $folder != / ]]; do folders+=("$folder"); folder=$(dirname "$folder"); done
command="chmod o+x $(printf '%q ' "${folders[@]}")
export PATH=$path HOME=/root ERDMA_VM_MODULES=$(printf %q "$built"); ulimit -l unlimited; cd $(printf %q "$PWD")
exec $(printf '%q ' bash "$script" "$@")"
share=()
[[ -z $out ]] || share=(-fsdev "local,id=o,path=$out,security_model=none"
  -device 'virtio-9p-pci,fsdev=o,mount_tag=out')
log=$(mktemp)
status=0
timeout "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" \
  -m "${ERDMA_VM_MEMORY:-3072}" -nographic -no-reboot "${nics[@]}" \
  -kernel "$image/vmlinuz" -initrd "$image/initrd.gz" \
  -fsdev local,id=h,path=/,security_model=none,readonly=on,multidevs=remap \
  -device virtio-9p-pci,fsdev=h,mount_tag=host "${share[@]}" -append \
  "console=ttyS0 panic=1 quiet mitigations=off ${reserved}vmcommand=$(printf %s "$command" | base64 -w0)" \
  </dev/null | tee "$log" || status=$?
found=$(tr -d '\r' <"$log" | sed -n 's/^vm: exit status //p' | tail -n 1)
rm -f "$log"
[[ -n $found ]] || { echo "vm.sh: no exit status (timeout or boot failure, qemu $status)" >&2; exit 125; }
exit "$found"
