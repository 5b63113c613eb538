#!/bin/sh
# Downloads erofs-utils and erofsfuse of a newer suite of Debian, and unpacks them with their libraries into a folder,
# as packages.sh does. PAGEFOLD_EROFS_SUITE names another suite than sid.
#
# usage: erofs-utils.sh [FOLDER]     prints FOLDER, by default target/guest/erofs-utils; for the tests that use it:
#     PAGEFOLD_EROFS_UTILS=$(tests/guest/erofs-utils.sh) cargo test -p pagefold-image-build --test all build::foreign
#
# Leaves FOLDER/bin with mkfs.erofs, fsck.erofs, dump.erofs and erofsfuse. Exit status 2 when they cannot be downloaded,
# with the reason on stderr.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
exec "$here/packages.sh" "${1:-$here/../../target/guest/erofs-utils}" "${PAGEFOLD_EROFS_SUITE:-sid}" \
    "erofs-utils erofsfuse" "mkfs.erofs fsck.erofs dump.erofs erofsfuse"
