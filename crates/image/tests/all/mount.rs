//! Mounted images, compared with the manifest of their tree, and with the kernel driver's mount of the same image.

use crate::support::{Entry, manifest, reference_image, reference_names};
use pagefold_image::mount::{Mount, MountError, MountOptions};
use pagefold_image::{Image, Options};
use pagefold_testkit::skipped;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Whether this machine lets the test mount.
fn can_mount(test: &str) -> bool {
    let is_root = pagefold_sys::rundir::effective_uid() == 0;
    if is_root && pagefold_sys::fusedev::open().is_ok() {
        return true;
    }
    skipped!("{test}: needs root and /dev/fuse");
    false
}

fn mounted(image: &Path, at: &Path, options: Options) -> Mount {
    let image = Image::open_file(image, options).unwrap();
    Mount::new(image, at, &MountOptions::default()).unwrap()
}

fn options(memory_bytes: u64) -> Options {
    Options { memory_bytes, cache_full_reads: false, ..Options::default() }
}

fn sha256(path: &Path) -> String {
    let (mut file, mut hash, mut part) = (File::open(path).unwrap(), Sha256::new(), vec![0; 256 << 10]);
    loop {
        match file.read(&mut part).unwrap() {
            0 => break hash.finalize().iter().map(|b| format!("{b:02x}")).collect(),
            n => hash.update(&part[..n]),
        }
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    let found = names[..len].split(|&b| b == 0).filter(|name| !name.is_empty());
    found.map(|name| (name.to_vec(), value(name))).collect()
}

/// All metadata of a path, and a hash of its contents, as one line of text.
fn describe(path: &Path) -> String {
    let meta = path.symlink_metadata().unwrap();
    let kind = meta.file_type();
    let contents = match () {
        () if kind.is_file() => format!("{} {}", meta.len(), sha256(path)),
        () if kind.is_symlink() => format!("-> {}", path.read_link().unwrap().display()),
        () if kind.is_char_device() || kind.is_block_device() => format!("rdev {:#x}", meta.rdev()),
        () => String::new(),
    };
    let times = [(meta.mtime(), meta.mtime_nsec()), (meta.atime(), meta.atime_nsec())];
    // For a file whose contents are all in the packed file, the kernel reports no blocks, and our mount reports one.
    let blocks = meta.blocks().max(u64::from(meta.len() > 0));
    let (mode, uid, gid, nlink) = (meta.mode(), meta.uid(), meta.gid(), meta.nlink());
    format!("{mode:o} {uid}:{gid} x{nlink} {blocks}*512 {times:?} {contents} {:?}", xattrs(path))
}

/// The paths of a tree, including its top directory.
fn paths(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_path_buf()];
    let mut next = 0;
    while next < found.len() {
        if found[next].symlink_metadata().unwrap().is_dir() {
            found.extend(fs::read_dir(&found[next]).unwrap().map(|entry| entry.unwrap().path()));
        }
        next += 1;
    }
    found
}

fn tree(top: &Path) -> BTreeMap<PathBuf, String> {
    let inside = |path: PathBuf| (path.strip_prefix(top).unwrap().to_path_buf(), describe(&path));
    paths(top).into_iter().map(inside).collect()
}

fn check_against_manifest(top: &Path) {
    let wanted: BTreeMap<_, _> = manifest().into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    let found = paths(top);
    assert_eq!(found.len(), wanted.len());
    for path in found {
        check_entry(&path, &wanted[&format!("/{}", path.strip_prefix(top).unwrap().display())]);
    }
}

fn check_entry(path: &Path, want: &Entry) {
    let (meta, name) = (path.symlink_metadata().unwrap(), &want.path);
    let numbers = [meta.mode(), meta.uid(), meta.gid(), meta.nlink() as u32];
    assert_eq!(numbers, [u32::from(want.mode), want.uid, want.gid, want.nlink], "{name}");
    if let Some(hash) = &want.sha256 {
        assert_eq!((Some(meta.len()), &sha256(path)), (want.size, hash), "{name}");
    }
    if let Some(target) = &want.target {
        assert_eq!(path.read_link().unwrap(), Path::new(target), "{name}");
    }
    if let Some((major, minor)) = want.rdev {
        assert_eq!(meta.rdev(), rustix::fs::makedev(major, minor), "{name}");
    }
    assert_eq!(xattrs(path), want.xattrs, "{name}");
}

#[test]
fn mounted_reference_images_equal_the_manifest() {
    if !can_mount("mounted_reference_images_equal_the_manifest") {
        return;
    }
    for name in reference_names() {
        let image = reference_image(name);
        let at = tempfile::tempdir().unwrap();
        let mut mount = mounted(&image, at.path(), options(64 << 20));
        check_against_manifest(at.path());
        mount.stop().unwrap();
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0, "{name} is still mounted");
    }
}

/// A mount by the kernel's driver, unmounted on drop.
struct KernelMount(tempfile::TempDir);

