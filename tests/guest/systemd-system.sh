# The common part of systemd.sh and systemd-disk.sh, which source it: Debian 12's systemd as a folder, its initial file
# system with the program, and QEMU.

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
name=$(basename "$0")
cache=${PAGEFOLD_GUEST_CACHE:-$top/target/guest}
system=$cache/systemd-bookworm

# Checks for the tools, and gets the kernel, the system and the program, `$pagefold`.
prepare_system() {
    for tool in qemu-system-x86_64 busybox cpio xz gzip; do
        command -v $tool >/dev/null || { echo "$name: $tool is missing" >&2; exit 2; }
    done
    "$here/fetch.sh" "$cache" >/dev/null
    pagefold=${PAGEFOLD_PROGRAM:-}
    if [ -z "$pagefold" ]; then
        command -v cargo >/dev/null || { echo "$name: cargo is missing" >&2; exit 2; }
        (cd "$top" && cargo build -q -p pagefold)
        pagefold=${CARGO_TARGET_DIR:-$top/target}/debug/pagefold
    fi
    # A cache of an older version of this script has no file systems.
    [ -e "$system/complete" ] && [ -e "$system/root/usr/sbin/mkfs.ext4" ] || get_system
}

# Downloads the packages of the system, with all that they depend on, and unpacks them.
get_system() {
    # shellcheck source=apt.sh
    . "$here/apt.sh"
    rm -rf "$system"
    prepare_apt "$system/apt" "the system comes"
    update_lists bookworm || unable "lists of bookworm: $(tail -n 1 "$apt/log")"
    packages=$(private apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances systemd systemd-sysv mount util-linux bash coreutils grep sed procps base-files base-passwd \
        e2fsprogs |
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
    for folder in bin sbin lib lib64; do
        mkdir -p "$system/root/usr/$folder"
        [ ! -d "$system/root/$folder" ] || cp -a "$system/root/$folder/." "$system/root/usr/$folder/"
        rm -rf "${system:?}/root/$folder"
        ln -s "usr/$folder" "$system/root/$folder"
    done
    rm -rf "$apt" "$system/root/usr/share/doc" "$system/root/usr/share/locale" "$system/root/usr/share/man"
    touch "$system/complete"
}

# Makes the root of the guest in folder $1, with the program, and a service that runs /check.sh, its output on the
# console, after the units $2. Kernel modules $3 are loaded first.
make_root() {
    root=$1
    cp -a "$system/root" "$root"
    mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/srv" "$root/modules"
    # The package of Debian's shell is not among those that the others depend on.
    [ -e "$root/usr/bin/sh" ] || ln -s bash "$root/usr/bin/sh"
    cp "$(command -v busybox)" "$root/busybox"
    # Without symbols for debuggers the system is much smaller.
    strip -o "$root/usr/bin/pagefold" "$pagefold" 2>/dev/null || cp "$pagefold" "$root/usr/bin/pagefold"
    chmod 755 "$root/usr/bin/pagefold"
    for file in passwd group; do cp "$root/usr/share/base-passwd/$file.master" "$root/etc/$file"; done
    # Without it systemd takes this for the first boot of a system, and asks.
    head -c 16 /dev/zero | od -An -tx1 | tr -d ' ' | tr 0 1 >"$root/etc/machine-id"
    cat >"$root/etc/systemd/system/check.service" <<UNIT
[Unit]
Description=The checks
After=$2

[Service]
Type=oneshot
ExecStart=/bin/bash /check.sh
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
UNIT
    enable check.service multi-user.target
    cat >"$root/check.sh" <<'SCRIPT'
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
finish() {
    [ $bad = 0 ] && echo "RESULT: ok" || echo "RESULT: failed, $bad checks"
}
SCRIPT
    for module in $3; do
        # Some kernels have a module built in.
        found=$(find "$cache/kernel/modules" -name "$module.ko*" | head -n 1)
        case $found in
        *.xz) xz -dc "$found" >"$root/modules/$module.ko" ;;
        *.ko) cp "$found" "$root/modules/$module.ko" ;;
        esac
    done
    cat >"$root/init" <<'SCRIPT'
#!/busybox sh
for module in /modules/*.ko; do
    /busybox insmod "$module" || echo "no $module"
done
[ ! -e /before.sh ] || /busybox sh /before.sh
exec /lib/systemd/systemd
SCRIPT
    chmod 755 "$root/init"
}

# Lets unit $1 start with $2.
enable() {
    mkdir -p "$root/etc/systemd/system/$2.wants"
    ln -sf "/etc/systemd/system/$1" "$root/etc/systemd/system/$2.wants/$1"
}

# Packs the root into an initial file system, $1.
pack() {
    (cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$1"
}

# Runs QEMU with the initial file system $1, until the guest powers off. Its console goes to $2; further arguments are
# QEMU's.
boot() {
    initramfs=$1
    console=$2
    shift 2
    timeout 900 nice -n 10 qemu-system-x86_64 -accel tcg,thread=multi -cpu Haswell-v4,-cx16 -m 2048 -smp 2 \
        -nodefaults -display none -no-reboot -serial "file:$console" "$@" \
        -kernel "$cache/kernel/vmlinuz" -initrd "$initramfs" \
        -append "console=ttyS0 quiet panic=-1 rdinit=/init systemd.firstboot=off systemd.show_status=1" \
        </dev/null
}

# Prints the checks on console $1. Ends the script with 1 if one failed, or if the system did not shut down cleanly.
judge() {
    tr -d '\r' <"$1" >"$1.text"
    grep -aE '^CHECK|^RESULT' "$1.text" || true
    grep -aq '^RESULT: ok' "$1.text" || { tail -n 60 "$1.text" >&2; exit 1; }
    if grep -aE 'Failed unmounting|Failed to unmount|timed out' "$1.text"; then exit 1; fi
    grep -aq 'Power down' "$1.text" || { echo "the system did not power off" >&2; exit 1; }
}
