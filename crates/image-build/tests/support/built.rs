//! A small tree with a file of every kind, and the ways in which the builder can store it: for comparisons with other
//! readers.

use pagefold_image::read::inode::{DeviceNumber, Timestamp};
use pagefold_image_build::content::{Content, Reader};
use pagefold_image_build::{
    Body, BuildError, ChunkForm, Compression, Form, InodeForm, InodeId, Metadata, Options, Pattern, Rule,
    TARGETS, Target, Tree, build,
};
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

const COMPRESSIONS: [&str; 6] = ["lz4", "lz4hc:9", "zstd:3", "deflate:6", "lzma:1", "none"];
const CLUSTERS: [u32; 4] = [4096, 16384, 65536, 1 << 20];

/// A way to store the tree.
pub struct Way {
    /// The name, for messages.
    pub name: String,
    /// The options of the builder.
    pub options: Options,
}

/// All ways: each compression with each size of clusters, with ends of files in blocks, behind the index, and in the packed
/// file; several compressions in one image; a short window; compressed inodes and directories, also in another compression than all
/// files; other forms of inodes, indexes and chunks; the defaults for each kernel.
pub fn ways() -> Vec<Way> {
    let newest = || Options::for_target(Target::new(6, 18));
    let mut ways = Vec::new();
    for compression in COMPRESSIONS {
        for cluster_bytes in CLUSTERS.into_iter().filter(|bytes| compression != "none" || *bytes == 4096) {
            for (ends, tail_packing, fragments) in
                [("blocks", false, false), ("tail packing", true, false), ("fragments", false, true)]
            {
                let name = format!("{compression}, clusters of {cluster_bytes}, {ends}");
                let compression = Compression::parse(compression).unwrap();
                let options = Options { compression, cluster_bytes, tail_packing, fragments, ..newest() };
                ways.push(Way { name, options });
            }
        }
    }
    let mut mixed = newest();
    for rule in ["text=lzma:0", "mixed=deflate:3", "len-1*=lz4", "noise=none"] {
        mixed.rules.push(rule).unwrap();
    }
    ways.push(Way { name: "a compression for each file".into(), options: mixed });
    let lz4 = Compression::parse("lz4hc:9").unwrap();
    let short = Options { compression: lz4, lz4_window_bytes: 16383, ..newest() };
    ways.push(Way { name: "a window of 16 KiB".into(), options: short });
    for (compression, fragments) in [("lz4hc:9", false), ("zstd:3", true), ("lzma:1", true)] {
        let compression = Compression::parse(compression).unwrap();
        let options =
            Options { compression, fragments, compress_metadata: true, metadata_inodes_min: 0, ..newest() };
        ways.push(Way { name: format!("compressed inodes, fragments: {fragments}"), options });
    }
    for (compression, cluster_bytes) in
        [("lz4", 4096), ("lz4hc:9", 65536), ("zstd:3", 65536), ("deflate:6", 16384), ("lzma:1", 1 << 20)]
    {
        let name = format!("compressed directories, {compression}");
        let compression = Compression::parse(compression).unwrap();
        let options = Options { compression, cluster_bytes, metadata_inodes_min: 0, ..newest() };
        ways.push(Way { name, options });
    }
    for compress_metadata in [false, true] {
        // No file has the algorithm of directories and inodes.
        let compression = Compression::parse("zstd:3").unwrap();
        let mut options = Options { compression, compress_metadata, metadata_inodes_min: 0, ..newest() };
        options.rules.push("*=lzma:1").unwrap();
        let name =
            format!("directories in another compression than files, compressed inodes: {compress_metadata}");
        ways.push(Way { name, options });
    }
    let form = Form::default();
    let inodes = InodeForm::Extended;
    let (uuid, extended) = (Some([7; 16]), Form { inodes, inline_data: false, checksum: false, ..form });
    let chunks = |bytes, indexed| Form { chunks: Some(ChunkForm { bytes, indexed }), ..form };
    for (name, compression, form) in [
        ("extended inodes, no data after them", "none", Form { uuid, xattr_shared_min: 1, ..extended }),
        ("extended inodes", "zstd:3", extended),
        ("inodes without times", "lz4", Form { inodes: InodeForm::WithoutTimes, ..form }),
        ("full indexes", "lz4hc:9", Form { full_indexes: true, ..form }),
        ("chunks of 4 KiB", "none", chunks(4096, false)),
        ("indexed chunks of 64 KiB", "none", chunks(65536, true)),
    ] {
        let options = Options { form, compression: Compression::parse(compression).unwrap(), ..newest() };
        ways.push(Way { name: format!("{name}, {compression}"), options });
    }
    let mut clusters = Options { cluster_bytes: 65536, ..newest() };
    let (pattern, compression) = (Pattern::regex("^t|mixed").unwrap(), Compression::parse("lz4").unwrap());
    clusters.rules.add(Rule { pattern, compression, cluster_bytes: Some(8192) });
    ways.push(Way { name: "shorter clusters for some files".into(), options: clusters });
    ways.extend(
        TARGETS.map(|target| Way { name: format!("Linux {target}"), options: Options::for_target(target) }),
    );
    ways
}

