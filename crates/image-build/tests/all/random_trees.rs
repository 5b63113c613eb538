//! Random trees through all that the library does with them: a tree becomes an image, the image an archive, a directory and
//! another image, and these become images again. Each of them has to be the tree that was drawn.
//!
//! A failure prints the seed of its tree; `PAGEFOLD_SEED` begins with it. `PAGEFOLD_LONG` draws many more trees.

use crate::random_tree::{
    DIRECTORY, File, Files, Kinds, REGULAR, Random, SYMLINK, assert_same, draw, read, refusal,
    without_sockets, write,
};
use crate::support::walk::contents;
use pagefold_image::extract::{ExtractOptions, extract};
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::{DeviceNumber, Timestamp};
use pagefold_image::tar::TarOptions as WriteOptions;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::content::Bytes;
use pagefold_image_build::source::{directory, image, tar};
use pagefold_image_build::{Body, Compression, InodeId, Metadata, Options, Target, Tree, build};
use pagefold_image_check::{CheckOptions, check};
use pagefold_sys::beneath::Folder;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Trees of a run.
const TREES: u64 = 1000;
const TREES_LONG: u64 = 30_000;
/// Threads that draw trees.
const THREADS: usize = 4;

const COMPRESSIONS: [&str; 6] = ["none", "lz4", "lz4hc:3", "zstd:1", "deflate:1", "lzma:0"];

#[test]
fn random_trees_are_the_same_after_each_conversion() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let is_long = std::env::var_os("PAGEFOLD_LONG").is_some();
    let first = number("PAGEFOLD_SEED").unwrap_or(1);
    let end = first + if is_long { TREES_LONG } else { TREES };
    let work = tempfile::tempdir().unwrap();
    if let Some(why) = refusal(work.path(), rustix::process::geteuid().is_root()) {
        return pagefold_testkit::skipped!("random_trees_are_the_same_after_each_conversion: {why}");
    }
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    convert(seed, work.path());
                }
            });
        }
    });
}

/// Lets the tree of a seed go all ways.
fn convert(seed: u64, work: &Path) {
    let what = |step: &str| format!("PAGEFOLD_SEED={seed}, {step}");
    let random = &mut Random(seed);
    let root = rustix::process::geteuid().is_root();
    let kinds = Kinds { root, holes: random.once_in(3), sockets: random.once_in(3) };
    let (files, options) = (draw(random, kinds), options(random));
    let work = work.join(seed.to_string());
    fs::create_dir(&work).unwrap();
    let build_at = |name: &str, tree: &Tree| {
        let (path, step) = (work.join(name), what(name));
        let out = fs::File::create(&path).unwrap();
        build(tree, &options, &out, &mut |_| ControlFlow::Continue(()))
            .unwrap_or_else(|e| panic!("{step}: {e}"));
        let image = open_checked(&path, &step);
        assert_same(
            &step,
            &of_image(&image),
            &if name == "from an archive" { without_sockets(files.clone()) } else { files.clone() },
        );
        image
    };
    let of_tree = build_at("from memory", &tree_of(&files));
    build_at("from an image", &image::scan(&of_tree, &[]).unwrap().tree);

    let archive = work.join("archive");
    let out = fs::File::create(&archive).unwrap();
    let written = pagefold_image::tar::write(&of_tree, &[], &WriteOptions::default(), out).unwrap();
    assert_eq!(written.findings.errors(), 0, "{}: {:?}", what("tar"), written.findings);
    let scanned = tar::scan(fs::File::open(&archive).unwrap(), &archive, &tar::TarOptions::default());
    let scanned = scanned.unwrap_or_else(|e| panic!("{}: {e}", what("reading an archive")));
    assert_eq!(scanned.dropped_xattrs, 0);
    build_at("from an archive", &scanned.tree);

    let [extracted, written] = ["extracted", "written"].map(|name| work.join(name));
    fs::create_dir(&extracted).unwrap();
    let folder = Folder::open(&extracted).unwrap();
    let options = ExtractOptions { privileged: root, owners: root, ..ExtractOptions::default() };
    let report = extract(&of_tree, &folder, &[], &options, &AtomicBool::new(false), &|_| ()).unwrap();
    assert_eq!(
        report.findings.errors() + report.findings.warnings(),
        0,
        "{}: {:?}",
        what("extract"),
        report.findings
    );
    assert_same(&what("extracted"), &read(&extracted), &files);
    let scan = |root: &Path| {
        let scanned = directory::scan(root, &directory::DirectoryOptions::default()).unwrap();
        assert_eq!(scanned.unreadable.count(), 0);
        scanned.tree
    };
    build_at("from what was extracted", &scan(&extracted));
    // The twin of the extraction.
    fs::create_dir(&written).unwrap();
    write(&files, &written);
    build_at("from a directory", &scan(&written));
    for folder in [extracted, written] {
        fs::remove_dir_all(folder).unwrap();
    }
    fs::remove_dir_all(work).unwrap();
}