impl KernelMount {
    fn of(image: &Path) -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::RDONLY;
        match rustix::mount::mount(image, at.path(), "erofs", flags, None::<&std::ffi::CStr>) {
            Ok(()) => Some(KernelMount(at)),
            Err(e) => {
                skipped!("comparing with the kernel's mount of {}: {e}", image.display());
                None
            }
        }
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Compares the two mounts of an image; returns the number of paths, or `None` if the kernel cannot mount it.
fn compare_with_kernel(image: &Path, options: Options) -> Option<usize> {
    let kernel = KernelMount::of(image)?;
    let at = tempfile::tempdir().unwrap();
    let _mount = mounted(image, at.path(), options);
    let (ours, theirs) = (tree(at.path()), tree(kernel.0.path()));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (path, description) in &ours {
        assert_eq!(description, &theirs[path], "{} of {}", path.display(), image.display());
    }
    Some(ours.len())
}

#[test]
fn mounted_reference_images_equal_the_kernels_mounts() {
    if !can_mount("mounted_reference_images_equal_the_kernels_mounts") {
        return;
    }
    for image in reference_names().map(reference_image) {
        if let Some(count) = compare_with_kernel(&image, options(64 << 20)) {
            assert!(count > 100);
        }
    }
}

/// The smallest budget that `image` can be mounted with, bytes.
fn least_bytes(image: &Path) -> u64 {
    Mount::least_bytes(&Image::open_file(image, options(64 << 20)).unwrap())
}

/// The kernel's read-ahead is enough for an image on this machine; one that is slow to reach reads ahead beside it.
#[test]
fn an_image_reads_ahead_only_beside_a_kernel_that_cannot() {
    let test = "an_image_reads_ahead_only_beside_a_kernel_that_cannot";
    if !can_mount(test) {
        return;
    }
    let devices = std::fs::read_dir("/sys/class/bdi").into_iter().flatten().flatten();
    let mut attributes = devices.map(|device| device.path().join("read_ahead_kb"));
    if !attributes.any(|attribute| std::fs::File::options().write(true).open(attribute).is_ok()) {
        return skipped!("{test}: the kernel's read-ahead cannot be set here");
    }
    let issued = |options_of_mount: MountOptions| {
        let at = tempfile::tempdir().unwrap();
        // Requests of 64 KiB: a file has several.
        let opened = Image::open_file(&reference_image("lz4hc64"), options(1 << 20)).unwrap();
        let mount = Mount::new(opened.clone(), at.path(), &options_of_mount).unwrap();
        assert_eq!(mount.read_bytes(), 64 << 10);
        check_against_manifest(at.path());
        let reads = opened.stats().reads;
        reads.readahead_issued + reads.readahead_dropped
    };
    let usual = MountOptions::default();
    assert_eq!(issued(usual.clone()), 0);
    // The threads that read ahead may be slower than the readers.
    let deadline = Instant::now() + Duration::from_secs(60);
    for ahead in [
        MountOptions { reads_ahead_beside_kernel: true, ..usual.clone() },
        MountOptions { kernel_read_ahead_kib: 0, ..usual },
    ] {
        while issued(ahead.clone()) == 0 {
            assert!(Instant::now() < deadline, "{ahead:?}");
        }
    }
}

#[test]
fn the_least_memory_is_enough_for_four_readers() {
    if !can_mount("the_least_memory_is_enough_for_four_readers") {
        return;
    }
    for image in ["lz4hc64", "fragzt", "zstd", "deflate", "lzma"].map(reference_image) {
        let at = tempfile::tempdir().unwrap();
        let least = least_bytes(&image);
        let opened = Image::open_file(&image, options(least)).unwrap();
        let mount = Mount::new(opened.clone(), at.path(), &MountOptions::default()).unwrap();
        assert_eq!((mount.threads(), mount.read_bytes()), (1, 4096));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| check_against_manifest(at.path()));
            }
        });
        let stats = opened.stats();
        assert!(stats.budget.peak_bytes <= least && stats.reads.errors == 0, "{stats:?}");
        let less = Image::open_file(&image, options(least - 4096)).unwrap();
        let refused = Mount::new(less, tempfile::tempdir().unwrap().path(), &MountOptions::default());
        assert!(matches!(refused, Err(MountError::Image(_))));
    }
}

#[test]
fn reads_of_a_truncated_image_fail_and_do_not_hang() {
    if !can_mount("reads_of_a_truncated_image_fail_and_do_not_hang") {
        return;
    }
    let image = reference_image("lz4hc64");
    let folder = tempfile::tempdir().unwrap();
    let (cut, at) = (folder.path().join("cut"), folder.path().join("mnt"));
    fs::create_dir(&at).unwrap();
    fs::copy(&image, &cut).unwrap();
    let mount = mounted(&cut, &at, options(8 << 20));
    // The kernel caches the metadata that was read; contents can no longer be read.
    let is_long =
        |path: &PathBuf| path.symlink_metadata().unwrap().is_file() && path.metadata().unwrap().len() > 0;
    let files: Vec<_> = paths(&at).into_iter().filter(is_long).collect();
    fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(64 << 10).unwrap();
    let errors: Vec<_> = files.iter().filter_map(|path| fs::read(path).err()).collect();
    assert!(!errors.is_empty(), "{} files", files.len());
    assert!(errors.iter().all(|e| e.raw_os_error() == Some(libc::EIO)), "{errors:?}");
    drop(mount);
}

