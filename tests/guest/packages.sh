#!/bin/sh
# Downloads programs of a suite of Debian, and unpacks them with their libraries into a folder.
#
# The script installs nothing and changes no setting of the system: apt runs with a separate source list, lists and
# archive inside the folder. The programs run on an older Debian too, because each is started through the loader and
# with the C library of its suite.
#
# usage: packages.sh FOLDER SUITE PACKAGES PROGRAMS     prints FOLDER; for example
#     packages.sh target/guest/nbd-client sid nbd-client nbd-client
#
# PACKAGES and PROGRAMS are lists of words, each list one argument. Leaves FOLDER/bin with PROGRAMS, and FOLDER/root
# with the packages. If the programs exist, the script needs no network. Exit status 2 when they cannot be downloaded,
# with the reason on stderr.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
folder=$1
suite=$2
wanted=$3
programs=$4
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# shellcheck source=apt.sh
. "$here/apt.sh"

# Whether all programs exist.
complete() {
    for program in $programs; do
        [ -x "$folder/bin/$program" ] || return 1
    done
}

if complete; then
    echo "$folder"
    exit 0
fi
prepare_apt "$folder/apt" "the programs come"

# Prints the packages of $@ and the libraries that they need, without the programs that they depend on.
with_libraries() {
    printf '%s\n' "$@"
    # shellcheck disable=SC2046 # Each package is a separate argument.
    private apt-cache depends --important --recurse \
        $(private apt-cache depends --important "$@" | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p') |
        grep -E '^(lib|zlib1g)[^ ]*$'
}

update_lists "$suite" || unable "lists of $suite: $(tail -n 1 "$apt/log")"
# shellcheck disable=SC2086 # Each package is a separate argument.
packages=$(with_libraries $wanted | sort -u) || unable "$mirror has no $wanted for $suite"
# shellcheck disable=SC2086 # Each package is a separate argument.
(cd "$apt" && private apt-get download $packages >>log 2>&1) || unable "downloading: $(tail -n 1 "$apt/log")"

root=$folder/root
rm -rf "$root" "$folder/bin.new"
mkdir -p "$root" "$folder/bin.new"
for package in "$apt"/*.deb; do
    dpkg-deb -x "$package" "$root"
done
# Older packages have files in /sbin and /lib, which are links to /usr/sbin and /usr/lib on a system.
for name in bin sbin lib; do
    [ ! -d "$root/$name" ] || { mkdir -p "$root/usr/$name" && cp -a "$root/$name/." "$root/usr/$name/"; }
done
libraries=$root/usr/lib/x86_64-linux-gnu
for program in $programs; do
    path=$(find "$root/usr/bin" "$root/usr/sbin" -name "$program" 2>/dev/null | head -n 1)
    [ -n "$path" ] || unable "the packages of $suite have no $program"
    cat >"$folder/bin.new/$program" <<END
#!/bin/sh
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$path" "\$@"
END
    chmod 755 "$folder/bin.new/$program"
done
rm -rf "$apt" "$folder/bin"
# This comes last, so that an interrupted run leaves no incomplete folder.
mv "$folder/bin.new" "$folder/bin"
echo "$folder"
