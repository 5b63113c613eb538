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

unable() {
    echo "fetch.sh: $*" >&2
    exit 2
}

done_with() {
    echo "$kernel/vmlinuz"
    echo "$kernel/modules"
    exit 0
}

[ -e "$kernel/vmlinuz" ] && [ -d "$kernel/modules" ] && done_with

[ "$(uname -m)" = x86_64 ] || unable "the guest is x86-64, this machine is $(uname -m)"
for tool in apt-get apt-cache dpkg-deb; do
    command -v $tool >/dev/null || unable "$tool is missing: the kernel comes as a Debian package"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keyring ] || unable "$keyring is missing (package debian-archive-keyring)"

apt=$cache/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/empty"
apt=$(cd "$apt" && pwd)
mirror=${PAGEFOLD_GUEST_MIRROR:-http://deb.debian.org/debian}

# Runs an apt tool with the source list in the cache. $1 is the tool, the rest are its arguments.
private() {
    tool=$1
    shift
    "$tool" -q \
        -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/empty" \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts="$apt/empty" \
        -o Dir::State="$apt" -o Dir::State::Lists="$apt/lists" -o Dir::State::status=/dev/null \
        -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives" \
        -o APT::Sandbox::User=root -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@"
}

# Prints the package of the newest kernel of suite $1, or nothing.
kernel_package() {
    echo "deb [signed-by=$keyring] $mirror $1 main" >"$apt/sources.list"
    private apt-get update >"$apt/log" 2>&1 || return 0
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
