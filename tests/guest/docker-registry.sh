#!/bin/sh
# Downloads the registry of Debian's package docker-registry, and unpacks it into a folder, as packages.sh does.
#
# usage: docker-registry.sh [FOLDER]     prints FOLDER, by default target/guest/docker-registry. Leaves
# FOLDER/bin/docker-registry. Exit status 2 when it cannot be downloaded, with the reason on stderr.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
exec "$here/packages.sh" "${1:-$here/../../target/guest/docker-registry}" "${PAGEFOLD_REGISTRY_SUITE:-bookworm}" \
    docker-registry docker-registry
