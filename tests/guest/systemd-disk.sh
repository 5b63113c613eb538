#!/bin/sh
# Boots Debian 12's systemd three times with the units of `pagefold disk unit` for /var/log, and checks what their users expect:
# the files of the directory on a new disk, a journal on it, contents after a shutdown and after QEMU was killed, a save by the
# timer, and saves that fail because their target is full: a message in the journal, the disk in use, the old save intact.
#
# usage: systemd-disk.sh
#
# Needs what systemd.sh needs, and mkfs.ext4. Saves go to a virtual disk, which survives the guests. Prints a line for each check,
# and RESULT. Exit status 2 when something is missing, 1 when a check fails.
set -eu

# shellcheck source=systemd-system.sh
. "$(dirname "$0")/systemd-system.sh"
command -v mkfs.ext4 >/dev/null || { echo "$name: mkfs.ext4 is missing" >&2; exit 2; }
prepare_system

work=$(mktemp -d)
guest=
trap '[ -z "$guest" ] || kill -9 "$guest" 2>/dev/null; rm -rf "$work"' EXIT
make_root "$work/root" "local-fs.target pagefold-disk-log.service systemd-journal-flush.service" "fuse loop virtio_blk"
mkdir -p "$root/var/log/journal"
echo seed >"$root/var/log/seed"

# Before systemd: what an administrator has done. The root of the guest is new at each boot.
cat >"$root/before.sh" <<'END'
export PATH=/usr/sbin:/usr/bin
/busybox mount -t proc proc /proc
/busybox mount -t devtmpfs dev /dev
mount -t ext4 /dev/vda /srv
pagefold disk unit log --size 256M --save-to /srv/log.saved --every 5s --mount /var/log --install
systemctl enable var-log.mount pagefold-save-log.timer
END

cat >>"$root/check.sh" <<'END'
disk=pagefold-disk-log
save=pagefold-save-log
is_mounted() { grep -q '^/dev/loop[0-9]* /var/log ext4' /proc/self/mounts; }
is_in_unit() { systemctl status $disk.service | grep 'pagefold serve log kept'; }
has() { [ "$(cat "/var/log/$1")" = "$1" ]; }
has_not() { [ ! -e "/var/log/$1" ]; }
put() { echo "$1" >"/var/log/$1" && sync; }
has_journal() { ls /var/log/journal/*/system.journal; }
has_boots() { [ "$(journalctl --list-boots | grep -c .)" -ge "$1" ]; }
has_clean_mount() { dmesg | grep 'loop.*mounted filesystem' && ! dmesg | grep 'loop.*recovery complete'; }
within() {
    for _ in $(seq 150); do
        "$@" && return 0
        sleep 0.2
    done
    return 1
}
# Of this boot: the journal of those before comes back with the disk.
says() { journalctl --no-pager -b -u "$1" | grep "$2"; }
fails() { ! "$@"; }
fill() {
    dd if=/dev/urandom of=/var/log/noise bs=1M count=8
    dd if=/dev/zero of=/srv/filler bs=64k
    dd if=/dev/zero of=/srv/filler2 bs=1k
    sync
} 2>/dev/null
empty() { rm -f /srv/filler /srv/filler2 && sync; }
is_intact() { pagefold disk saved --check /srv/log.saved && [ "$(sha256sum </srv/log.saved)" = "$sum" ]; }
is_listed() { pagefold disk list --noheadings --output NAME | grep -x log; }

check "the disk is mounted before the checks" is_mounted
check "the server is in the unit" is_in_unit
check "files of the directory" has seed
check "a journal on the disk" within has_journal
scene=$(cat /srv/scene 2>/dev/null || echo 1)
echo $((scene + 1)) >/srv/scene
case $scene in
1)
    check "a file is written" put first
    finish
    systemctl --no-block poweroff
    ;;
2)
    check "the file is there after a shutdown" has first
    check "the journal of the boot before" has_boots 2
    check "a mount without recovery" has_clean_mount
    check "the timer stops" systemctl stop $save.timer
    # One that has begun ends.
    systemctl start $save.service
    sum=$(sha256sum </srv/log.saved)
    fill
    check "a save to a full target fails" fails systemctl start $save.service
    check "the journal says why" within says $save.service "No space left"
    check "the old save" is_intact
    check "the disk is used on" put usable
    check "the service is active" systemctl is-active $disk.service
    empty
    check "a file is written" put second
    check "a save" systemctl start $save.service
    check "the file system was frozen for it" within says $save.service "was frozen for"
    check "a file after the last save" put third
    finish
    echo "KILL ME"
    sleep 600
    ;;
3)
    check "the files of the last save" has second
    check "those before" has first
    check "not the file after it" has_not third
    check "a mount without recovery" has_clean_mount
    check "the timer saves" within says $save.service "saved .* pages"
    check "the timer stops" systemctl stop $save.timer
    # One that has begun ends.
    systemctl start $save.service
    sum=$(sha256sum </srv/log.saved)
    fill
    check "the journal leaves the disk" journalctl --relinquish-var
    systemctl stop $disk.service
    check "a stop whose save fails" systemctl is-failed $disk.service
    check "the journal says why" within says $disk.service "No space left"
    check "the old save" is_intact
    check "the disk stays" is_listed
    empty
    check "the next start goes on with the disk" systemctl start var-log.mount
    check "its contents" has seed
    check "those that were not saved" test -s /var/log/noise
    finish
    systemctl --no-block poweroff
    ;;
esac
END
pack "$work/initramfs"

truncate -s 64M "$work/disk"
mkfs.ext4 -q -m 0 "$work/disk"
drive="file=$work/disk,if=virtio,format=raw"
boot "$work/initramfs" "$work/first" -drive "$drive" || true
judge "$work/first"

boot "$work/initramfs" "$work/second" -pidfile "$work/pid" -drive "$drive" &
runner=$!
for _ in $(seq 600); do
    grep -aq 'KILL ME' "$work/second" 2>/dev/null && break
    kill -0 $runner 2>/dev/null || break
    sleep 0.5
done
guest=$(cat "$work/pid" 2>/dev/null || true)
[ -z "$guest" ] || kill -9 "$guest" 2>/dev/null || true
guest=
wait $runner || true
tr -d '\r' <"$work/second" >"$work/second.text"
grep -aE '^CHECK|^RESULT' "$work/second.text" || true
grep -aq '^RESULT: ok' "$work/second.text" || { tail -n 60 "$work/second.text" >&2; exit 1; }

boot "$work/initramfs" "$work/third" -drive "$drive" || true
judge "$work/third"
