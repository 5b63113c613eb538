#!/bin/sh
# Runs files of steps against a zram device that it hot-adds, and prints a transcript; README.md describes both.
#
# usage: run.sh STEPS...       each a file of steps, or a folder, whose *.txt files run in the order of their names
#
# SYS (/sys) and DEV (/dev) are the roots of the interface under test: $SYS/class/zram-control/hot_add,
# $SYS/block/zramN/ATTRIBUTE, $DEV/zramN. DEBUG ($SYS/kernel/debug) is the root of zram/zramN/block_state and of
# zsmalloc/zramN/classes.
#
# The script needs root and runs under dash and busybox's ash. It touches only devices that it has hot-added, and
# removes them at the end of each file. Exit status 1 when a device or a loop device could not be removed, 2 for an
# unknown step.
set -u
export LC_ALL=C
SYS=${SYS:-/sys}
DEV=${DEV:-/dev}
DEBUG=${DEBUG:-$SYS/kernel/debug}
tmp=$(mktemp -d) || exit 1
# The numbers of the devices N and M. A device that this script has not added, or has removed, has a number that no
# device has: another process may have been given the old number meanwhile.
no_number=99999
N=$no_number M=$no_number
device=N
no_loop=$DEV/loop-none
LOOP=$no_loop LOOP2=$no_loop
status=0

# Removes a device; a program like udev may have it open for a moment.
remove() {
    for _ in 1 2 3 4 5; do
        echo "$1" >"$SYS/class/zram-control/hot_remove" && return
        sleep 1
    done
    return 1
}

# Removes what the steps of a file left.
clean_up() {
    exec 8<&- 9<&-
    for number in "$N" "$M"; do
        [ "$number" = $no_number ] || remove "$number" || status=1
    done
    for path in "$LOOP" "$LOOP2"; do
        [ "$path" = "$no_loop" ] || losetup -d "$path" || status=1
    done
    N=$no_number M=$no_number device=N LOOP=$no_loop LOOP2=$no_loop
}
trap 'clean_up; rm -rf "$tmp"; exit $status' EXIT
trap 'status=1; exit' HUP INT TERM

# Makes the files of 16 pages that data steps write. All bytes are the same on every machine.
make_patterns() {
    dd if=/dev/zero of="$tmp/zero" bs=4096 count=16 status=none
    # Eight bytes, doubled to 64 KiB.
    printf pagefold >"$tmp/word"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13; do
        cat "$tmp/word" "$tmp/word" >"$tmp/twice"
        mv "$tmp/twice" "$tmp/word"
    done
    # Different lines of text; each codec makes them smaller than half.
    awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%d pages of %d are cold, ", i * i % 997, i }' |
        dd of="$tmp/text" bs=65536 count=1 iflag=fullblock status=none
    # The generator of Park and Miller; no codec makes its middle bytes smaller. The products are exact in a double.
    printf '%b' "$(awk 'BEGIN {
        x = 1
        for (i = 0; i < 65536; i++) { x = x * 16807 % 2147483647; printf "\\0%03o", int(x / 65536) % 256 }
    }')" >"$tmp/random"
}

ok() { echo ok; }
error() { echo "error: $*"; }

# Prints the result of a command, whose standard error is in $tmp/err: the text of errno ends its last line.
result() {
    if [ "$1" -eq 0 ]; then ok; else error "$(sed -n '$s/.*: //p' "$tmp/err")"; fi
}

# Prints lines of output, without the numbers of devices and the paths of loop devices. Zero bytes become tildes.
output() {
    tr '\000' '~' <"$1" | sed -e "s,$LOOP\$,LOOP," -e "s,$LOOP2\$,LOOP2," -e "s,zram$N,zramN,g" -e "s,zram$M,zramM,g" \
        -e "s,$tmp,TMP,g" -e 's/^/| /'
    [ -z "$(tail -c 1 "$1" | tr '\000' '~')" ] || printf '\n| (no newline at the end)\n'
}

