//! Compares this crate with the kernel's reading of the same images. (`dev/oracle` compares it with `erofs-rs`.)

use crate::built::{build_at, tree, ways};
use crate::support::features::features;
use crate::support::walk::{assert_same, contents, sha256, walk};
use crate::support::{Entry, reference_image, reference_names};
use pagefold_image::{Image, Options};
use pagefold_testkit::skipped;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn without_digest(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.iter_mut().for_each(|entry| _ = entry.xattrs.remove(&b"user.digest"[..]));
    entries
}

/// Runs a command; returns its output, or its error output if it failed.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&done.stderr).trim().replace('\n', " ")),
    }
}

/// An image that the kernel has mounted, with loop devices for its further devices. Dropping it unmounts and detaches
/// them.
struct Mounted {
    at: tempfile::TempDir,
    is_mounted: bool,
    loops: Vec<String>,
}

impl Mounted {
    /// Mounts the image. Where that is impossible, prints the reason and returns `None`.
    fn new(test: &str, image: &Path, devices: &[PathBuf]) -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let mut mounted = Mounted { at, is_mounted: false, loops: Vec::new() };
        match mounted.mount(image, devices) {
            Ok(()) => Some(mounted),
            Err(why) => {
                skipped!("{test}: {}: {why}", image.display());
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
            // A child that another test starts has the files of this one open, until it runs its program.
            let unmount = || run("umount", &[self.at.path().to_str().unwrap()]);
            let is_unmounted = (0..100)
                .any(|_| unmount().inspect_err(|_| std::thread::sleep(Duration::from_millis(50))).is_ok());
            assert!(is_unmounted, "{:?}", unmount());
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

/// The entries of a directory, as the kernel shows them.
pub fn kernel_walk(root: &Path) -> Vec<Entry> {
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
fn every_image_equals_the_kernels_mount() {
    const NAME: &str = "every_image_equals_the_kernels_mount";
    if !rustix::process::geteuid().is_root() {
        skipped!("every_image_equals_the_kernels_mount: mounting needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for feature in features() {
        let put = |name: &str, bytes: &[u8]| {
            // A loop device needs whole sectors, and a device of the table whole blocks.
            let mut bytes = bytes.to_vec();
            bytes.resize(bytes.len().next_multiple_of(4096), 0);
            fs::write(folder.path().join(name), bytes).unwrap();
            folder.path().join(name)
        };
        let path = put(&feature.name, &feature.bytes);
        let device = |(i, bytes): (usize, &Vec<u8>)| put(&format!("{}.{i}", feature.name), bytes);
        let devices: Vec<PathBuf> = feature.devices.iter().enumerate().map(device).collect();
        let Some(mounted) = Mounted::new(NAME, &path, &devices) else { continue };
        let image = Image::open(feature.medium(), feature.options(Options::default())).unwrap();
        let ours = without_digest(walk(&image, 100_000).unwrap());
        assert_same(&feature.name, &kernel_walk(mounted.at.path()), &ours);
    }
    for name in reference_names() {
        let path = reference_image(name);
        let Some(mounted) = Mounted::new(NAME, &path, &[]) else { continue };
        let image = Image::open_file(&path, Options::default()).unwrap();
        assert_same(name, &kernel_walk(mounted.at.path()), &walk(&image, 100_000).unwrap());
    }
}

#[test]
fn the_kernel_reads_what_the_builder_writes() {
    const NAME: &str = "the_kernel_reads_what_the_builder_writes";
    if !rustix::process::geteuid().is_root() {
        return skipped!("{NAME}: mounting needs root");
    }
    let (folder, tree) = (tempfile::tempdir().unwrap(), tree());
    for (number, way) in ways().into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        build_at(&path, &tree, &way.options);
        let Some(mounted) = Mounted::new(&format!("{NAME}: {}", way.name), &path, &[]) else { continue };
        let image = Image::open_file(&path, Options::default()).unwrap();
        let ours = without_digest(walk(&image, 1 << 20).unwrap());
        assert_same(&way.name, &without_digest(kernel_walk(mounted.at.path())), &ours);
    }
}

/// Compares reads at random offsets and of random lengths with a read of the whole file.
#[test]
fn partial_reads_return_parts_of_the_whole_file() {
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
