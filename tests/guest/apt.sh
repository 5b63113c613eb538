# How scripts get Debian packages without root and without changes to the system: apt runs with a separate source list,
# lists and archive in a folder. Scripts source this file and then call `prepare_apt FOLDER WHAT`.

mirror=${PAGEFOLD_GUEST_MIRROR:-http://deb.debian.org/debian}

# Says why the packages cannot be had, and ends the script with status 2.
unable() {
    echo "$(basename "$0"): $*" >&2
    exit 2
}

# Checks what apt needs, and makes its folder, $apt. $1 is that folder, $2 the things that come as packages.
prepare_apt() {
    [ "$(uname -m)" = x86_64 ] || unable "the packages are for x86-64, this machine is $(uname -m)"
    for tool in apt-get apt-cache dpkg-deb; do
        command -v $tool >/dev/null || unable "$tool is missing: $2 as a Debian package"
    done
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -r $keyring ] || unable "$keyring is missing (package debian-archive-keyring)"
    mkdir -p "$1/lists/partial" "$1/archives/partial" "$1/empty"
    apt=$(cd "$1" && pwd)
    : >"$apt/status"
}

# Runs an apt tool with the source list in the folder, as if no package were installed. $1 is the tool, the rest are its
# arguments.
private() {
    tool=$1
    shift
    "$tool" -q \
        -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/empty" \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts="$apt/empty" \
        -o Dir::State="$apt" -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" \
        -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives" \
        -o APT::Sandbox::User=root -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@"
}

# Gets the lists of a suite, $1. Fails if they cannot be had; "$apt/log" says why.
update_lists() {
    echo "deb [signed-by=$keyring] $mirror $1 main" >"$apt/sources.list"
    private apt-get update >"$apt/log" 2>&1
}
