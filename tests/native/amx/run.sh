#!/usr/bin/env bash
# Runs one static single-threaded program on the emulated machine that build.sh made, prints what
# it printed, and exits with its exit code; with 125 if it did not end in time. An argument
# @PATH carries that file along: the program gets the name that it has there.
# usage: run.sh FOLDER PROGRAM [ARGUMENT...]     AMX_TIMEOUT: seconds, 1800 if unset
set -euo pipefail

usage='usage: run.sh FOLDER PROGRAM [ARGUMENT...]'
folder=$(realpath -m "${1:?$usage}")
program=${2:?$usage}
shift 2
root=$folder/rootfs
run=$root/amx/run
serial=$run/serial.txt
exec 9>"$folder/lock"
flock 9 # one machine at a time: it boots from files in the folder

rm -rf "$run"
mkdir -p "$run/files"
cp "$root/amx/init" "$root/amx/module/amxon.ko" "$run/files/"
install -m 755 "$program" "$run/files/job"
: >"$run/files/job.args"
for argument in "$@"; do
  if [ "${argument:0:1}" = @ ]; then
    cp "${argument:1}" "$run/files/"
    argument=/$(basename "$argument")
  fi
  printf '%s\n' "$argument" >>"$run/files/job.args"
done
chroot "$root" bash -euo pipefail -c '
  cd /amx/run/files
  find . | cpio --quiet -o -H newc >/amx/iso/boot/initrd
  grub-mkrescue -o /amx/run/boot.iso /amx/iso >/amx/run/iso.txt 2>&1'

# Bochs reads commands from its standard input, and must not see it end.
: >"$serial"
setsid chroot "$root" bash -c 'sleep infinity | exec bochs-bin -q -f /amx/bochsrc -rc /dev/null' \
  >"$run/bochs.txt" 2>&1 9>&- &
machine=$!
trap 'kill -- -"$machine" 2>/dev/null || true' EXIT
end=$((SECONDS + ${AMX_TIMEOUT:-1800}))
while [ "$SECONDS" -lt "$end" ] && kill -0 "$machine" 2>/dev/null &&
  ! grep -q '^EXIT ' "$serial"; do sleep 1; done

tr -d '\r' <"$serial" | sed -n '/^BEGIN$/,/^EXIT /p' | sed -e '/^BEGIN$/d' -e '/^EXIT /d' -e '/^$/d'
code=$(tr -d '\r' <"$serial" | sed -n 's/^EXIT //p' | tail -n 1)
[ -n "$code" ] || echo "the emulated machine did not end the program; see $run" >&2
exit "${code:-125}"