#[test]
fn a_mount_is_removed_while_files_are_open() {
    if !can_mount("a_mount_is_removed_while_files_are_open") {
        return;
    }
    let image = reference_image("lz4hc64");
    let at = tempfile::tempdir().unwrap();
    let mut mount = mounted(&image, at.path(), options(8 << 20));
    let is_file = |path: &PathBuf| path.symlink_metadata().unwrap().is_file();
    let files: Vec<_> = paths(at.path()).into_iter().filter(is_file).take(20).collect();
    let mut open: Vec<_> = files.iter().map(|path| File::open(path).unwrap()).collect();
    mount.stop().unwrap();
    mount.stop().unwrap();
    let results: Vec<_> = open.iter_mut().map(|file| file.read(&mut [0; 10])).collect();
    assert!(results.iter().any(|result| result.is_err()), "{results:?}");
    // Another image can be mounted on the same directory.
    drop(mounted(&image, at.path(), options(8 << 20)));
}

#[test]
fn a_mount_ends_when_it_is_unmounted_and_excludes_a_second_one() {
    if !can_mount("a_mount_ends_when_it_is_unmounted_and_excludes_a_second_one") {
        return;
    }
    let image = reference_image("lz4hc64");
    let at = tempfile::tempdir().unwrap();
    let mount = mounted(&image, at.path(), options(8 << 20));
    let again = Image::open_file(&image, options(8 << 20)).unwrap();
    let second = Mount::new(again, at.path(), &MountOptions::default());
    assert!(matches!(second, Err(MountError::Taken { .. })));
    rustix::mount::unmount(at.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    mount.wait().unwrap();
}

#[test]
fn a_mount_is_read_only() {
    if !can_mount("a_mount_is_read_only") {
        return;
    }
    let image = reference_image("lz4hc64");
    let at = tempfile::tempdir().unwrap();
    let _mount = mounted(&image, at.path(), options(8 << 20));
    let error = File::create(at.path().join("new")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

/// Creates a tree whose image depends on the options of mkfs.erofs: sizes around blocks and clusters, repeats, holes.
fn make_tree(top: &Path) {
    let line = |n: u32| format!("{} line {}\n", n % 977, n / 13).into_bytes();
    let text: Vec<u8> = (0..100_000).flat_map(line).collect();
    let mut state = 1u64;
    let mut next_byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..300_000).map(|_| next_byte()).collect();
    for (n, len) in [0, 1, 100, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1_000_003].into_iter().enumerate() {
        fs::write(top.join(format!("text{n}")), &text[n..n + len]).unwrap();
        fs::write(top.join(format!("noise{n}")), &noise[..len.min(noise.len())]).unwrap();
    }
    let parts = text.chunks(50_000).take(20).zip(noise.chunks(7000));
    let mixed: Vec<u8> = parts.flat_map(|(a, b)| [a, b].concat()).collect();
    fs::write(top.join("mixed"), &mixed).unwrap();
    fs::write(top.join("again"), &mixed[3..]).unwrap();
    File::create(top.join("hole")).unwrap().set_len(3 << 20).unwrap();
    fs::create_dir(top.join("folder")).unwrap();
    for n in 0..700 {
        fs::write(top.join(format!("folder/file with a name {n}")), format!("{n}")).unwrap();
    }
    fs::hard_link(top.join("text9"), top.join("folder/linked")).unwrap();
    std::os::unix::fs::symlink("folder/linked", top.join("link")).unwrap();
}

const OPTION_SETS: [&[&str]; 9] = [
    &[],
    &["-zlz4"],
    &["-zlz4hc,12", "-C65536"],
    &["-zlz4hc,12", "-C16384", "-Eztailpacking"],
    &["-zlz4hc", "-C65536", "-Eall-fragments,dedupe"],
    &["-zlz4", "-Elegacy-compress"],
    &["-zlz4", "-Enoinline_data"],
    &["--chunksize=16384"],
    &["--chunksize=4096", "-Eforce-chunk-indexes"],
];

#[test]
fn mounted_images_of_many_options_equal_the_kernels_mounts() {
    const TEST: &str = "mounted_images_of_many_options_equal_the_kernels_mounts";
    if !can_mount(TEST) {
        return;
    }
    if Command::new("mkfs.erofs").arg("-V").output().is_err() {
        skipped!("{TEST}: mkfs.erofs is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&source).unwrap();
    make_tree(&source);
    for set in OPTION_SETS {
        let made = Command::new("mkfs.erofs").args(set).arg(&image).arg(&source).output().unwrap();
        if !made.status.success() {
            skipped!("{TEST}: mkfs.erofs cannot {set:?}: {}", String::from_utf8_lossy(&made.stderr));
            continue;
        }
        for memory_bytes in [64 << 20, least_bytes(&image)] {
            if let Some(count) = compare_with_kernel(&image, options(memory_bytes)) {
                assert!(count > 700, "{set:?}");
            }
        }
        fs::remove_file(&image).unwrap();
    }
}