fn options(random: &mut Random) -> Options {
    Options {
        compression: Compression::parse(random.pick(&COMPRESSIONS)).unwrap(),
        cluster_bytes: random.pick(&[4096, 16384, 65536]),
        tail_packing: random.once_in(2),
        fragments: random.once_in(2),
        compress_metadata: random.once_in(4),
        compress_directories: random.once_in(2),
        metadata_inodes_min: 0,
        threads: 1,
        ..Options::for_target(Target::new(6, 18))
    }
}

fn open_checked(path: &Path, what: &str) -> Image {
    let image = Image::open_file(path, ReadOptions::default()).unwrap();
    let report = check(&image, &CheckOptions { strict: true, ..CheckOptions::default() }, &|_| {}).unwrap();
    assert_eq!(report.findings.errors() + report.findings.warnings(), 0, "{what}: {:?}", report.findings);
    image
}

/// The tree, for the builder.
fn tree_of(files: &Files) -> Tree {
    let mut ids = BTreeMap::<&[u8], InodeId>::from([(&b""[..], InodeId::ROOT)]);
    let mut tree = Tree::new(metadata(&files[&b""[..]]));
    for (path, file) in files.iter().skip(1) {
        let cut = path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = cut.map_or((&b""[..], &path[..]), |cut| (&path[..cut], &path[cut + 1..]));
        match ids.get(&file.first[..]) {
            Some(id) => tree.link(ids[parent], name, *id).unwrap(),
            None => {
                let id = tree.add(ids[parent], name, metadata(file), body(file)).unwrap();
                ids.insert(path, id);
            }
        }
    }
    tree
}

fn metadata(file: &File) -> Metadata {
    Metadata {
        permissions: (file.mode & 0o7777) as u16,
        uid: file.uid,
        gid: file.gid,
        mtime: Timestamp { seconds: file.mtime.0, nanoseconds: file.mtime.1 },
        xattrs: file.xattrs.iter().map(|(name, value)| (name[..].into(), value[..].into())).collect(),
    }
}

fn body(file: &File) -> Body {
    let device = DeviceNumber { major: file.device.0, minor: file.device.1 };
    match file.kind() {
        DIRECTORY => Body::Directory,
        REGULAR => Body::Regular(Arc::new(Bytes(file.data[..].into()))),
        SYMLINK => Body::Symlink(file.data[..].into()),
        libc::S_IFCHR => Body::CharDevice(device),
        libc::S_IFBLK => Body::BlockDevice(device),
        libc::S_IFIFO => Body::Fifo,
        _ => Body::Socket,
    }
}

/// The tree in an image.
fn of_image(image: &Image) -> Files {
    let (mut files, mut first) = (Files::new(), BTreeMap::new());
    let mut stack = vec![(Vec::new(), image.root().unwrap())];
    while let Some((path, node)) = stack.pop() {
        let inode = node.inode();
        let data = match node.kind() {
            FileKind::Regular => contents(&node, 70_000).unwrap(),
            FileKind::Symlink => node.read_link().unwrap(),
            FileKind::Directory => {
                for entry in node.entries().unwrap() {
                    let entry = entry.unwrap();
                    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    stack.push(([&path[..], slash, &entry.name].concat(), image.node(entry.nid).unwrap()));
                }
                Vec::new()
            }
            _ => Vec::new(),
        };
        let xattrs = node.xattrs().unwrap().into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
        let file = File {
            mode: inode.mode.into(),
            uid: inode.uid,
            gid: inode.gid,
            mtime: (inode.mtime.seconds, inode.mtime.nanoseconds),
            xattrs,
            data,
            device: inode.device.map_or((0, 0), |device| (device.major, device.minor)),
            first: Vec::new(),
        };
        let names: &mut Vec<Vec<u8>> = first.entry(node.nid().0).or_default();
        names.push(path.clone());
        files.insert(path, file);
    }
    for names in first.into_values() {
        let least = names.iter().min().unwrap().clone();
        names.iter().for_each(|name| files.get_mut(name).unwrap().first.clone_from(&least));
    }
    files
}
