#!/bin/sh
# Runs containers by containerd, with its EROFS snapshotter, from images that pagefold made:
#
# - layers that `image build --layer-cache` put into a layer content cache: containerd fetches and converts none of them,
# - layers that containerd converts by the program mkfs.erofs of the search path, which is pagefold by that name,
# - an image that `image push` published.
#
# usage: containerd.sh [--built]     with --built only if containerd is there already
#
# Needs root, a kernel with EROFS and overlayfs, runc, busybox-static, curl, once Go and the network, and cargo, unless
# PAGEFOLD_PROGRAM names the program. Go builds containerd, once, in $PAGEFOLD_GUEST_CACHE/containerd or target/guest/containerd;
# PAGEFOLD_CONTAINERD names another version. Leaves nothing behind. Prints a line for each check, and RESULT. Exit status 2 when
# something is missing, 1 when a check fails.
set -eu

version=${PAGEFOLD_CONTAINERD:-v2.4.2}
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${PAGEFOLD_GUEST_CACHE:-$top/target/guest}
unable() { echo "containerd.sh: $*" >&2; exit 2; }

[ "$(id -u)" = 0 ] || unable "root is needed: containers are mounted"
for tool in runc busybox curl tar gzip sha256sum; do
    command -v $tool >/dev/null || unable "$tool is missing"
done
for fs in erofs overlay; do
    grep -qw $fs /proc/filesystems || modprobe $fs 2>/dev/null || unable "the kernel has no $fs"
done

containerd=$cache/containerd/$version
if [ ! -e "$containerd/complete" ]; then
    [ "${1:-}" != --built ] || unable "containerd is not built yet, which takes minutes; 'tests/guest/containerd.sh' builds it"
    command -v go >/dev/null || unable "go is missing, which builds containerd"
    mkdir -p "$containerd"
    for program in containerd ctr containerd-shim-runc-v2; do
        GOBIN=$containerd go install -ldflags '-s -w' "github.com/containerd/containerd/v2/cmd/$program@$version"
    done >"$containerd/log" 2>&1 || unable "building containerd: $(tail -n 1 "$containerd/log")"
    touch "$containerd/complete"
fi
registry=$("$here/docker-registry.sh" "$cache/docker-registry")/bin/docker-registry

pagefold=${PAGEFOLD_PROGRAM:-}
if [ -z "$pagefold" ]; then
    command -v cargo >/dev/null || unable "cargo is missing"
    (cd "$top" && cargo build -q -p pagefold)
    pagefold=${CARGO_TARGET_DIR:-$top/target}/debug/pagefold
fi

work=$(mktemp -d)
pids=
finish() {
    # shellcheck disable=SC2086 # Each number is a separate argument.
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    # shellcheck disable=SC2086 # The same.
    [ -z "$pids" ] || wait $pids 2>/dev/null || true
    # Shims and mounts that a failed check left.
    pkill -f -- "-address $work/containerd.sock" || true
    grep -o " $work/[^ ]*" /proc/self/mounts | sort -r | while read -r at; do umount "$at" || true; done
    rm -rf "$work"
    # Folders that containerd and runc make, whatever their settings say; others may use them.
    find /run/containerd -depth -type d -empty -delete 2>/dev/null || true
}
trap finish EXIT
trap 'exit 1' INT TERM

# A number of a port that nobody uses.
port() {
    for port in $(seq 20000 7 32000 | shuf); do
        grep -q "$(printf ':%04X ' "$port")" /proc/net/tcp || { echo "$port"; return; }
    done
}
address=127.0.0.1:$(port)
cat >"$work/registry.yml" <<END_OF_FILE
version: 0.1
log: {level: error}
storage:
  filesystem: {rootdirectory: $work/blobs}
http:
  addr: $address
END_OF_FILE
"$registry" serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
pids="$pids $!"

# The program that containerd converts by; a list of its calls shows when it does.
mkdir -p "$work/bin" "$work/named"
ln -s "$(realpath "$pagefold")" "$work/named/mkfs.erofs"
cat >"$work/bin/mkfs.erofs" <<END_OF_FILE
#!/bin/sh
echo "\$*" >>"$work/calls"
exec "$work/named/mkfs.erofs" "\$@"
END_OF_FILE
chmod 755 "$work/bin/mkfs.erofs"
cat >"$work/config.toml" <<END_OF_FILE
version = 3
root = "$work/root"
state = "$work/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
  address = "$work/containerd.sock"
[debug]
  level = "debug"
[plugins."io.containerd.snapshotter.v1.erofs"]
  layer_content_caches = ["$work/cache"]
[plugins."io.containerd.differ.v1.erofs"]
  mkfs_options = ["-T0", "--mkfs-time", "--sort=none"]
[plugins."io.containerd.service.v1.diff-service"]
  default = ["erofs", "walking"]
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "erofs"
  differ = "erofs"
END_OF_FILE
PATH="$work/bin:$containerd:$PATH" "$containerd/containerd" -c "$work/config.toml" >"$work/log" 2>&1 &
pids="$pids $!"
ctr() { PATH="$containerd:$PATH" "$containerd/ctr" -a "$work/containerd.sock" "$@"; }