/// Builds an image of the tree.
pub fn build_at(path: &Path, tree: &Tree, options: &Options) {
    build(tree, options, &File::create(path).unwrap(), &mut |_| ControlFlow::Continue(())).unwrap();
}

/// The same bytes every time, which do not compress.
fn noise(len: usize) -> Vec<u8> {
    let step = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*state >> 56) as u8)
    };
    std::iter::repeat_n((), len).scan(1u64, |state, ()| step(state)).collect()
}

/// Words in an order without a pattern, which compress as text does.
fn text(len: usize) -> Vec<u8> {
    let words = noise(len).into_iter().map(|byte| format!("word{} ", byte.wrapping_mul(byte) % 200));
    words.take(len / 5).collect::<String>().into_bytes()
}

/// A file that is mostly a hole, with data at one place.
#[derive(Debug)]
struct Sparse {
    len_bytes: u64,
    data: Range<u64>,
}

struct SparseReader<'a>(&'a Sparse);

impl Content for Sparse {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>, BuildError> {
        Ok(Box::new(SparseReader(self)))
    }
}

impl Reader for SparseReader<'_> {
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>, BuildError> {
        Ok(Some(vec![self.0.data.clone()]))
    }

    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<(), BuildError> {
        for (at, byte) in (at..).zip(buf) {
            *byte = if self.0.data.contains(&at) { at as u8 | 1 } else { 0 };
        }
        Ok(())
    }
}

/// Metadata of these permissions.
fn metadata(permissions: u16) -> Metadata {
    let mtime = Timestamp { seconds: 1_700_000_000, nanoseconds: 123_456_789 };
    Metadata { permissions, mtime, ..Metadata::default() }
}

/// The tree: 4 MiB of contents, most of them copies, some of these edited, and a sparse file.
pub fn tree() -> Tree {
    let mut tree = Tree::new(metadata(0o755));
    add_contents(&mut tree);
    add_kinds(&mut tree);
    add_metadata(&mut tree);
    let ids: Vec<_> = (0..300).map(|i| format!("many/{i:x}-{}", "m".repeat(i % 40))).collect();
    for path in ids {
        tree.add_bytes(path.as_bytes(), *b"").unwrap();
    }
    tree
}

fn add_contents(tree: &mut Tree) {
    for len in [0, 1, 4000, 4095, 4096, 4097, 8192, 12_345] {
        let mut data = text(len);
        data.resize(len, b'.');
        tree.add_bytes(format!("len-{len}").as_bytes(), data).unwrap();
    }
    tree.add_bytes(b"noise", noise(20_000)).unwrap();
    tree.add_bytes(b"text", text(300_000)).unwrap();
    let mixed = [text(90_000), noise(40_000), vec![0; 100_000], noise(5000), text(30_001)].concat();
    tree.add_bytes(b"mixed", mixed.clone()).unwrap();
    for (name, data) in
        [("text", text(300_000)), ("noise", noise(20_000)), ("mixed", mixed.clone()), ("len", text(12_345))]
    {
        tree.add_bytes(format!("copies/of-{name}").as_bytes(), data.clone()).unwrap();
        tree.add_bytes(format!("copies/again/of-{name}").as_bytes(), data).unwrap();
    }
    let edited = [&mixed[..60_000], b"inserted", &mixed[60_000..200_000], &mixed[200_001..]].concat();
    let moved = [&text(300_000)[..150_000], &edited, &edited[..100_000]].concat();
    for (name, data) in
        [("mixed", edited), ("text", [b"front ".to_vec(), text(300_000)].concat()), ("all", moved)]
    {
        tree.add_bytes(format!("edited/of-{name}").as_bytes(), data).unwrap();
    }
    tree.add_bytes(b"zeroes", vec![0; 200_000]).unwrap();
    let sparse = Sparse { len_bytes: (2 << 20) + 5, data: 400_000..410_000 };
    tree.add(InodeId::ROOT, b"sparse", metadata(0o644), Body::Regular(Arc::new(sparse))).unwrap();
}

