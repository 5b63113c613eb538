#!/bin/sh
# Prints the path of Azurite's blob server, Microsoft's emulator of Azure's storage: a script for Node.js, in a folder, into
# which npm installs it.
#
# usage: azurite.sh [FOLDER]     by default target/guest/azurite. Exit status 2 when it cannot be installed, with the reason
# on stderr.
set -eu

folder=${1:-$(cd "$(dirname "$0")/../.." && pwd)/target/guest/azurite}
script=$folder/node_modules/azurite/dist/src/blob/main.js
unable() {
    echo "Azurite cannot be installed: $1" >&2
    exit 2
}
command -v node >/dev/null || unable "there is no Node.js"
if ! [ -f "$script" ]; then
    command -v npm >/dev/null || unable "there is no npm"
    mkdir -p "$folder"
    npm install --prefix "$folder" --no-audit --no-fund azurite@3.34.0 >"$folder.log" 2>&1 ||
        unable "$(tail -n 1 "$folder.log")"
fi
echo "$script"
