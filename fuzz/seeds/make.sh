#!/usr/bin/env bash
# Makes the images that fuzz_targets/image_whole.rs changes: one tiny tree with many different features. Needs root,
# Python, and mkfs.erofs 1.9 or later, whose path is $MKFS.
set -euo pipefail
cd "$(dirname "$0")"
mkfs=${MKFS:-mkfs.erofs}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$work/tree" <<'PYTHON'
import os, sys
tree = sys.argv[1]
os.makedirs(tree + "/dir/deep")
text = b"".join(b"line %d: folded %x\n" % (n, n * 2654435761 % 2**24) for n in range(420))
noise = bytes((n * n * 31 + n * 7 + n // 9) % 251 for n in range(1700))
def make(name, data):
    with open(f"{tree}/{name}", "wb") as file:
        file.write(data)
make("text", text)
make("again", text[:5000])
make("mixed", text[:1500] + noise + bytes(3000) + text[2000:3300])
make("noise", noise)
make("small", b"small" * 9)
for n in range(24):
    make(f"dir/{n:02}-{'n' * n}", b"contents" * n)
make("dir/deep/end", text[:700])
os.symlink("dir/deep/end", tree + "/link")
os.mkfifo(tree + "/pipe")
os.mknod(tree + "/null", 0o20666, os.makedev(1, 3))
for name in ("text", "small", "dir"):
    os.setxattr(f"{tree}/{name}", "user.shared", b"shared value" * 5)
    os.setxattr(f"{tree}/{name}", f"user.long.prefix.{name}", b"own")
for folder, directories, files in os.walk(tree):
    for name in directories + files + ["."]:
        os.chown(os.path.join(folder, name), 0, 0, follow_symlinks=False)
        os.utime(os.path.join(folder, name), (1_700_000_000, 1_700_000_000), follow_symlinks=False)
PYTHON
image() { # name options...
    local name=$1
    shift
    rm -f "$name.erofs"
    "$mkfs" --quiet -T1700000000 -U 00112233-4455-6677-8899-aabbccddeeff --workers=1 "$@" "$name.erofs" "$work/tree"
}
image plain -b1024 --xattr-prefix=user.long.prefix. -x1
image chunks -b512 --chunksize=1024
rm -f blob.erofs.device
image blob -b512 --chunksize=1024 --blobdev=blob.erofs.device -E48bit
image lz4 -b512 -zlz4 -C2048 -Eztailpacking
image lz4k -zlz4 -x1
image zstd -b1024 -zzstd -C4096
image deflate -b512 -zdeflate -C1024 -Eztailpacking
image lzma -b512 -zlzma,dictsize=4096 -C2048
image fragments -b512 -zlz4hc -C1024 -Efragments,dedupe --xattr-prefix=user.long.prefix.
image allfragments -b512 -zzstd -Eall-fragments,dedupe
image records4 -b512 -zlz4 -C1024 -E48bit --max-extent-bytes=1024
image records8 -b512 -zlz4 -C512 -E48bit,dedupe --max-extent-bytes=512
image records16 -b512 -zzstd -C2048 -E48bit,fragments,dedupe
image metabox -b512 -m512 --MZ=i -zlz4 --xattr-prefix=user.long.prefix.
image metaplain -b512 -m512 --MZ=i
