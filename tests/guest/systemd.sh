#!/bin/sh
# Boots Debian 12's systemd with lines of /etc/fstab and a unit that mount images by `mount.pagefold`, and checks what their
# users expect: mounts at boot, at the first access (x-systemd.automount), a missing image with nofail, servers that are killed,
# a reload of systemd, restart and stop by systemctl, and a clean shutdown.
#
# usage: systemd.sh
#
# Needs QEMU, busybox-static, cpio, xz, once the network, and cargo, unless PAGEFOLD_PROGRAM names a program that runs with the
# C library of Debian 12. fetch.sh downloads the kernel, and this script the packages of the system, to $PAGEFOLD_GUEST_CACHE or
# target/guest. Prints a line for each check, and RESULT. Exit status 2 when something is missing, 1 when a check fails.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${PAGEFOLD_GUEST_CACHE:-$top/target/guest}
for tool in qemu-system-x86_64 busybox cpio xz gzip; do
    command -v $tool >/dev/null || { echo "systemd.sh: $tool is missing" >&2; exit 2; }
done
"$here/fetch.sh" "$cache" >/dev/null
pagefold=${PAGEFOLD_PROGRAM:-}
if [ -z "$pagefold" ]; then
    command -v cargo >/dev/null || { echo "systemd.sh: cargo is missing" >&2; exit 2; }
    (cd "$top" && cargo build -q -p pagefold)
    pagefold=${CARGO_TARGET_DIR:-$top/target}/debug/pagefold
fi

# Downloads the packages of the system, with all that they depend on, and unpacks them.
system=$cache/systemd-bookworm
get_system() {
    # shellcheck source=apt.sh
    . "$here/apt.sh"
    rm -rf "$system"
    prepare_apt "$system/apt" "the system comes"
    update_lists bookworm || unable "lists of bookworm: $(tail -n 1 "$apt/log")"
    packages=$(private apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances systemd systemd-sysv mount util-linux bash coreutils grep sed procps base-files base-passwd |
        grep '^[a-z0-9]' | sort -u)
    # All packages that provide a virtual one are listed; none of these is needed for a boot.
    packages=$(echo "$packages" | grep -vE '^(debconf-.*|cdebconf|dpkg|tar|perl.*|opensysusers|systemd-standalone.*)$')
    # shellcheck disable=SC2086 # Each package is a separate argument.
    (cd "$apt" && private apt-get download $packages >>log 2>&1) || unable "downloading: $(tail -n 1 "$apt/log")"
    mkdir "$system/root"
    for package in "$apt"/*.deb; do
        dpkg-deb -x "$package" "$system/root"
    done
    # Older packages have files in /bin, which is a link to /usr/bin on a system, and likewise for the others.
    for name in bin sbin lib lib64; do
        mkdir -p "$system/root/usr/$name"
        [ ! -d "$system/root/$name" ] || cp -a "$system/root/$name/." "$system/root/usr/$name/"
        rm -rf "${system:?}/root/$name"
        ln -s "usr/$name" "$system/root/$name"
    done
    rm -rf "$apt" "$system/root/usr/share/doc" "$system/root/usr/share/locale" "$system/root/usr/share/man"
    touch "$system/complete"
}
[ -e "$system/complete" ] || get_system

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
cp -a "$system/root" "$root"
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/srv" "$root/modules"
for name in now auto app missing; do mkdir -p "$root/opt/$name"; done
cp "$(command -v busybox)" "$root/busybox"
# Without symbols for debuggers the system is much smaller.
strip -o "$root/usr/bin/pagefold" "$pagefold" 2>/dev/null || cp "$pagefold" "$root/usr/bin/pagefold"
chmod 755 "$root/usr/bin/pagefold"
ln -s ../bin/pagefold "$root/usr/sbin/mount.pagefold"
for name in passwd group; do cp "$root/usr/share/base-passwd/$name.master" "$root/etc/$name"; done
# Without it systemd takes this for the first boot of a system, and asks.
head -c 16 /dev/zero | od -An -tx1 | tr -d ' ' | tr 0 1 >"$root/etc/machine-id"
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
cat >"$root/etc/systemd/system/check.service" <<'END'
[Unit]
Description=The checks
After=local-fs.target opt-app.mount

[Service]
Type=oneshot
ExecStart=/bin/bash /check.sh
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
for unit in opt-app.mount check.service; do
    ln -s "/etc/systemd/system/$unit" "$root/etc/systemd/system/multi-user.target.wants/$unit"
done

cat >"$root/check.sh" <<'END'
bad=0
check() {
    what=$1
    shift
    if "$@" >/tmp/said 2>&1; then echo "CHECK $what: ok"; else
        echo "CHECK $what: FAILED"
        tail -n 20 /tmp/said
        bad=$((bad + 1))
    fi
}
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
[ $bad = 0 ] && echo "RESULT: ok" || echo "RESULT: failed, $bad checks"
systemctl --no-block poweroff
END

cat >"$root/init" <<'END'
#!/busybox sh
for module in /modules/*.ko; do
    /busybox insmod "$module" || echo "no $module"
done
exec /lib/systemd/systemd
END
chmod 755 "$root/init"
for module in fuse autofs4; do
    # Some kernels have a module built in.
    found=$(find "$cache/kernel/modules" -name "$module.ko*" | head -n 1)
    case $found in
    *.xz) xz -dc "$found" >"$root/modules/$module.ko" ;;
    *.ko) cp "$found" "$root/modules/$module.ko" ;;
    esac
done
(cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$work/initramfs"

timeout 900 nice -n 10 qemu-system-x86_64 -accel tcg,thread=multi -cpu Haswell-v4,-cx16 -m 2048 -smp 2 \
    -nodefaults -display none -no-reboot -serial "file:$work/raw" \
    -kernel "$cache/kernel/vmlinuz" -initrd "$work/initramfs" \
    -append "console=ttyS0 quiet panic=-1 rdinit=/init systemd.firstboot=off systemd.show_status=1" \
    </dev/null || true
tr -d '\r' <"$work/raw" >"$work/console"
grep -aE '^CHECK|^RESULT' "$work/console" || true
grep -aq '^RESULT: ok' "$work/console" || { tail -n 60 "$work/console" >&2; exit 1; }
if grep -aE 'Failed unmounting|Failed to unmount|timed out' "$work/console"; then exit 1; fi
grep -aq 'Power down' "$work/console" || { echo "the system did not power off" >&2; exit 1; }
