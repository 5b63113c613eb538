#!/bin/sh
# Builds a user-mode Linux kernel with all of zram for guest.sh, from the source that Debian's unstable has as a
# package, and prints its path. It is an ordinary program, so the guest needs no emulator.
#
# usage: build.sh FOLDER      downloads, unpacks and builds in FOLDER, which needs 3 GB; repeats only what is missing
#
# Needs apt, a C compiler, make, bc, flex, bison, xz, and once the network. Takes some minutes on two processors.
# SOURCE is the package, linux-source-7.2 by default. Exit status 2 when the source cannot be downloaded.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
package=${SOURCE:-linux-source-7.2}
tree=$folder/$package
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# Runs an apt tool with a source list in the folder: no setting of the system changes.
private() {
    tool=$1
    shift
    "$tool" -q \
        -o Dir::Etc::SourceList="$folder/apt/sources.list" -o Dir::Etc::SourceParts="$folder/apt/empty" \
        -o Dir::State="$folder/apt" -o Dir::State::Lists="$folder/apt/lists" -o Dir::State::status=/dev/null \
        -o Dir::Cache="$folder/apt" -o APT::Sandbox::User=root "$@" >&2
}

if [ ! -e "$folder/$package.unpacked" ]; then
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/apt/empty"
    echo "deb [signed-by=$keyring] http://deb.debian.org/debian unstable main" >"$folder/apt/sources.list"
    private apt-get update || exit 2
    (cd "$folder" && private apt-get download "$package") || exit 2
    dpkg-deb -x "$folder/$package"_*.deb "$folder/package"
    tar -C "$folder" -xf "$folder/package/usr/src/$package.tar.xz"
    rm -rf "$folder/package" "$folder/apt"
    touch "$folder/$package.unpacked"
fi
make -s -C "$tree" ARCH=um KCONFIG_ALLCONFIG="$here/config" allnoconfig >&2
# An option that is unknown, or that another one excludes, would be left out without a word.
grep '^CONFIG' "$here/config" | while read -r line; do
    grep -qx "$line" "$tree/.config" || { echo "build.sh: the kernel does not take $line" >&2; exit 1; }
done
nice -n 10 make -s -C "$tree" ARCH=um -j"$(nproc)" linux >&2
echo "$tree/linux"
