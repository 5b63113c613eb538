#!/bin/sh
# Runs the reference test of zram on devices that it adds, one for each number of jobs, and prints what each has stored.
#
#     bench/fio/zram.sh                                the kernel's zram
#     pagefold zram-shell --rm -- bench/fio/zram.sh    pagefold in its place
#
# Variables: ZRAM_COMP_ALG (lzo), ZRAM_SIZE (3G), FIO_TEST (static or compbuf), FIO_LOOPS (1), MAX_ITER (10: numbers of
# jobs 1 to 10). Needs root and fio.
set -eu
folder=$(dirname "$0")
control=/sys/class/zram-control
device=

remove() {
    [ -n "$device" ] || return 0
    # A new device is busy as long as udev looks at it.
    tries=50
    until (echo 1 >"/sys/block/zram$device/reset") 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || break
        sleep 0.1
    done
    echo "$device" >$control/hot_remove
    device=
}
trap remove EXIT
trap 'exit 1' INT TERM

modprobe zram num_devices=0 2>/dev/null || true
jobs=1
while [ "$jobs" -le "${MAX_ITER:-10}" ]; do
    device=$(cat $control/hot_add)
    attributes=/sys/block/zram$device
    echo "${ZRAM_COMP_ALG:-lzo}" >"$attributes/comp_algorithm"
    echo "${ZRAM_SIZE:-3G}" >"$attributes/disksize"
    echo "jobs $jobs, $(grep -o '\[.*\]' "$attributes/comp_algorithm"), $(cat "$attributes/disksize") bytes"
    SIZE=$(cat "$attributes/disksize") NUMJOBS=$jobs LOOPS=${FIO_LOOPS:-1} \
        fio --ioengine=sync --filename="/dev/zram$device" "$folder/${FIO_TEST:-static}.fio" |
        grep -E '^ *(READ|WRITE):'
    echo "debug_stat $(tr '\n' ' ' <"$attributes/debug_stat")"
    echo "mm_stat $(cat "$attributes/mm_stat")"
    remove
    jobs=$((jobs + 1))
done
