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

folder=$1
suite=$2
wanted=$3
programs=$4
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

unable() {
    echo "packages.sh: $*" >&2
    exit 2
}

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
[ "$(uname -m)" = x86_64 ] || unable "the packages are for x86-64, this machine is $(uname -m)"
for tool in apt-get apt-cache dpkg-deb; do
    command -v $tool >/dev/null || unable "$tool is missing: the programs come as Debian packages"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keyring ] || unable "$keyring is missing (package debian-archive-keyring)"

apt=$folder/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/empty"
mirror=${PAGEFOLD_GUEST_MIRROR:-http://deb.debian.org/debian}

# Runs an apt tool with the source list in the folder. $1 is the tool, the rest are its arguments.
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

# Prints the packages of $@ and the libraries that they need, without the programs that they depend on.
with_libraries() {
    printf '%s\n' "$@"
    # shellcheck disable=SC2046 # Each package is a separate argument.
    private apt-cache depends --important --recurse \
        $(private apt-cache depends --important "$@" | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p') |
        grep -E '^(lib|zlib1g)[^ ]*$'
}

echo "deb [signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
private apt-get update >"$apt/log" 2>&1 || unable "lists of $suite: $(tail -n 1 "$apt/log")"
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
