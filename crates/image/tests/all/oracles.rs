//! The same trees through other readers: `erofs-rs`, which shares no code with this crate, and the kernel.

use crate::support::features::features;
use crate::support::walk::{assert_same, contents, sha256, walk};
use crate::support::{Entry, reference_image, reference_names};
use erofs_rs::EroFS;
use erofs_rs::backend::SliceImage;
use pagefold_image::{Image, Options};
use pagefold_testkit::skipped;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

type Other<'a> = EroFS<SliceImage<'a>>;

/// What `erofs-rs` says of an inode, `None` for the contents of files longer than `longest`: it is slow.
fn other_entry(other: &Other<'_>, path: &str, nid: u64, longest: u64) -> Entry {
    let inode = other.get_inode(nid).unwrap_or_else(|e| panic!("{path}: {e}"));
    let kind = if inode.is_dir() {
        0o040_000
    } else if inode.is_file() {
        0o100_000
    } else if inode.is_symlink() {
        0o120_000
    } else {
        0
    };
    let mut data = Vec::new();
    if inode.is_file() && inode.data_size() <= longest {
        let read = other.open_inode_file(inode).map(|mut file| file.read_to_end(&mut data));
        assert!(matches!(read, Ok(Ok(_))), "{path}: {read:?}");
    }
    let target = inode.is_symlink().then(|| other.read_link_inode(inode).unwrap());
    let (mode, uid, gid, nlink) =
        (inode.permissions().mode() as u16 | kind, inode.uid(), inode.gid(), inode.nlink());
    let (size, sha256) = match inode.is_file() {
        true => (Some(inode.data_size()), (inode.data_size() <= longest).then(|| sha256(&data))),
        false => (None, None),
    };
    let target = target.map(|target| String::from_utf8_lossy(target.as_bytes()).into_owned());
    let rdev = inode.device().filter(|_| kind == 0);
    let xattrs = other.xattrs_inode(inode).unwrap_or_else(|e| panic!("{path}: {e}"));
    Entry { path: path.to_owned(), mode, uid, gid, nlink, size, sha256, target, rdev, xattrs }
}

fn other_walk(other: &Other<'_>, longest: u64) -> Vec<Entry> {
    let root = other.super_block().root_inode_id();
    let mut found = vec![other_entry(other, "/", root, longest)];
    for entry in other.walk_dir("/").unwrap() {
        let entry = entry.unwrap();
        let path = entry.dir_entry.path();
        if [&b"."[..], b".."].contains(&entry.dir_entry.file_name()) {
            continue;
        }
        let path = String::from_utf8_lossy(path.as_bytes()).into_owned();
        found.push(other_entry(other, &path, entry.inode.id(), longest));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Our own list, as far as the other one says as much.
fn reduced(mut ours: Vec<Entry>, longest: u64) -> Vec<Entry> {
    for entry in &mut ours {
        // It tells pipes, sockets and devices by their inodes only.
        if entry.size.is_none() && entry.target.is_none() && entry.mode & 0o170_000 != 0o040_000 {
            entry.mode &= 0o7777;
        }
        entry.sha256.take_if(|_| entry.size.is_some_and(|size| size > longest));
    }
    ours
}

#[test]
fn erofs_rs_reads_the_feature_images_alike() {
    for feature in features() {
        let devices = feature.devices.iter().map(|bytes| SliceImage::new(bytes)).collect();
        let other = match EroFS::new_with_devices(SliceImage::new(&feature.bytes), devices) {
            Ok(other) => other,
            Err(error) => panic!("{}: {error}", feature.name),
        };
        let image = Image::open(feature.medium(), feature.options(Options::default())).unwrap();
        let ours = reduced(walk(&image, 1 << 20).unwrap(), u64::MAX);
        assert_same(&feature.name, &other_walk(&other, u64::MAX), &without_digest(ours));
    }
}

fn without_digest(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.iter_mut().for_each(|entry| _ = entry.xattrs.remove(&b"user.digest"[..]));
    entries
}

#[test]
fn erofs_rs_reads_the_reference_images_alike() {
    const LONGEST: u64 = 200 << 10;
    for name in reference_names() {
        let bytes = fs::read(reference_image(name)).unwrap();
        let other = EroFS::new(SliceImage::new(&bytes)).unwrap();
        let image = Image::open_file(&reference_image(name), Options::default()).unwrap();
        let ours = reduced(walk(&image, 1 << 20).unwrap(), LONGEST);
        assert_same(name, &other_walk(&other, LONGEST), &ours);
    }
}

/// What a command prints, or why it failed.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&done.stderr).trim().replace('\n', " ")),
    }
}

