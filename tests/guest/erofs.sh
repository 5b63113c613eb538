#!/bin/sh
# Builds images of a small tree with a file of every kind, mounts each with the EROFS of a Debian kernel, and compares
# all that the guest sees with the tree: modes, owners, links, sizes, times, contents, targets and attributes.
#
# usage: erofs.sh SUITE VERSION      for example: bookworm 6.1, bookworm-backports 6.12, sid 6.18
#
# SUITE is Debian's suite of the kernel, and VERSION goes to `image build --kernel`. There is an image for each algorithm
# that VERSION has, with clusters of 4K, 64K and 1M, with and without tail packing, one with several algorithms, one whose
# directories are not compressed though VERSION could read that, and one with the defaults.
#
# An algorithm that the kernel's configuration lacks is left out, with a line that says so.
#
# Needs root (devices, owners), QEMU, busybox-static, cpio, xz, attr, acl, python3, once the network, and cargo, unless
# PAGEFOLD_PROGRAM names the program: fetch.sh downloads the kernel to $PAGEFOLD_GUEST_CACHE or target/guest, there to a
# folder for the suite. Prints the kernel's version, a line for each image, and RESULT. Exit status 2 when a tool is missing,
# 1 when an image cannot be mounted or differs.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
suite=${1:?the suite of the kernel is missing}
version=${2:?the version for --kernel is missing}
[ "$(id -u)" = 0 ] || { echo "erofs.sh: devices and owners need root" >&2; exit 2; }
for tool in qemu-system-x86_64 busybox cpio xz gzip ldd setfattr getfattr setfacl python3; do
    command -v $tool >/dev/null || { echo "erofs.sh: $tool is missing" >&2; exit 2; }
done
cache=${PAGEFOLD_GUEST_CACHE:-$top/target/guest}/$suite
PAGEFOLD_GUEST_SUITE=$suite "$here/fetch.sh" "$cache" >/dev/null
pagefold=${PAGEFOLD_PROGRAM:-}
if [ -z "$pagefold" ]; then
    command -v cargo >/dev/null || { echo "erofs.sh: cargo is missing" >&2; exit 2; }
    (cd "$top" && cargo build -q -p pagefold)
    pagefold=${CARGO_TARGET_DIR:-$top/target}/debug/pagefold
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Makes the tree: all kinds of files, contents of all kinds, and all kinds of metadata.
make_tree() {
    mkdir -p "$1/deep/er/and/deeper" "$1/many" "$1/empty"
    (
        cd "$1"
        cp "$(command -v busybox)" program
        gzip -c program | head -c 200000 >noise
        seq 1 30000 >text
        { head -c 90000 text; head -c 40000 noise; head -c 300000 /dev/zero; head -c 70001 program; } >mixed
        # Parts of other files, at the same offset in blocks and at others, of data that compresses and that does not.
        { printf 'front '; cat mixed; } >mixed-moved
        { head -c 100000 program; printf inserted; tail -c +100001 program; } >program-edited
        { head -c 70003 noise; cat noise; tail -c +8193 noise; } >noise-moved
        { cat text; printf again; cat text; } >text-twice
        for len in 0 1 4000 4095 4096 4097 8192 12345; do head -c $len program >len-$len; done
        head -c 500000 /dev/zero >zeroes
        truncate -s 8M sparse
        head -c 10000 program | dd of=sparse bs=4096 seek=1000 conv=notrunc 2>/dev/null
        ln len-4097 link-a
        ln len-4097 deep/er/and/deeper/link-b
        ln -s len-1 symlink
        ln -s "$(printf 't/%.0s' $(seq 1 2000))" symlink-long
        mknod null c 1 3
        mknod disk b 259 70000
        mkfifo pipe
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
        for i in $(seq 1 1200); do : >"many/$i-$(printf "%$((i % 40))s" "" | tr ' ' m)"; done
        echo modes >modes
        chown 70000:80000 modes
        chmod 6751 modes
        chmod 1777 empty
        echo label >label
        for i in $(seq 1 12); do setfattr -n "user.$i-$(printf "%$((i * 5))s" "" | tr ' ' a)" -v "value $i" label; done
        setfattr -n trusted.own -v own label
        setfattr -n security.test -v label label
        setfattr -n trusted.overlay.opaque -v y deep
        setfacl -m u:1000:rx,g:2000:rwx label
        setfacl -d -m u:1000:rx deep
        touch -h -d '1969-12-31 12:00:00.25 UTC' symlink
        touch -d '2128-06-11 08:53:20.999999999 UTC' text
        touch -d '2001-02-03 04:05:06.789 UTC' noise deep
    )
}

# Prints all that is known of each file below $1. The same script with the same programs runs on both sides. A directory's
# size and links depend on the file system.
cat >"$work/list.sh" <<'END'
cd "$1" || exit 1
export TZ=UTC
busybox find . -print0 | busybox sort -z >/tmp/names.$$
busybox find . ! -type d -print0 | busybox sort -z |
    busybox xargs -0 busybox stat -c '%n mode %f owner %u %g links %h size %s device %t:%T time %Y %y'
