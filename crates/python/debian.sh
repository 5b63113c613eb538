#!/bin/sh
# Downloads the Python of a suite of Debian with NumPy, pandas, PyTorch, pyarrow and pytest, and unpacks them into a
# folder with all libraries that they need.
#
# The script installs nothing and changes no setting of the system: apt runs with a separate source list, lists and
# archive inside the folder. The interpreter runs on an older Debian too, because it is started through the loader and
# with the C library of its suite. Of the packages that the tests use if they are there, those that the suite does not
# have are left out.
#
# usage: debian.sh SUITE [FOLDER]     (sid, trixie, bookworm) prints the interpreter, FOLDER/bin/python3
#
# FOLDER is by default target/python/SUITE. If the interpreter is there, the script needs no network.
# Exit status 2 when it cannot be downloaded, with the reason on stderr.
set -eu

suite=${1:?usage: debian.sh SUITE [FOLDER]}
here=$(cd "$(dirname "$0")" && pwd)
folder=${2:-$here/../../target/python/$suite}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
needed="python3 python3-numpy python3-pytest python3-fsspec"
wanted="python3-pandas python3-torch python3-pyarrow"

# shellcheck source=../../tests/guest/apt.sh
. "$here/../../tests/guest/apt.sh"

# An interpreter that was moved does not start.
if [ -x "$folder/bin/python3" ] && "$folder/bin/python3" -c "" 2>/dev/null; then
    echo "$folder/bin/python3"
    exit 0
fi
prepare_apt "$folder/apt" "the interpreter comes"

# Downloads packages and all that they depend on.
download() {
    private apt-get -o APT::Get::AllowUnauthenticated=false install --yes --download-only --no-install-recommends \
        "$@" >>"$apt/log" 2>&1
}

update_lists "$suite" || unable "lists of $suite: $(tail -n 1 "$apt/log")"
# shellcheck disable=SC2086 # Each package is a separate argument.
download $needed || unable "downloading: $(tail -n 1 "$apt/log")"
for package in $wanted; do
    download $needed "$package" || echo "debian.sh: $suite has no $package that can be downloaded" >&2
done

root=$folder/root
rm -rf "$root" "$folder/bin.new"
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" "$root/usr/sbin" "$folder/bin.new"
# Packages of older suites have files in /lib and /bin.
for name in bin lib lib64 sbin; do
    ln -s "usr/$name" "$root/$name"
done
for package in "$apt"/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root" || unable "unpacking $package"
done
libraries=$root/usr/lib/x86_64-linux-gnu
python=$(readlink "$root/usr/bin/python3") || unable "the packages of $suite have no python3"
cat >"$folder/bin.new/python3" <<END
#!/bin/sh
# PYTHONHOME is for this interpreter, which must not take the folders of the system's.
export PYTHONHOME="$root/usr"
exec "$libraries/ld-linux-x86-64.so.2" --argv0 "$folder/bin/python3" \\
    --library-path "$libraries:$root/usr/lib:$libraries/blas:$libraries/lapack" "$root/usr/bin/$python" "\$@"
END
chmod 755 "$folder/bin.new/python3"
rm -rf "$apt" "$folder/bin"
# This comes last, so that an interrupted run leaves no incomplete folder.
mv "$folder/bin.new" "$folder/bin"
echo "$folder/bin/python3"
