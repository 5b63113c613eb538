#!/bin/sh
# Downloads a Debian cloud kernel for the guest and unpacks it into a cache folder.
#
# The script installs nothing and changes no setting of the system: apt runs with a separate source list,
# lists and archive inside the cache. If the cache contains a kernel, the script needs no network.
# PAGEFOLD_GUEST_KERNEL names another flavour than cloud-amd64, and PAGEFOLD_GUEST_SUITE another suite than those of
# Debian 12; each combination needs a separate cache.
#
# usage: fetch.sh [CACHE]      prints two lines: the kernel image's path, the modules' folder
#
# Leaves CACHE/kernel/vmlinuz and CACHE/kernel/modules (lib/modules/VERSION). Exit status 0 when they
# exist, 2 when they cannot be downloaded (no apt, no network, not x86-64), with the reason on stderr.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-${PAGEFOLD_GUEST_CACHE:-$here/../../target/guest}}
kernel=$cache/kernel
flavour=${PAGEFOLD_GUEST_KERNEL:-cloud-amd64}

# shellcheck source=apt.sh
. "$here/apt.sh"

done_with() {
    echo "$kernel/vmlinuz"
    echo "$kernel/modules"
    exit 0
}

[ -e "$kernel/vmlinuz" ] && [ -d "$kernel/modules" ] && done_with

prepare_apt "$cache/apt" "the kernel comes"

# Prints the package of the newest kernel of suite $1, or nothing.
kernel_package() {
    update_lists "$1" || return 0
    private apt-cache depends "linux-image-$flavour" 2>>"$apt/log" |
        sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1
}

# Prints the packages with the files of kernel package $1: itself, or an image and modules, if it only depends on these.
divided() {
    parts=$(private apt-cache depends "$1" 2>>"$apt/log" |
        sed -n 's/^ *Depends: \(linux-binary-[^ ]*\)$/\1/p; s/^ *Depends: \(linux-modules-[^ ]*\)$/\1/p')
    echo "${parts:-$1}"
}

package=
for suite in ${PAGEFOLD_GUEST_SUITE:-bookworm-backports bookworm}; do
    package=$(kernel_package "$suite")
    [ -n "$package" ] && break
done
[ -n "$package" ] || unable "no kernel package at $mirror: $(tail -n 1 "$apt/log")"
packages=$(divided "$package")

# shellcheck disable=SC2086 # Each package is a separate argument.
(cd "$apt" && private apt-get download $packages >>log 2>&1) ||
    unable "downloading $package: $(tail -n 1 "$apt/log")"

rm -rf "$kernel" "$kernel.new"
mkdir -p "$kernel.new/tree"
for part in $packages; do
    dpkg-deb -x "$apt/$part"_*.deb "$kernel.new/tree"
done
modules=$kernel.new/tree/lib/modules
[ -d "$modules" ] || modules=$kernel.new/tree/usr/lib/modules
mv "$modules"/* "$kernel.new/modules"
# Newer packages have the image among the modules, and no configuration.
image=$kernel.new/modules/vmlinuz
[ -e "$image" ] || image=$(echo "$kernel.new/tree/boot"/vmlinuz-*)
mv "$image" "$kernel.new/vmlinuz"
mv "$kernel.new/tree/boot"/config-* "$kernel.new/config" 2>/dev/null || true
rm -rf "$kernel.new/tree" "$apt"
# This comes last, so that an interrupted run leaves no incomplete kernel in the cache.
mv "$kernel.new" "$kernel"
done_with