busybox find . -type d -print0 | busybox sort -z | busybox xargs -0 busybox stat -c '%n mode %f owner %u %g time %Y %y'
busybox find . -type f -print0 | busybox sort -z | busybox xargs -0 busybox sha256sum
busybox find . -type l -print0 | busybox sort -z | busybox xargs -0 -n 1 busybox readlink
busybox xargs -0 getfattr -h -d -m - -e hex -- </tmp/names.$$
rm /tmp/names.$$
END

# Copies a program to the guest, with its libraries.
put_program() {
    for file in "$1" $(ldd "$1" | sed -n 's/^.*=> \(\/[^ ]*\) .*$/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*$/\1/p'); do
        [ "$file" = "$1" ] && to=$root/bin/$(basename "$1") || to=$root$file
        mkdir -p "$(dirname "$to")"
        cp -L "$file" "$to"
    done
}

# Copies a module to the guest, behind those that it depends on. A module that is not there is built in.
number=100
put_module() {
    found=$(find "$cache/kernel/modules" -name "$(echo "$1" | sed 's/[-_]/[-_]/g').ko*" | head -n 1)
    [ -n "$found" ] || return 0
    case $found in
    *.xz) xz -dc "$found" >"$work/$1.ko" ;;
    *) cp "$found" "$work/$1.ko" ;;
    esac
    for needed in $(tr '\0' '\n' <"$work/$1.ko" | sed -n 's/^depends=//p' | tr ',' ' '); do
        [ -e "$work/$needed.ko" ] || put_module "$needed"
    done
    number=$((number + 1))
    cp "$work/$1.ko" "$root/modules/$number-$1.ko"
}

# Builds an image with the name $1 and the further options.
image() {
    name=$1
    shift
    "$pagefold" image build --kernel "$version" "$@" "$work/tree" "$root/images/$name" >/dev/null
}

# Whether the version is at least $1, as in 6.10.
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$version" | sort -V | head -n 1)" = "$1" ]
}

root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/dev" "$root/tmp" "$root/mnt" "$root/modules" "$root/images"
make_tree "$work/tree"
algorithms="none lz4 lz4hc:9"
# Adds algorithm $1, which option $2 has and Linux from version $3 on. Newer packages come without the configuration.
add_algorithm() {
    at_least "$3" || return 0
    if [ -e "$cache/kernel/config" ] && ! grep -q "^$2=y" "$cache/kernel/config"; then
        echo "LEFT OUT: $1, because the kernel of $suite has no $2"
        return 0
    fi
    algorithms="$algorithms $1"
}
add_algorithm lzma:1 CONFIG_EROFS_FS_ZIP_LZMA 5.16
add_algorithm deflate:6 CONFIG_EROFS_FS_ZIP_DEFLATE 6.6
add_algorithm zstd:12 CONFIG_EROFS_FS_ZIP_ZSTD 6.10
for algorithm in $algorithms; do
    for cluster in 4K 64K 1M; do
        image "$algorithm-$cluster-packed" -z "$algorithm" -C "$cluster"
        image "$algorithm-$cluster-whole" -z "$algorithm" -C "$cluster" --no-tail-packing
    done
done
image several -z lz4 --rule "text=${algorithms##* }" --rule 'len-*=none' --rule 'mixed=lz4hc:12'
image window -z lz4hc --lz4-window 16K
image plain-directories --no-compressed-directories
image defaults
sh "$work/list.sh" "$work/tree" >"$root/expected"
cp "$work/list.sh" "$root"
cp "$(command -v busybox)" "$root/bin/busybox"
put_program "$(command -v getfattr)"
for module in crc32c_generic loop erofs; do put_module $module; done

cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for module in /modules/*.ko; do
    insmod "$module" || echo "no $module"
done
echo "KERNEL: $(uname -r)"
dmesg -n 1
bad=0
count=0
for image in /images/*; do
    count=$((count + 1))
    if ! mount -t erofs -o ro,loop "$image" /mnt; then
        echo "IMAGE $image: not mounted"
        dmesg | tail -n 3
        bad=$((bad + 1))
        continue
    fi
    sh /list.sh /mnt >/tmp/found 2>&1
    umount /mnt
    if cmp -s /tmp/found /expected; then
        echo "IMAGE $image: equal"
    else
        echo "IMAGE $image: differs"
        diff /expected /tmp/found | head -n 20
        bad=$((bad + 1))
    fi
done
dmesg | grep -E 'erofs.*(rror|ail|orrupt)|WARNING|BUG:' && bad=$((bad + 1))
[ $bad = 0 ] && echo "RESULT: ok, $count images, $(grep -c ^ /expected) lines each" || echo "RESULT: failed, $bad of $count"
poweroff -f
END
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$work/initramfs"

timeout 1200 nice -n 10 qemu-system-x86_64 -accel tcg,thread=multi -cpu Haswell-v4,-cx16 -m 1536 -smp 2 \
    -nodefaults -display none -no-reboot -serial stdio \
    -kernel "$cache/kernel/vmlinuz" -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1" \
    </dev/null 2>&1 | tr -d '\r' >"$work/console" || true
sed -n '/^KERNEL:/,$p' "$work/console"
grep -q "^RESULT: ok" "$work/console" || {
    grep -q "^RESULT:" "$work/console" || tail -n 20 "$work/console" >&2
    exit 1
}