fn add_kinds(tree: &mut Tree) {
    let device = |major, minor| DeviceNumber { major, minor };
    for (name, body) in [
        ("symlink", Body::Symlink(b"len-1".as_slice().into())),
        ("symlink-long", Body::Symlink("t/".repeat(2000).into_bytes().into())),
        ("null", Body::CharDevice(device(1, 3))),
        ("disk", Body::BlockDevice(device(259, 70_000))),
        ("pipe", Body::Fifo),
        ("socket", Body::Socket),
    ] {
        // Linux gives links all permissions, whatever an image says.
        let permissions = if matches!(body, Body::Symlink(_)) { 0o777 } else { 0o640 };
        tree.add(InodeId::ROOT, name.as_bytes(), metadata(permissions), body).unwrap();
    }
    let linked = tree.find(b"len-4097").unwrap();
    tree.link(InodeId::ROOT, b"link-a", linked).unwrap();
    let deep = tree.make_directories(b"deep/er/and/deeper", &metadata(0o750)).unwrap();
    tree.link(deep, b"link-b", linked).unwrap();
    tree.add_bytes("\u{fc}ml\u{e4}ut tab\t".as_bytes(), *b"odd name").unwrap();
    tree.add_bytes(&[b'n'; 255], *b"long name").unwrap();
}

fn add_metadata(tree: &mut Tree) {
    let modes = tree.add_bytes(b"modes", *b"modes").unwrap();
    tree.change(modes, |own| *own = Metadata { uid: 70_000, gid: 80_000, ..metadata(0o6751) }).unwrap();
    for (name, seconds, nanoseconds) in [("old", -1000, 250), ("new", 5_000_000_000, 999_999_999)] {
        let id = tree.add_bytes(name.as_bytes(), name.as_bytes().to_vec()).unwrap();
        tree.change(id, |own| own.mtime = Timestamp { seconds, nanoseconds }).unwrap();
    }
    let xattr = |name: &str, value: &[u8]| (name.as_bytes().into(), value.into());
    for i in 0..8u8 {
        let id = tree.add_bytes(format!("shared-{i}").as_bytes(), vec![i; 10]).unwrap();
        let own = xattr("trusted.own", &[i]);
        let shared =
            [xattr("security.also", &[0, 255, i & 1]), own, xattr("user.shared", b"the same everywhere")];
        tree.change(id, |own| own.xattrs = shared.into()).unwrap();
    }
    let id = tree.add_bytes(b"attributes", *b"attributes").unwrap();
    let acl = xattr("system.posix_acl_access", &access_list());
    // fsck.erofs 1.9.4 reports an error for an empty value, also in images of mkfs.erofs.
    let user = (1..13).map(|i| xattr(&format!("user.{}", "a".repeat(i * 5 + 1)), &vec![i as u8; i * 3]));
    tree.change(id, |own| own.xattrs = std::iter::once(acl).chain(user).collect()).unwrap();
    // The group's bits of a file with an access list are its mask.
    tree.change(id, |own| own.permissions = 0o770).unwrap();
    // fsck.erofs would extract files of a directory with such a list as its heirs.
    let empty = tree.make_directories(b"empty", &metadata(0o755)).unwrap();
    tree.change(empty, |own| own.xattrs = vec![xattr("system.posix_acl_default", &access_list())]).unwrap();
}

/// An access list: owner rwx, user 1000 r-x, group r-x, mask rwx, others none.
fn access_list() -> Vec<u8> {
    let rows = [(0x01, 7, u32::MAX), (0x02, 5, 1000), (0x04, 5, u32::MAX), (0x10, 7, u32::MAX)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in rows.into_iter().chain([(0x20, 0, u32::MAX)]) {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(rights));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}
