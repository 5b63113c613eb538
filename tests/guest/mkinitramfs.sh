#!/bin/sh
# Makes the guest's initial file system: busybox, the init script, kernel modules, and programs with
# the shared libraries they need.
#
# usage: mkinitramfs.sh [-i INIT] [-m MODULE]... [-f FOLDER/PROGRAM]... MODULES OUTPUT PROGRAM...
#
# MODULES is the folder that fetch.sh printed, OUTPUT the archive to write. Each PROGRAM is copied to /bin
# with the same name, without debugging symbols. INIT is the script beside this one that becomes /init (init), and each
# MODULE a kernel module that it loads, with those that it depends on, in this order (loop and fuse). FOLDER is one that
# packages.sh made: its PROGRAM runs in the guest with the libraries of its suite. Exit status 2 when a tool is missing.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
init=init
wanted=
foreign=
while getopts i:m:f: option; do
    case $option in
    i) init=$OPTARG ;;
    m) wanted="$wanted $OPTARG" ;;
    f) foreign="$foreign $OPTARG" ;;
    *) exit 1 ;;
    esac
done
shift $((OPTIND - 1))
modules=$1
output=$2
shift 2

for tool in busybox cpio ldd strip xz gzip; do
    command -v $tool >/dev/null || { echo "mkinitramfs.sh: $tool is missing" >&2; exit 2; }
done
busybox=$(command -v busybox)
if ldd "$busybox" >/dev/null 2>&1; then
    echo "mkinitramfs.sh: $busybox is not static (package busybox-static)" >&2
    exit 2
fi

root=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/mnt" "$root/modules"
cp "$busybox" "$root/bin/busybox"
install -m 755 "$here/$init" "$root/init"
cp "$here/common.sh" "$root/common.sh"

# Copies a program or library to $2 in the new root, stripped if possible.
put() {
    mkdir -p "$root/$(dirname "$2")"
    strip -o "$root/$2" "$1" 2>/dev/null || cp -L "$1" "$root/$2"
    chmod 755 "$root/$2"
}

# Reads lines of ldd, "name => /path (address)" and, for the loader, "/path (address)", and prints the paths.
paths() {
    sed -n 's/^.*=> \(\/[^ ]*\) .*$/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*$/\1/p'
}

for program in "$@"; do
    put "$program" "bin/$(basename "$program")"
    ldd "$program" 2>/dev/null | paths | while read -r library; do
        [ -e "$root/$library" ] || put "$library" "$library"
    done
done

# Puts the program with path $1 in a folder of packages.sh into the new root, to be run with the loader of its suite.
put_foreign() {
    tree=$(cd "$(dirname "$1")/.." && pwd)/root
    name=$(basename "$1")
    libraries=$tree/usr/lib/x86_64-linux-gnu
    loader=$libraries/ld-linux-x86-64.so.2
    program=$(find "$tree/usr/bin" "$tree/usr/sbin" -name "$name" 2>/dev/null | head -n 1)
    # As they are: an older strip damages newer programs.
    mkdir -p "$root/foreign/lib"
    cp -L "$program" "$root/foreign/$name"
    "$loader" --library-path "$libraries" --list "$program" | paths | while read -r library; do
        cp -L "$library" "$root/foreign/lib/"
    done
    cp -L "$loader" "$root/foreign/lib/loader"
    printf '#!/bin/busybox sh\nexec /foreign/lib/loader --library-path /foreign/lib /foreign/%s "$@"\n' "$name" \
        >"$root/bin/$name"
    chmod 755 "$root/bin/$name"
}

for path in $foreign; do
    put_foreign "$path"
done

# Puts a module behind those that it depends on, with a number, by which init loads them in this order. Some kernels
# have a module built in.
number=100
put_module() {
    found=$(find "$modules" -name "$(echo "$1" | sed 's/[-_]/[-_]/g').ko*" | head -n 1)
    case $found in
    *.xz) xz -dc "$found" >"$root/$1.ko" ;;
    *.ko) cp "$found" "$root/$1.ko" ;;
    *) echo "mkinitramfs.sh: no module $1 in $modules, assuming that it is built in" >&2; return 0 ;;
    esac
    for needed in $(tr '\0' '\n' <"$root/$1.ko" | sed -n 's/^depends=//p' | tr ',' ' '); do
        ls "$root/modules" | grep -q "^[0-9]*-$needed.ko$" || put_module "$needed"
    done
    number=$((number + 1))
    mv "$root/$1.ko" "$root/modules/$number-$1.ko"
}

for module in ${wanted:-loop fuse}; do
    put_module "$module"
done

(cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$output.new"
mv "$output.new" "$output"
