#!/bin/sh
# Prints a Python that has moto with its server: the system's, or one in a folder, into which pip installs it.
#
# usage: moto.sh [FOLDER]     by default target/guest/moto. Exit status 2 when it cannot be installed, with the reason on
# stderr.
set -eu

for python in python3 "${1:-$(cd "$(dirname "$0")/../.." && pwd)/target/guest/moto}/bin/python"; do
    if "$python" -c 'import moto.server, boto3, flask' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
folder=${python%/bin/python}
unable() {
    echo "moto cannot be installed: $1" >&2
    exit 2
}
mkdir -p "$folder"
python3 -m venv "$folder" >"$folder.log" 2>&1 || unable "$(tail -n 1 "$folder.log")"
"$python" -m pip install -q 'moto[server,s3,iam]>=5,<6' >"$folder.log" 2>&1 || unable "$(tail -n 1 "$folder.log")"
"$python" -c 'import moto.server, boto3, flask' 2>"$folder.log" || unable "$(tail -n 1 "$folder.log")"
echo "$python"
