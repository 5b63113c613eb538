#!/bin/sh
# Stands for modprobe, rmmod and the other programs of kmod in a zram shell. 'modprobe zram' creates disks, and
# 'rmmod zram' removes them; the real program does everything else. It never loads or unloads zram, which would change
# the host's kernel: a command that names zram and is not understood fails.
real=@REAL@
program=${0##*/}
control=/sys/class/zram-control
module= remove= dry_run= count=1

refuse() {
    echo "$program: ERROR: $1 cannot be used with zram in a zram shell" >&2
    exit 1
}

invalid_count() {
    echo "$program: ERROR: could not insert 'zram': Invalid argument" >&2
    exit 1
}

# Takes the letters of a word of short options. Sets 'skip' if the next word is the value of the last one.
short_options() {
    letters=${1#-}
    while [ -n "$letters" ]; do
        rest=${letters#?}
        letter=${letters%"$rest"}
        letters=$rest
        case $program:$letter in
        modprobe:r) remove=yes ;;
        modprobe:n) dry_run=yes ;;
        modprobe:[CdSw])
            [ -n "$rest" ] || skip=yes
            return
            ;;
        modprobe:[abfiqsv] | rmmod:[fsv]) ;;
        *) refuse "option -$letter" ;;
        esac
    done
}

long_option() {
    case $program:$1 in
    modprobe:--remove) remove=yes ;;
    modprobe:--dry-run | modprobe:--show) dry_run=yes ;;
    modprobe:--config | modprobe:--dirname | modprobe:--set-version | modprobe:--wait) skip=yes ;;
    modprobe:--config=* | modprobe:--dirname=* | modprobe:--set-version=* | modprobe:--wait=*) ;;
    modprobe:--all | modprobe:--use-blacklist | modprobe:--first-time | modprobe:--quiet) ;;
    modprobe:--ignore-install | modprobe:--ignore-remove) ;;
    modprobe:--force-modversion | modprobe:--force-vermagic) ;;
    modprobe:--force | modprobe:--syslog | modprobe:--verbose) ;;
    rmmod:--force | rmmod:--syslog | rmmod:--verbose) ;;
    *) refuse "option $1" ;;
    esac
}

named=
for word in "$@"; do
    case $word in
    zram | zram.ko* | */zram.ko*) named=yes ;;
    esac
done
case $program in
lsmod | modinfo | depmod) named= ;;
esac
if [ -z "$named" ]; then
    if [ -e "$real/$program" ]; then
        exec "$real/$program" "$@"
    fi
    echo "$program: this system has no such program" >&2
    exit 127
fi

case $program in
modprobe) ;;
rmmod) remove=yes ;;
*) refuse "this program" ;;
esac
skip= options=yes
for word in "$@"; do
    if [ -n "$skip" ]; then
        skip=
        continue
    fi
    case $options:$word in
    yes:--) options= ;;
    yes:--*) long_option "$word" ;;
    yes:-?*) short_options "$word" ;;
    *:num_devices=*) count=${word#*=} ;;
    *:*=*) ;;
    *:zram) module=zram ;;
    *) refuse "module or parameter '$word'" ;;
    esac
done
[ -n "$module" ] || refuse "a command without the module"
[ -z "$dry_run" ] || exit 0

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
'' | *[!0-9]*) invalid_count ;;
esac
# A shell may take a number that begins with 0 as octal.
count=${count#"${count%%[!0]*}"}
count=${count:-0}
[ ${#count} -le 9 ] || invalid_count
# With a disk, the module counts as loaded already.
[ -h "$1" ] && exit 0
while [ "$count" -gt 0 ]; do
    read -r _ <"$control/hot_add" || exit 1
    count=$((count - 1))
done
