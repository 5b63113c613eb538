#!/bin/sh
# Stands for modprobe, rmmod and the other programs of kmod in a zram shell. 'modprobe zram' creates disks, and
# 'rmmod zram' removes them; everything else is done by the real program.
real=@REAL@
program=${0##*/}
control=/sys/class/zram-control
module= remove= count=1 other=

case $program in
modprobe) ;;
rmmod) remove=yes ;;
*) other=yes ;;
esac
for word in "$@"; do
    case $word in
    -r | --remove) remove=yes ;;
    -q | -v | -s | -f | --quiet | --verbose | --syslog | --force | --first-time) ;;
    zram) module=zram ;;
    num_devices=*) count=${word#*=} ;;
    -*) other=yes ;;
    *=*) ;;
    *) other=yes ;;
    esac
done

if [ -n "$other" ] || [ -z "$module" ]; then
    if [ -e "$real/$program" ]; then
        exec "$real/$program" "$@"
    fi
    echo "$program: this system has no such program" >&2
    exit 127
fi

set -- /sys/block/zram*
if [ -n "$remove" ]; then
    busy=
    for disk in "$@"; do
        [ -h "$disk" ] || continue
        { echo "${disk##*/zram}" >"$control/hot_remove"; } 2>/dev/null || busy=yes
    done
    if [ -n "$busy" ]; then
        echo "$program: ERROR: Module zram is in use" >&2
        exit 1
    fi
    exit 0
fi

case $count in
'' | *[!0-9]*)
    echo "$program: ERROR: could not insert 'zram': Invalid argument" >&2
    exit 1
    ;;
esac
# With a disk, the module counts as loaded already.
[ -h "$1" ] && exit 0
while [ "$count" -gt 0 ]; do
    read -r _ <"$control/hot_add" || exit 1
    count=$((count - 1))
done
