#!/bin/sh
# Runs run.sh with the files of steps in a guest, and prints the transcript. The guest is a QEMU machine with a kernel
# of Debian, or a user-mode kernel.
#
# usage: guest.sh [SUITE [STEPS]]     Debian's suite of the kernel (unstable), the folder of steps (steps beside this)
#        guest.sh PROGRAM [STEPS]     the path of a user-mode kernel, with a slash in it; kernel/build.sh makes one
#
# Needs busybox-static and cpio, and for a suite QEMU, xz, and once the network: tests/guest/fetch.sh downloads the
# kernel to $PAGEFOLD_GUEST_CACHE or target/guest, there to a folder for the suite. Prints the kernel's version to
# standard error. Exit status 2 when a tool is missing, 1 when the guest did not come to the end of the steps.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$here/../../../..
suite=${1:-unstable}
steps=${2:-$here/steps}
tools="busybox cpio qemu-system-x86_64 xz"
cache=
case $suite in
*/*) tools="busybox cpio" ;;
*) cache=${PAGEFOLD_GUEST_CACHE:-$top/target/guest}/$suite ;;
esac
for tool in $tools; do
    command -v "$tool" >/dev/null || { echo "guest.sh: $tool is missing" >&2; exit 2; }
done
[ -z "$cache" ] || PAGEFOLD_GUEST_SUITE=$suite "$top/tests/guest/fetch.sh" "$cache" >/dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/modules"
cp "$(command -v busybox)" "$root/bin/busybox"
cp -r "$here/run.sh" "$steps" "$root"
# In the order of their dependencies; a kernel may have some built in, and a user-mode kernel has all.
number=0
for module in lz4_compress lz4hc_compress 842_compress 842_decompress zsmalloc zram loop; do
    [ -n "$cache" ] || continue
    number=$((number + 1))
    found=$(find "$cache/kernel/modules" -name "$module.ko*" | head -n 1)
    case $found in
    *.xz) xz -dc "$found" >"$root/modules/$number-$module.ko" ;;
    *.ko) cp "$found" "$root/modules/$number-$module.ko" ;;
    esac
done

cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t debugfs debug /sys/kernel/debug
for module in /modules/*.ko; do
    [ ! -e "$module" ] || insmod "$module"
done
echo "KERNEL: $(uname -r)"
sh /run.sh /steps >/tmp/transcript 2>/tmp/errors
status=$?
# Only a panic may come between the lines of the transcript.
dmesg -n 1
echo "BEGIN"
cat /tmp/transcript
echo "END"
cat /tmp/errors
dmesg | grep -E 'WARNING|BUG' | sed 's/^/KERNEL: /'
echo "RESULT: $status"
[ ! -e /proc/sysrq-trigger ] || echo o >/proc/sysrq-trigger
poweroff -f
sleep 60
END
chmod 755 "$root/init"
[ "$(basename "$steps")" = steps ] || mv "$root/$(basename "$steps")" "$root/steps"
(cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$work/initramfs"

if [ -z "$cache" ]; then
    timeout 3600 nice -n 10 "$suite" mem=512M initrd="$work/initramfs" con0=fd:0,fd:1 con=none quiet panic=-1 \
        </dev/null >"$work/console" 2>&1 || true
else
    # Two CPUs are enough; KVM is not needed.
    timeout 3600 nice -n 10 qemu-system-x86_64 -accel tcg,thread=multi -cpu Haswell-v4,-cx16 -m 512 -smp 2 \
        -nodefaults -display none -no-reboot -serial stdio -kernel "$cache/kernel/vmlinuz" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet panic=-1 oops=panic" </dev/null >"$work/console" 2>&1 || true
fi
tr -d '\r' <"$work/console" | sed -n '/^BEGIN$/,/^END$/{/^BEGIN$/d;/^END$/d;p}'
tr -d '\r' <"$work/console" | sed '/^BEGIN$/,/^END$/d' | grep -v '^RESULT: 0' >&2 || true
tr -d '\r' <"$work/console" | grep -q '^RESULT: 0$' || {
    echo "guest.sh: the guest did not come to the end of the steps" >&2
    exit 1
}