bad=0
check() {
    what=$1
    shift
    if "$@" >"$work/said" 2>&1; then echo "CHECK $what: ok"; else
        echo "CHECK $what: FAILED"
        tail -n 20 "$work/said"
        bad=$((bad + 1))
    fi
}
eventually() { for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done; "$@"; }
check "the registry answers" eventually curl -sf "http://$address/v2/"
check "containerd answers" eventually ctr version
is_loaded() { ctr plugins ls | grep -E "$1 +erofs .* ok"; }
check "containerd has the snapshotter" is_loaded io.containerd.snapshotter.v1
check "containerd takes mkfs.erofs for one that reads archives" is_loaded io.containerd.differ.v1

digest() { sha256sum "$1" | cut -d ' ' -f 1; }
# Sends a blob of the image, the file $1.
blob() {
    at=$(curl -sf -X POST -D - -o "$work/answer" "http://$address/v2/me/app/blobs/uploads/" |
        tr -d '\r' | sed -n 's/^Location: //Ip')
    curl -sf -X PUT -H 'Content-Type: application/octet-stream' --data-binary "@$1" "$at&digest=sha256:$(digest "$1")"
}
descriptor() { echo "{\"mediaType\":\"application/vnd.oci.image.$2\",\"digest\":\"sha256:$(digest "$1")\",\"size\":$(stat -c %s "$1")}"; }

# Pushes an image of two layers by the tag $1, whose files say $1; the upper one hides a file of the lower one.
push_layers() {
    mkdir -p "$work/$1/low/bin" "$work/$1/low/etc" "$work/$1/up/etc"
    cp "$(command -v busybox)" "$work/$1/low/bin/busybox"
    ln -s busybox "$work/$1/low/bin/sh"
    echo "$1" >"$work/$1/low/etc/old"
    echo "$1" >"$work/$1/low/etc/replaced"
    touch "$work/$1/up/etc/.wh.old"
    echo "upper $1" >"$work/$1/up/etc/replaced"
    diff_ids= layers=
    for layer in low up; do
        tar -C "$work/$1/$layer" --owner=0 --group=0 -cf "$work/$1/$layer.tar" .
        gzip -1nk "$work/$1/$layer.tar"
        blob "$work/$1/$layer.tar.gz"
        diff_ids="$diff_ids,\"sha256:$(digest "$work/$1/$layer.tar")\""
        layers="$layers,$(descriptor "$work/$1/$layer.tar.gz" layer.v1.tar+gzip)"
    done
    echo "{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[${diff_ids#,}]}}" \
        >"$work/$1/config"
    blob "$work/$1/config"
    media=application/vnd.oci.image.manifest.v1+json
    echo "{\"schemaVersion\":2,\"mediaType\":\"$media\",\"config\":$(descriptor "$work/$1/config" config.v1+json),\"layers\":[${layers#,}]}" \
        >"$work/$1/manifest"
    curl -sf -X PUT -H "Content-Type: $media" --data-binary "@$work/$1/manifest" "http://$address/v2/me/app/manifests/$1"
}

# Runs a container of the tag $1, and compares what it reads with the files of the image $2.
run_container() {
    said=$(ctr run --rm --snapshotter erofs "$address/me/app:$1" "test-$$-$1" /bin/sh -c \
        'read -r line </etc/replaced; echo "$line"; test -e /etc/old || echo hidden; echo written >/new; cat /new' 2>"$work/errors")
    [ "$said" = "$(printf 'upper %s\nhidden\nwritten' "$2")" ] || { echo "said '$said'"; cat "$work/errors"; return 1; }
}
# The service of containerd pulls, as it does for other clients: a pull by ctr itself asks no cache.
pull() { ctr image pull --plain-http --snapshotter erofs "$@"; }
# The calls of mkfs.erofs that are not the question for its options.
conversions() { grep -vc -- '--help' "$work/calls" || true; }
hits() { grep -c 'layer content cache hit' "$work/log" || true; }

for tag in cached converted; do
    check "the image '$tag' is in the registry" push_layers $tag
done
check "pagefold fills the cache" "$pagefold" image build --layer-cache "$work/cache" "oci://$address/me/app:cached"
check "containerd pulls the image of the cached layers" pull "$address/me/app:cached"
check "it took both layers from the cache" test "$(hits)" = 2
fetched_none() { ! ctr content ls -q | grep -E "$(digest "$work/cached/low.tar.gz")|$(digest "$work/cached/up.tar.gz")"; }
check "it fetched none" fetched_none
check "it converted none" test "$(conversions)" = 0
check "a container runs from them" run_container cached cached

check "containerd pulls the other image" pull "$address/me/app:converted"
check "it converted two layers by pagefold" test "$(conversions)" = 2
check "a container runs from them" run_container converted converted

push_image() {
    "$pagefold" image build -q "$work/converted/low.tar" "$work/converted/up.tar" "$work/pushed.erofs"
    "$pagefold" image push "$work/pushed.erofs" "oci://$address/me/app:pushed"
}
check "pagefold pushes an image of the merged layers" push_image
check "containerd pulls it" pull "$address/me/app:pushed"
check "it converted nothing more" test "$(conversions)" = 2
check "a container runs from it" run_container pushed converted

[ $bad = 0 ] || { tail -n 40 "$work/log" >&2; echo "RESULT: failed, $bad checks"; exit 1; }
echo "RESULT: ok"
