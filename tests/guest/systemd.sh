#!/bin/sh
# Boots Debian 12's systemd with lines of /etc/fstab and a unit that mount images by `mount.pagefold`, and checks what their
# users expect: mounts at boot, at the first access (x-systemd.automount), a missing image with nofail, servers that are killed,
# a reload of systemd, restart and stop by systemctl, and a clean shutdown.
#
# usage: systemd.sh
#
# Needs QEMU, busybox-static, cpio, xz, once the network, and cargo, unless PAGEFOLD_PROGRAM names a program that runs with the
# C library of Debian 12. fetch.sh downloads the kernel, and systemd-system.sh the packages of the system, to $PAGEFOLD_GUEST_CACHE or
# target/guest. Prints a line for each check, and RESULT. Exit status 2 when something is missing, 1 when a check fails.
set -eu

# shellcheck source=systemd-system.sh
. "$(dirname "$0")/systemd-system.sh"
prepare_system

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make_root "$work/root" "local-fs.target opt-app.mount" "fuse autofs4"
for mount in now auto app missing; do mkdir -p "$root/opt/$mount"; done
ln -s ../bin/pagefold "$root/usr/sbin/mount.pagefold"
mkdir "$work/tree"
echo contents >"$work/tree/file"
"$pagefold" image build -q "$work/tree" "$root/srv/app.erofs"

cat >"$root/etc/fstab" <<'END'
/srv/app.erofs /opt/now pagefold ro,memory=32M 0 0
/srv/app.erofs /opt/auto pagefold ro,nofail,x-systemd.automount 0 0
/srv/missing.erofs /opt/missing pagefold ro,nofail 0 0
END
# The unit of the guide.
sed -n '/^```ini/,/^```$/p' "$top/docs/image/mount.md" | grep -v '^```' >"$root/etc/systemd/system/opt-app.mount"
grep -q '^Where=/opt/app$' "$root/etc/systemd/system/opt-app.mount"
enable opt-app.mount multi-user.target

cat >>"$root/check.sh" <<'END'
is_mounted() { grep -q " $1 fuse" /proc/self/mounts; }
is_not_mounted() { ! is_mounted "$1"; }
has_contents() { [ "$(cat "$1/file")" = contents ]; }
has_ended() {
    for _ in $(seq 50); do
        pagefold image list | grep -q "$1" || return 0
        sleep 0.2
    done
    return 1
}
are_active() { for unit in now auto app; do systemctl is-active opt-$unit.mount || return 1; done; }
has_limit() { pagefold image stats /opt/now | grep -q '32 MiB'; }
check "a line of fstab is mounted at boot" is_mounted /opt/now
check "its contents" has_contents /opt/now
check "its limit of memory" has_limit
check "a line with x-systemd.automount waits" is_not_mounted /opt/auto
check "an access mounts it" has_contents /opt/auto
check "it is mounted" is_mounted /opt/auto
check "a missing image with nofail is not mounted" is_not_mounted /opt/missing
check "the unit is mounted" has_contents /opt/app
check "systemd knows the mounts" are_active
check "the servers are killed" pkill -9 -f 'pagefold serve .* kept image'
check "contents after the servers were killed" has_contents /opt/now
check "those of the automount too" has_contents /opt/auto
check "a reload of systemd" systemctl daemon-reload
check "contents after it" has_contents /opt/app
check "restart" systemctl restart opt-app.mount
check "contents after it" has_contents /opt/app
check "stop" systemctl stop opt-app.mount
check "it is not mounted" is_not_mounted /opt/app
check "its server has ended" has_ended /opt/app
finish
systemctl --no-block poweroff
END
pack "$work/initramfs"
boot "$work/initramfs" "$work/console" || true
judge "$work/console"
