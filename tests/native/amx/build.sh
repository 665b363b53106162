#!/usr/bin/env bash
# Builds, once, an emulated Sapphire Rapids that executes AMX, for machines that have none: Bochs,
# whose processor has AMX-TILE and AMX-BF16, in a Debian 13 chroot with Debian's kernel and the
# small module that turns tiles on (amxon.c). run.sh runs a program on it.
# usage: build.sh FOLDER     needs root, Debian, about 1.5 GB and two to three minutes
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(realpath -m "${1:?usage: build.sh FOLDER}")
root=$folder/rootfs
log=$folder/build.log
[ ! -e "$folder/ready" ] || exit 0

mkdir -p "$folder"
rm -rf --one-file-system "$root"
trap 'code=$?; umount "$root/proc" 2>/dev/null || true
      [ "$code" = 0 ] || echo "the emulator could not be built; see $log" >&3' EXIT
exec 3>&2 >"$log" 2>&1
command -v debootstrap || { apt-get update && apt-get install -y debootstrap; }
# The mirror and the settings of apt are those of this machine.
mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print $2; exit}' \
  /etc/apt/sources.list.d/* /etc/apt/sources.list 2>/dev/null || true)
debootstrap --variant=minbase trixie "$root" ${mirror:+"$mirror"}
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
mount -t proc proc "$root/proc"
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get update
inside apt-get install -y --no-install-recommends bochs bochsbios vgabios \
  linux-image-amd64 linux-headers-amd64 gcc make libc6-dev \
  grub-pc-bin grub-common xorriso mtools cpio

mkdir -p "$root/amx/module" "$root/amx/iso/boot/grub"
cp "$here/init.c" "$root/amx/"
cp "$here/amxon.c" "$root/amx/module/"
echo 'obj-m := amxon.o' >"$root/amx/module/Makefile"
inside bash -euc 'make -C /lib/modules/*/build M=/amx/module modules
  gcc -O2 -static -o /amx/init /amx/init.c
  cp /boot/vmlinuz-* /amx/iso/boot/vmlinuz'

# Linux would turn tiles on only with XFD, which Bochs lacks: hence clearcpuid and amxon.c.
cat >"$root/amx/iso/boot/grub/grub.cfg" <<'END'
set timeout=0
menuentry "amx" {
  linux /boot/vmlinuz console=ttyS0 tsc=reliable lpj=1000000 nokaslr mitigations=off acpi=off clearcpuid=amx_tile panic=1 quiet
  initrd /boot/initrd
}
END
cat >"$root/amx/bochsrc" <<'END'
config_interface: textconfig
display_library: rfb, options="timeout=0"
memory: guest=1024, host=1024
romimage: file="/usr/share/bochs/BIOS-bochs-latest"
vgaromimage: file="/usr/share/bochs/VGABIOS-lgpl-latest"
cpu: model=sapphire_rapids, count=1, ips=100000000, reset_on_triple_fault=0
pci: enabled=1, chipset=i440fx
ata0-master: type=cdrom, path="/amx/run/boot.iso", status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=/amx/run/serial.txt
log: /amx/run/bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
clock: sync=none
sound: waveoutdrv=dummy, waveout=none
END
touch "$folder/ready"
