#!/bin/sh
# Makes the guest's initial file system: busybox, the init script, kernel modules, and programs with
# the shared libraries they need.
#
# usage: mkinitramfs.sh MODULES OUTPUT PROGRAM...
#
# MODULES is the folder that fetch.sh printed, OUTPUT the archive to write. Each PROGRAM is copied to /bin
# with the same name, without debugging symbols. Exit status 2 when a tool is missing.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
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
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/modules"
cp "$busybox" "$root/bin/busybox"
install -m 755 "$here/init" "$root/init"

# Copies a program or library to $2 in the new root, stripped if possible.
put() {
    mkdir -p "$root/$(dirname "$2")"
    strip -o "$root/$2" "$1" 2>/dev/null || cp -L "$1" "$root/$2"
    chmod 755 "$root/$2"
}

for program in "$@"; do
    put "$program" "bin/$(basename "$program")"
    # Lines of ldd: "name => /path (address)" and, for the loader, "/path (address)".
    ldd "$program" 2>/dev/null | sed -n 's/^.*=> \(\/[^ ]*\) .*$/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*$/\1/p' |
        while read -r library; do
            [ -e "$root/$library" ] || put "$library" "$library"
        done
done

# Modules that some kernels do not have built in.
for module in loop fuse; do
    found=$(find "$modules" -name "$module.ko*" | head -n 1)
    case $found in
    *.xz) xz -dc "$found" >"$root/modules/$module.ko" ;;
    *.ko) cp "$found" "$root/modules/$module.ko" ;;
    *) echo "mkinitramfs.sh: no module $module in $modules, assuming that it is built in" >&2 ;;
    esac
done

(cd "$root" && find . | cpio -o -H newc --quiet --owner=0:0) | gzip -1 >"$output.new"
mv "$output.new" "$output"
