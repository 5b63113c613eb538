#!/bin/sh
# Compresses known content with the lzo-rle of a Debian kernel, and decodes the result with pagefold's decoder.
#
# Programs cannot call the kernel's compressor, but f2fs stores its output: a guest copies the content to
# an f2fs with compress_algorithm=lzo-rle, and afterwards f2fs_clusters finds the streams in the image.
# The script mounts nothing on this machine, and writes to the cache only.
#
# usage: f2fs.sh [FIXTURES]    with FIXTURES, saves some of the streams to that folder
#
# Needs f2fs-tools, QEMU, busybox-static, cpio, xz, cargo, and once the network. Exit status 2 when
# a tool is missing, 1 when a decoded stream differs from the original content.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
fixtures=${1:-}
cache=${PAGEFOLD_GUEST_CACHE:-$here/../../target/guest}/f2fs
mkdir -p "$cache"
for tool in mkfs.f2fs qemu-system-x86_64 busybox cpio xz cargo; do
    command -v $tool >/dev/null || { echo "f2fs.sh: $tool is missing" >&2; exit 2; }
done
# The cloud kernel has no f2fs.
PAGEFOLD_GUEST_KERNEL=amd64 "$here/fetch.sh" "$cache" >/dev/null
clusters() {
    cargo run -q --manifest-path "$here/../../Cargo.toml" -p pagefold-codec --example f2fs_clusters -- "$@"
}

root=$cache/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/proc" "$root/dev" "$root/mnt" "$root/modules"
cp "$(command -v busybox)" "$root/bin/busybox"
# In the order of their dependencies.
number=0
for module in crc32_generic lz4_compress lz4hc_compress f2fs virtio_blk; do
    number=$((number + 1))
    xz -dc "$(find "$cache/kernel/modules" -name $module.ko.xz)" >"$root/modules/$number-$module.ko"
done

# Clusters of 16 KiB, and of 64 KiB, in which matches can have any distance that the bitstream allows.
clusters content 16 384 "$root/content2"
clusters content 64 96 "$root/content4"
for log in 2 4; do
    rm -f "$cache/image$log"
    truncate -s 128M "$cache/image$log"
    mkfs.f2fs -q -O extra_attr,compression "$cache/image$log"
done

cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    insmod "$module" || echo "no $module"
done
# Copies the content for clusters of 2^$2 pages to device $1, and compares it after a remount.
store() {
    mount -t f2fs -o "compress_algorithm=lzo-rle,compress_log_size=$2,compress_extension=*" "$1" /mnt &&
        cp "/content$2" /mnt/content && sync && umount /mnt &&
        mount -t f2fs "$1" /mnt && cmp "/content$2" /mnt/content && umount /mnt
}
uname -r
store /dev/vda 2 && store /dev/vdb 4 && echo "RESULT: ok" || echo "RESULT: failed"
sync
poweroff -f
END
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$cache/initramfs"

timeout 300 nice -n 10 qemu-system-x86_64 -accel tcg,thread=multi -cpu Haswell-v4,-cx16 -m 512 \
    -nodefaults -display none -no-reboot -serial stdio \
    -kernel "$cache/kernel/vmlinuz" -initrd "$cache/initramfs" -append "console=ttyS0 quiet panic=-1" \
    -drive "file=$cache/image2,format=raw,if=virtio" -drive "file=$cache/image4,format=raw,if=virtio" \
    </dev/null >"$cache/console" 2>&1 || true
grep -q "^RESULT: ok" "$cache/console" || {
    echo "f2fs.sh: the guest did not store the content:" >&2
    tail -n 20 "$cache/console" >&2
    exit 1
}

clusters scan 16 384 "$cache/image2" ${fixtures:+"$fixtures" 16}
clusters scan 64 96 "$cache/image4" ${fixtures:+"$fixtures" 8}