# The path of attribute $1 of the current device; control/NAME is of the class.
path_of() {
    case $1 in
    control/*) echo "$SYS/class/zram-control/${1#control/}" ;;
    block_state) eval "echo \"$DEBUG/zram/zram\$$device/block_state\"" ;;
    classes) eval "echo \"$DEBUG/zsmalloc/zram\$$device/classes\"" ;;
    *) eval "echo \"$SYS/block/zram\$$device/$1\"" ;;
    esac
}

block_device() { eval "echo \"$DEV/zram\$$device\""; }

missing() {
    [ -e "$1" ] && return 1
    error "No such file or directory"
}

# Opens file $2 for writing, as a shell's > does, and writes the bytes of $tmp/bytes with a call of write for each word
# of $1.
put() {
    for _ in $1; do
        dd bs=4096 count=1 status=none <"$tmp/bytes" || return 1
    done >"$2"
}

put_append() { dd bs=4096 count=1 status=none <"$tmp/bytes" >>"$1"; }

# Expands the escapes of printf's %b, and the names that begin with @.
bytes() {
    expanded=$(printf '%s.' "$1" | sed -e "s,@LOOP2,$LOOP2,g" -e "s,@LOOP,$LOOP,g" -e "s,@N,$N,g" -e "s,@M,$M,g" \
        -e "s,@TEXT,$tmp/text,g" -e "s,@DEV,$DEV,g" -e "s,@TMP,$tmp,g")
    printf '%b' "${expanded%.}" >"$tmp/bytes"
}

step_add() {
    missing "$SYS/class/zram-control/hot_add" && return
    cat "$SYS/class/zram-control/hot_add" >"$tmp/out" 2>"$tmp/err"
    added=$?
    [ $added -ne 0 ] || case $1 in M) M=$(cat "$tmp/out") ;; *) N=$(cat "$tmp/out") ;; esac
    result $added
}

step_write() {
    file=$(path_of "$1")
    missing "$file" && return
    bytes "$2"
    # No call of write has no bytes: this opens and closes the file.
    count=1
    [ -s "$tmp/bytes" ] || count=
    { put "$count" "$file"; } 2>"$tmp/err"
    write_status=$?
    [ "$1:$write_status" != control/hot_remove:0 ] || forget "$2"
    result $write_status
}

# Forgets the device that the text of a successful hot_remove names.
forget() {
    case $1 in
    *@N*) N=$no_number ;;
    *@M*) M=$no_number ;;
    esac
}

# The same bytes with two calls of write, of which the second begins at an offset.
step_write_twice() {
    file=$(path_of "$1")
    missing "$file" && return
    bytes "$2"
    { put "1 2" "$file"; } 2>"$tmp/err"
    result $?
}

step_append() {
    file=$(path_of "$1")
    missing "$file" && return
    bytes "$2"
    { put_append "$file"; } 2>"$tmp/err"
    result $?
}

# One call of write with $2 times the character $3.
step_write_long() {
    file=$(path_of "$1")
    missing "$file" && return
    dd if=/dev/zero bs="${2%% *}" count=1 status=none | tr '\0' "${2#* }" >"$tmp/bytes"
    { put 1 "$file"; } 2>"$tmp/err"
    result $?
}

step_read() {
    file=$(path_of "$1")
    missing "$file" && return
    cat "$file" >"$tmp/out" 2>"$tmp/err"
    read_status=$?
    output "$tmp/out"
    result $read_status
}

# Reads with one call for every $2 bytes.
step_read_pieces() {
    file=$(path_of "$1")
    missing "$file" && return
    dd if="$file" bs="$2" status=none >"$tmp/out" 2>"$tmp/err"
    read_status=$?
    output "$tmp/out"
    result $read_status
}

# Prints the numbers of a file of statistics with their names, or only the one that $2 names.
step_columns() {
    file=$(path_of "$1")
    missing "$file" && return
    case $1 in
    mm_stat) names="orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages pages_compacted
        huge_pages huge_pages_since" ;;
    io_stat) names="failed_reads failed_writes invalid_io notify_free" ;;
    bd_stat) names="bd_count bd_reads bd_writes" ;;
    *) names= ;;
    esac
    cat "$file" >"$tmp/out" 2>"$tmp/err"
    read_status=$?
    awk -v names="$names" -v only="$2" '{
        count = split(names, name)
        if (NF != count) print "| " NF " columns"
        for (i = 1; i <= count; i++) if (only == "" || only == name[i]) print "| " name[i] " " $i
    }' "$tmp/out"
    result $read_status
}

# Prints block_state without the access times.
step_state() {
    file=$(path_of block_state)
    missing "$file" && return
    cat "$file" >"$tmp/out" 2>"$tmp/err"
    read_status=$?
    awk '{ print "| " $1 " " $3 }' "$tmp/out"
    result $read_status
}

# Prints the first line of the size classes, the number of objects of all, and which rows have not all columns.
step_classes() {
    file=$(path_of classes)
    missing "$file" && return
    cat "$file" >"$tmp/out" 2>"$tmp/err"
    read_status=$?
    awk 'NR == 1 { print "| " $0 }
        $1 == "Total" { print "| obj_used " $14; next }
        NF != 18 && NF != 0 { print "| " NF " columns" }' "$tmp/out"
    result $read_status
}

step_mode() {
    file=$(path_of "$1")
    missing "$file" && return
    stat -c '| %a' "$file" 2>"$tmp/err"
    result $?
}

# data PATTERN FIRST COUNT: writes pages; each page is one request.
step_data() {
    file=$(block_device)
    [ -b "$file" ] || { missing "$file" || error "not a block device"; return; }
    dd if="$tmp/$1" of="$file" bs=4096 seek="${2% *}" count="${2#* }" oflag=direct conv=notrunc status=none 2>"$tmp/err"
    result $?
}

# check PATTERN FIRST COUNT: reads pages, and compares them.
step_check() {
    file=$(block_device)
    [ -b "$file" ] || { missing "$file" || error "not a block device"; return; }
    dd if="$file" of="$tmp/out" bs=4096 skip="${2% *}" count="${2#* }" iflag=direct status=none 2>"$tmp/err"
    read_status=$?
    dd if="$tmp/$1" of="$tmp/right" bs=4096 count="${2#* }" status=none
    [ $read_status -ne 0 ] || cmp -s "$tmp/out" "$tmp/right" || echo "| other contents"
    result $read_status
}

# discard FIRST COUNT: discards pages.
step_discard() {
    file=$(block_device)
    [ -b "$file" ] || { missing "$file" || error "not a block device"; return; }
    blkdiscard -o $(($1 * 4096)) -l $(($2 * 4096)) "$file" 2>"$tmp/err"
    result $?
}

# hold read|write: opens the device and keeps it open until the step release. The first open, in another process, is
# because a shell may end when exec cannot open a file.
step_hold() {
    file=$(block_device)
    missing "$file" && return
    if [ "$1" = read ]; then
        (exec 8<"$file") 2>"$tmp/err" && exec 8<"$file"
    else
        (exec 8<>"$file") 2>"$tmp/err" && exec 8<>"$file"
    fi
    result $?
}

step_release() {
    exec 8<&-
    ok
}

# Opens an attribute and keeps it open until the step read_held.
step_hold_attribute() {
    file=$(path_of "$1")
    missing "$file" && return
    (exec 9<"$file") 2>"$tmp/err" && exec 9<"$file"
    result $?
}

step_read_held() {
    dd bs=4096 count=1 status=none <&9 >"$tmp/out" 2>"$tmp/err"
    read_status=$?
    output "$tmp/out"
    exec 9<&-
    result $read_status
}

# loop NAME SIZE: makes a loop device. An interface without writeback needs none.
step_loop() {
    [ -e "$(path_of backing_dev)" ] || { ok; return; }
    truncate -s "$2" "$tmp/$1"
    # Another process may take the free device first.
    for _ in 1 2 3 4 5 6 7 8 9; do
        free=$(losetup -f) && losetup "$free" "$tmp/$1" 2>"$tmp/err" && break
    done
    attached=$?
    [ $attached -ne 0 ] || case $1 in LOOP) LOOP=$free ;; *) LOOP2=$free ;; esac
    result $attached
}

run_step() {
    verb=${1%% *}
    rest=${1#"$verb"}
    rest=${rest# }
    first=${rest%% *}
    second=${rest#"$first"}
    second=${second# }
    case $verb in
    use) device=$first && ok ;;
    add | write | write_twice | append | write_long | read | read_pieces | columns | state | classes | mode | data | \
        check | discard | hold | release | hold_attribute | read_held | loop) "step_$verb" "$first" "$second" ;;
    *)
        echo "run.sh: no step: $1" >&2
        status=2
        exit
        ;;
    esac
}

run_file() {
    echo "== $(basename "$1" .txt)"
    while IFS= read -r step <&3; do
        case $step in
        '' | '#'*) ;;
        *)
            printf '%s\n' "> $step"
            run_step "$step"
            ;;
        esac
    done 3<"$1"
    clean_up
}

make_patterns
for steps in "$@"; do
    [ ! -d "$steps" ] || for file in "$steps"/*.txt; do run_file "$file"; done
    [ -d "$steps" ] || run_file "$steps"
done
