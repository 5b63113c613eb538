#!/bin/sh
# Measures swap in a virtual machine that is short of memory: the time of a program that uses 1 GiB in a guest of 512
# MiB, with the loop export of a pagefold disk as swap, and with the kernel's zram in the same guest.
#
# usage: guest_swap.sh [SUITE]      the suite of Debian's kernel: bookworm-backports (6.12), or sid for a newer one
#
# The program is the hog of the guest tests (tests/guest/README.md): it fills 1 GiB, rewrites and reads pages in an
# order without locality, and compares every byte. Of its pages 10 % are random, 70 % text, 10 % repeat a word, 10 %
# are zero. Both devices compress with lz4. QEMU emulates the CPUs in software, so the times compare the two sides and
# are no measure of either on real hardware: emulation makes codecs much slower and device interrupts, faults and
# wake-ups less so.
#
# Variables: HOG_MIB (1024), GUEST_MIB (512), PASSES (1), ROUNDS (1), PAGEFOLD_PROGRAM (a release build that this
# script makes), PAGEFOLD_HOG (likewise). Needs QEMU, busybox-static, cpio, xz, cargo, and once the network. Prints a
# table and leaves the consoles in bench/out/guest_swap. Exit status 2 when a tool is missing, 1 when a run failed.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
suite=${1:-bookworm-backports}
out=$top/bench/out/guest_swap
hog_mib=${HOG_MIB:-1024}
guest_mib=${GUEST_MIB:-512}
command -v qemu-system-x86_64 >/dev/null || { echo "guest_swap.sh: qemu-system-x86_64 is missing" >&2; exit 2; }
cache=${PAGEFOLD_GUEST_CACHE:-$top/target/guest}/$suite
PAGEFOLD_GUEST_SUITE=$suite "$top/tests/guest/fetch.sh" "$cache" >/dev/null
programs=${CARGO_TARGET_DIR:-$top/target}/release
if [ -z "${PAGEFOLD_PROGRAM:-}" ]; then
    (cd "$top" && cargo build --quiet --release -p pagefold --bin pagefold --example hog)
fi
mkdir -p "$out"
"$top/tests/guest/mkinitramfs.sh" -m loop -m fuse -m zram "$cache/kernel/modules" "$out/initramfs" \
    "${PAGEFOLD_PROGRAM:-$programs/pagefold}" "${PAGEFOLD_HOG:-$programs/examples/hog}" 2>"$out/pack.log" ||
    { cat "$out/pack.log" >&2; exit 2; }

# Sets cpu_s to the CPU time of all programs that this script has run so far, in seconds.
read_cpu_s() {
    # Not in a subshell, whose children are others.
    times >"$out/times"
    cpu_s=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "[ms]"); sum += 60 * t[1] + t[2] } }
        END { printf "%d", sum }' "$out/times")
}

# Prints the row of the console $1, named $2, with $3 seconds of CPU time.
row() {
    awk -v name="$2" -v cpu="$3" '
        /^hog took / { ms = $3 }
        /after the hog/ { gsub(",", ""); for (i = 1; i < NF; i++) if ($i ~ /^pswp/) swapped[$i] = $(i + 1) / 256 }
        END { printf "| %s | %.1f s | %d s | %d MiB | %d MiB |\n", name, ms / 1000, cpu,
            swapped["pswpout"], swapped["pswpin"] }' "$1"
}

# Boots the guest with the parameters $@ and waits until it has powered off. The console goes to $console.
boot() {
    timeout 7200 qemu-system-x86_64 -accel tcg,thread=multi -cpu Haswell-v4,-cx16 -m "$guest_mib" -smp 2 \
        -nodefaults -display none -no-reboot -serial stdio -kernel "$cache/kernel/vmlinuz" -initrd "$out/initramfs" \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic rdinit=/init pf.size=${hog_mib}M pf.limit=384M \
pf.hog=$hog_mib pf.random=10 pf.passes=${PASSES:-1} pf.time_s=7000 $*" \
        </dev/null 2>&1 | tr -d '\r' >"$console" || true
}

# Runs the guest with the name $1 of the row and further parameters, and prints the row.
run() {
    name=$1
    shift
    console=$out/$(echo "$name" | tr ' ,' '__').console
    for _ in 1 2 3; do
        read_cpu_s
        before=$cpu_s
        boot "$@"
        # QEMU's emulation sometimes executes an instruction that the kernel has just replaced, and the kernel panics.
        grep -q 'Oops: int3' "$console" || break
    done
    grep -q '^RESULT: ok' "$console" || { echo "$name failed:" >&2; tail -n 20 "$console" >&2; exit 1; }
    read_cpu_s
    row "$console" "$name" $((cpu_s - before))
}

echo "$suite, $hog_mib MiB in a guest of $guest_mib MiB"
echo "| swap | time of the hog | CPU time of QEMU, boot included | written to swap | read from swap |"
echo "|---|---|---|---|---|"
round=0
while [ $round -lt "${ROUNDS:-1}" ]; do
    run "kernel zram" pf.swap=zram
    run "pagefold, loop export" pf.swap=pagefold
    round=$((round + 1))
done
