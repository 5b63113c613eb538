#!/bin/sh
# Compresses known pages with the kernel's 842, and decodes the result with pagefold's decoder.
#
# Programs cannot call the kernel's compressor, but zram writes its output to a backing device under
# compressed_writeback: a guest writes the pages to a zram device with comp_algorithm=842 and writes them back, and
# c842_pages finds the streams on the backing.
#
# usage: c842.sh PROGRAM [FIXTURES]    a user-mode kernel, of crates/pagefold/tests/zram/kernel/build.sh; with FIXTURES,
#                                      saves some of the streams to that folder
#
# Needs busybox-static, cpio, cargo. Exit status 2 when a tool is missing, 1 when a stream is missing or wrong.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kernel=$1
fixtures=${2:-}
count=256
for tool in busybox cpio cargo base64; do
    command -v $tool >/dev/null || { echo "c842.sh: $tool is missing" >&2; exit 2; }
done
pages() {
    cargo run -q --manifest-path "$here/../../Cargo.toml" -p pagefold-codec --example c842_pages -- "$@"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp"
cp "$(command -v busybox)" "$root/bin/busybox"
pages content $count "$root/content"

cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
zram=/sys/block/zram0
truncate -s 8M /tmp/backing
losetup /dev/loop0 /tmp/backing
echo 842 >$zram/comp_algorithm
echo /dev/loop0 >$zram/backing_dev
echo 1 >$zram/compressed_writeback
echo 4M >$zram/disksize
before=0
page=0
count=$(($(stat -c %s /content) / 4096))
dmesg -n 1
echo "SIZES"
while [ $page -lt $count ]; do
    dd if=/content of=/dev/zram0 bs=4096 skip=$page seek=$page count=1 oflag=direct conv=notrunc 2>/dev/null
    read -r _ after _ <$zram/mm_stat
    echo $((after - before))
    before=$after
    page=$((page + 1))
done
echo "BACKING"
echo all >$zram/idle
echo idle >$zram/writeback
sync
gzip -c /tmp/backing | base64
echo "END"
poweroff -f
END
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$work/initramfs"
timeout 900 nice -n 10 "$kernel" mem=512M initrd="$work/initramfs" con0=fd:0,fd:1 con=none quiet panic=-1 \
    </dev/null >"$work/console" 2>&1 || true
tr -d '\r' <"$work/console" >"$work/text"
sed -n '/^SIZES$/,/^BACKING$/{/^[0-9]/p}' "$work/text" >"$work/sizes"
sed -n '/^BACKING$/,/^END$/{/^BACKING$/d;/^END$/d;p}' "$work/text" | base64 -d | gzip -dc >"$work/backing" || {
    cat "$work/text" >&2
    exit 1
}
if [ -n "$fixtures" ]; then
    mkdir -p "$fixtures"
    pages scan $count "$work/backing" "$work/sizes" "$fixtures" 40
else
    pages scan $count "$work/backing" "$work/sizes"
fi
