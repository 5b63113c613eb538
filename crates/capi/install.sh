#!/usr/bin/env bash
# Builds libpagefold and installs it: header, shared library with its links, static library, pkg-config files (pagefold,
# and pagefold-static for the static library). Afterwards it says how the dynamic linker finds the library, if it does not.
#
#   install.sh --prefix DIR [--destdir DIR] [--libdir DIR] [--profile NAME | --libs DIR]
#
#   --prefix DIR    where programs will find the library, such as /usr/local
#   --destdir DIR   put before all paths when files are copied, for packages
#   --libdir DIR    default: PREFIX/lib
#   --profile NAME  cargo's profile, default: release
#   --libs DIR      install the libraries that cargo has built in this folder
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix="" destdir="" libdir="" profile=release libs=""

fail() { echo "install.sh: $1" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --destdir | --libdir | --profile | --libs)
            [ $# -ge 2 ] || fail "$1 needs a value"
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
        *) fail "unknown option $1" ;;
    esac
done
[ -n "$prefix" ] || fail "--prefix is missing"
libdir=${libdir:-$prefix/lib}

# Cargo knows the version and the folder, which a configuration can move.
field() { python3 -c "import json, sys; print($1)"; }
metadata=$(cd "$here" && cargo metadata --format-version 1 --no-deps --offline)
version=$(field 'next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "pagefold-c")' <<<"$metadata")
if [ -z "$libs" ]; then
    (cd "$here" && cargo build --profile "$profile" -p pagefold-c)
    folder=$profile
    [ "$profile" != dev ] || folder=debug
    libs=$(field 'json.load(sys.stdin)["target_directory"]' <<<"$metadata")/$folder
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The static library contains other libraries (zstd, lz4, jemalloc) under their usual names. A program may link its own
# copies of them, so all symbols but those of the header become local: first the objects become one, without the
# sections that nothing in the header leads to.
make_static() {
    local names=() name
    for name in $(nm -D --defined-only "$libs/libpagefold.so" | awk '{ print $3 }'); do
        names+=(-u "$name")
    done
    ld -r --gc-sections "${names[@]}" -o "$work/all.o" "$libs/libpagefold.a"
    # Rust's standard library has its bitcode in it. Joined, it is not valid, and plugins of ar and nm would fail on it.
    objcopy --wildcard --keep-global-symbol='pf_*' --remove-section=.llvmbc --remove-section=.llvmcmd \
        "$work/all.o" "$work/pagefold.o"
    ar rcs "$work/libpagefold.a" "$work/pagefold.o"
}
make_static

for name in pagefold pagefold-static; do
    sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@includedir@|$prefix/include|" \
        -e "s|@version@|$version|" "$here/$name.pc.in" >"$work/$name.pc"
done

soname=libpagefold.so.0
install -d "$destdir$prefix/include" "$destdir$libdir/pkgconfig"
install -m 644 "$here/include/pagefold.h" "$destdir$prefix/include/"
install -m 755 "$libs/libpagefold.so" "$destdir$libdir/libpagefold.so.$version"
ln -sf "libpagefold.so.$version" "$destdir$libdir/$soname"
ln -sf "$soname" "$destdir$libdir/libpagefold.so"
install -m 644 "$work/libpagefold.a" "$destdir$libdir/"
install -m 644 "$work/pagefold.pc" "$work/pagefold-static.pc" "$destdir$libdir/pkgconfig/"

# The dynamic linker has a cache of the folders that the system names. Only the administrator may write it.
known=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true)
if [ -z "$destdir" ] && [[ $known != *"$libdir/$soname"* ]]; then
    echo "Programs find the library after 'ldconfig' (as root, if the system's configuration names $libdir)," \
        "or if they are linked with -Wl,-rpath,$libdir"
fi