/// An image that is mounted, and its further devices; no longer, once this is dropped.
struct Mounted {
    at: tempfile::TempDir,
    is_mounted: bool,
    loops: Vec<String>,
}

impl Mounted {
    /// `None`, having said why, where it cannot be.
    fn new(image: &Path, devices: &[PathBuf]) -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let mut mounted = Mounted { at, is_mounted: false, loops: Vec::new() };
        match mounted.mount(image, devices) {
            Ok(()) => Some(mounted),
            Err(why) => {
                skipped!("the_kernel_reads_every_image_alike: {}: {why}", image.display());
                None
            }
        }
    }

    fn mount(&mut self, image: &Path, devices: &[PathBuf]) -> Result<(), String> {
        let mut options = "ro".to_owned();
        for device in devices {
            let device = run("losetup", &["--find", "--show", "--read-only", device.to_str().unwrap()])?;
            options = format!("{options},device={device}");
            self.loops.push(device);
        }
        let (image, at) = (image.to_str().unwrap(), self.at.path().to_str().unwrap());
        run("mount", &["-t", "erofs", "-o", &options, image, at])?;
        self.is_mounted = true;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            run("umount", &[self.at.path().to_str().unwrap()]).unwrap();
        }
        for device in &self.loops {
            run("losetup", &["--detach", device]).unwrap();
        }
    }
}

fn kernel_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut names, mut value) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let len = rustix::fs::llistxattr(path, names.as_mut_slice()).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let len = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

fn kernel_entry(root: &Path, path: &Path) -> Entry {
    let meta = fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let is_device = kind.is_char_device() || kind.is_block_device();
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let target = kind.is_symlink().then(|| fs::read_link(path).unwrap().to_string_lossy().into_owned());
    Entry {
        path: format!("/{}", path.strip_prefix(root).unwrap().to_str().unwrap()),
        mode: meta.mode() as u16,
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink() as u32,
        size: kind.is_file().then_some(meta.len()),
        sha256: kind.is_file().then(|| sha256(&fs::read(path).unwrap())),
        target,
        rdev: is_device.then_some((major, minor)),
        xattrs: kernel_xattrs(path),
    }
}

fn kernel_walk(root: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut stack = vec![root.to_path_buf()];
    while let Some(path) = stack.pop() {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push(kernel_entry(root, &path));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[test]
fn the_kernel_reads_every_image_alike() {
    if !rustix::process::geteuid().is_root() {
        skipped!("the_kernel_reads_every_image_alike: mounting needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for feature in features() {
        let put = |name: &str, bytes: &[u8]| {
            // A loop device ends with a whole sector, and a device of the table with its last block.
            let mut bytes = bytes.to_vec();
            bytes.resize(bytes.len().next_multiple_of(4096), 0);
            fs::write(folder.path().join(name), bytes).unwrap();
            folder.path().join(name)
        };
        let path = put(&feature.name, &feature.bytes);
        let device = |(i, bytes): (usize, &Vec<u8>)| put(&format!("{}.{i}", feature.name), bytes);
        let devices: Vec<PathBuf> = feature.devices.iter().enumerate().map(device).collect();
        let Some(mounted) = Mounted::new(&path, &devices) else { continue };
        let image = Image::open(feature.medium(), feature.options(Options::default())).unwrap();
        let ours = without_digest(walk(&image, 100_000).unwrap());
        assert_same(&feature.name, &kernel_walk(mounted.at.path()), &ours);
    }
    for name in reference_names() {
        let path = reference_image(name);
        let Some(mounted) = Mounted::new(&path, &[]) else { continue };
        let image = Image::open_file(&path, Options::default()).unwrap();
        assert_same(name, &kernel_walk(mounted.at.path()), &walk(&image, 100_000).unwrap());
    }
}

/// A file of the kernel's, at places and of lengths of our choice.
#[test]
fn reads_in_parts_are_parts_of_the_whole() {
    for feature in features() {
        let image = Image::open(feature.medium(), feature.options(Options::default())).unwrap();
        let node = image.find(b"/mixed").unwrap();
        let whole = contents(&node, 1 << 20).unwrap();
        let mut random = 1_u64;
        for _ in 0..200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (at, len) = ((random >> 40) as usize % whole.len(), (random >> 20) as usize % 20_000);
            let mut part = vec![0; len];
            let read = node.read_at(at as u64, &mut part).unwrap();
            assert_eq!(part[..read], whole[at..whole.len().min(at + len)], "{}: {len} at {at}", feature.name);
        }
    }
}
