//! Tests of the loop export as a block device: file systems, fio, swap, discards, start and stop.

use crate::support::loop_device::{Mounted, Recorder, TestExport, have, is_clean, open, open_direct, run};
use pagefold_block::loop_export::{ExportError, LoopExport, LoopOptions, Users};
use pagefold_block::{BlockDevice, BlockError, RamDevice, ReplaceableDevice};
use pagefold_page::AlignedBytes;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::loopdev::{self, Detach, Detached, LoopIdentity};
use pagefold_sys::swap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Collects regular files of this machine, at most `limit` bytes in total, in a stable order.
fn real_files(dir: &Path, limit: u64, found: &mut Vec<PathBuf>, total: &mut u64) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().collect();
    entries.sort_by_key(|e| e.file_name());
    for entry in entries {
        let Ok(meta) = std::fs::symlink_metadata(entry.path()) else { continue };
        if meta.is_dir() {
            real_files(&entry.path(), limit, found, total);
        } else if meta.is_file() && meta.len() < limit / 8 && *total + meta.len() < limit {
            *total += meta.len();
            found.push(entry.path());
        }
    }
}

fn copy_tree(files: &[PathBuf], to: &Path) {
    for file in files {
        let target = to.join(file.strip_prefix("/").unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(file, target).unwrap();
    }
}

fn assert_equal_tree(files: &[PathBuf], at: &Path) {
    for file in files {
        let copy = at.join(file.strip_prefix("/").unwrap());
        assert!(std::fs::read(file).unwrap() == std::fs::read(&copy).unwrap(), "{} differs", copy.display());
    }
}

/// Makes a file system, fills it, checks it while unmounted, mounts it again and compares the files.
fn check_file_system(test: &str, mkfs: &[&str], check: &[&str]) {
    if !have(test, &[mkfs[0], check[0], "mount", "umount"]) {
        return;
    }
    let Some(rig) = open(test, Arc::new(RamDevice::new(384 * MIB))) else { return };
    let device = rig.path().to_str().unwrap();
    let (mut files, mut total) = (Vec::new(), 0);
    real_files(Path::new("/usr/share"), 96 * MIB, &mut files, &mut total);
    assert!(total > MIB, "too little in /usr/share to test with");
    run(mkfs[0], &[&mkfs[1..], &[device]].concat());
    let at = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(rig.path(), at.path());
    copy_tree(&files, at.path());
    mounted.unmount();
    run(check[0], &[&check[1..], &[device]].concat());
    let mounted = Mounted::new(rig.path(), at.path());
    assert_equal_tree(&files, at.path());
    mounted.unmount();
}

#[test]
fn ext4_keeps_a_tree_of_files() {
    check_file_system("ext4_keeps_a_tree_of_files", &["mkfs.ext4", "-q", "-F"], &["fsck.ext4", "-f", "-n"]);
}

#[test]
fn xfs_keeps_a_tree_of_files() {
    check_file_system("xfs_keeps_a_tree_of_files", &["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    const TEST: &str = "fio_verifies_what_it_wrote";
    if !have(TEST, &["fio"]) {
        return;
    }
    let Some(rig) = open(TEST, Arc::new(RamDevice::new(64 * MIB))) else { return };
    let filename = format!("--filename={}", rig.path().display());
    let common = [
        "--name=verify",
        &filename,
        "--ioengine=io_uring",
        "--direct=1",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--randseed=1",
    ];
    run("fio", &[&common[..], &["--rw=randwrite", "--bs=4k"]].concat());
    run("fio", &[&common[..], &["--rw=write", "--bs=2m"]].concat());
}

/// The swap area of a test; swapoff on drop.
struct Swapped(PathBuf);

impl Drop for Swapped {
    fn drop(&mut self) {
        let _ = swap::swapoff(&self.0);
    }
}

#[test]
fn pages_swapped_to_the_device_keep_their_contents() {
    const TEST: &str = "pages_swapped_to_the_device_keep_their_contents";
    if !have(TEST, &["mkswap", "swapon"]) {
        return;
    }
    let recorder = Recorder::new(64 * MIB);
    let Some(mut rig) = open(TEST, recorder.clone()) else { return };
    let device = rig.path().to_path_buf();
    run("mkswap", &[device.to_str().unwrap()]);
    assert_eq!(blockuse::swap_area(&device).unwrap(), None);
    let area = Swapped(device.clone());
    run("swapon", &[device.to_str().unwrap()]);
    assert!(blockuse::swap_area(&device).unwrap().unwrap().priority < 0);
    assert!(matches!(blockuse::claims(&device).unwrap()[..], [BlockUse::Swap { .. }]));
    assert!(matches!(rig.export.stop(), Err(ExportError::InUse { .. })));

    let mut pages = AlignedBytes::new(16 * MIB as usize, 0);
    for (i, page) in pages.chunks_mut(4096).enumerate() {
        page.fill(i as u8 | 1);
    }
    let before = recorder.writes.lock().unwrap().len();
    // The pages go to this device unless the machine has swap of higher priority. The kernel skips pages that are not
    // yet on its LRU lists, and writes take a moment: repeat until the device has received a write.
    let swapped = || recorder.writes.lock().unwrap().len() > before;
    for _ in 0..500 {
        let (start, len) = (pages.as_mut_ptr().cast(), pages.len());
        // SAFETY: the range is this buffer, whole pages of it; paging out keeps contents.
        assert_eq!(unsafe { libc::madvise(start, len, libc::MADV_PAGEOUT) }, 0);
        if swapped() || swap::areas().unwrap().len() > 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(swapped() || swap::areas().unwrap().len() > 1, "nothing was swapped out");
    let room = swap::room_without(&blockuse::swap_area(&device).unwrap().unwrap()).unwrap();
    assert!(room.fits(), "{room:?}");
    swap::swapoff(&area.0).unwrap();
    for (i, page) in pages.chunks(4096).enumerate() {
        assert!(page.iter().all(|&b| b == i as u8 | 1), "page {i}");
    }
    assert_eq!(blockuse::swap_area(&device).unwrap(), None);
    rig.export.stop().unwrap();
}

fn zero_pages(device: &dyn BlockDevice, pages: std::ops::Range<u64>) -> bool {
    let mut page = [1; 4096];
    pages.into_iter().all(|p| {
        device.read_at(p * 4096, &mut page).unwrap();
        page == [0; 4096]
    })
}

#[test]
fn discard_and_zeroing_leave_zeroes_on_the_device() {
    const TEST: &str = "discard_and_zeroing_leave_zeroes_on_the_device";
    if !have(TEST, &["blkdiscard"]) {
        return;
    }
    let device = Recorder::new(4 * MIB);
    let Some(rig) = open(TEST, device.clone()) else { return };
    device.write_at(0, &vec![7; 4 * MIB as usize]).unwrap();
    let path = rig.path().to_str().unwrap();
    run("blkdiscard", &["-o", "1048576", "-l", "1048576", path]);
    assert_eq!(*device.zeroes.lock().unwrap(), [(MIB, MIB)]);
    run("blkdiscard", &["-z", "-o", "3145728", "-l", "4096", path]);
    assert_eq!(device.zeroes.lock().unwrap().last(), Some(&(3 * MIB, 4096)));
    assert!(zero_pages(&device.inner, 256..512) && zero_pages(&device.inner, 768..769));
    for page in [255, 512, 767, 769] {
        assert!(!zero_pages(&device.inner, page..page + 1), "page {page}");
    }
    let mut read = AlignedBytes::new(2 * MIB as usize, 1);
    open_direct(rig.path()).read_exact_at(&mut read, MIB).unwrap();
    assert!(read[..MIB as usize].iter().all(|&b| b == 0) && read[MIB as usize..].iter().all(|&b| b == 7));
    // A hole must read as zeroes, which `BlockDevice::discard` does not guarantee.
    assert_eq!(device.discards.load(Ordering::SeqCst), 0);
}

#[test]
fn large_requests_are_split_at_1_mib_and_flushes_arrive() {
    const TEST: &str = "large_requests_are_split_at_1_mib_and_flushes_arrive";
    let device = Recorder::new(8 * MIB);
    let Some(rig) = open(TEST, device.clone()) else { return };
    let file = open_direct(rig.path());
    let mut bytes = AlignedBytes::new(8 * MIB as usize, 3);
    file.write_all_at(&bytes, 0).unwrap();
    let mut writes = device.writes.lock().unwrap().clone();
    writes.sort_unstable();
    let mut next = 0;
    for &(offset, len) in &writes {
        assert_eq!(offset, next);
        assert!(len <= MIB);
        next += len;
    }
    assert_eq!(next, 8 * MIB);
    // The loop driver takes 128 segments in a request: 512 KiB of memory without adjacent pages, at least, but for the
    // rests before the borders of 1 MiB.
    assert!(writes.len() <= 24, "split too small: {writes:?}");

    let before = device.flushes.load(Ordering::SeqCst);
    file.sync_all().unwrap();
    let synced = device.flushes.load(Ordering::SeqCst);
    assert!(synced > before, "fsync sent no flush");
    let raw = std::os::fd::AsRawFd::as_raw_fd(&file);
    let iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 4096 };
    // SAFETY: one vector into a live buffer, which the call only reads.
    let written = unsafe { libc::pwritev2(raw, &raw const iov, 1, 0, libc::RWF_DSYNC) };
    assert_eq!(written, 4096);
    assert!(device.flushes.load(Ordering::SeqCst) > synced, "a write through the cache sent no flush");
}

/// A device that fails writes to its second half.
struct HalfFull(RamDevice);

impl BlockDevice for HalfFull {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        match offset < self.len_bytes() / 2 {
            true => self.0.write_at(offset, data),
            false => Err(BlockError::NoSpace { index: pagefold_page::PageIndex::containing(offset) }),
        }
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.0.write_zeroes(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

#[test]
fn a_write_without_space_fails_with_enospc() {
    let Some(rig) = open("a_write_without_space_fails_with_enospc", Arc::new(HalfFull(RamDevice::new(MIB))))
    else {
        return;
    };
    let file = open_direct(rig.path());
    let page = AlignedBytes::new(4096, 9);
    file.write_all_at(&page, 0).unwrap();
    assert_eq!(file.write_all_at(&page, MIB / 2).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    file.write_all_at(&page, 4096).unwrap();
}

/// Claims a device, and returns whether that had to wait: a child process of another test has the descriptors of claims
/// before, until it executes its program.
fn claim(path: &Path) -> (File, bool) {
    let begun = Instant::now();
    let mut had_to_wait = false;
    loop {
        match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path) {
            Ok(claimed) => return (claimed, had_to_wait),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < Duration::from_secs(20) => {
                had_to_wait = true;
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn two_exports_are_independent() {
    const TEST: &str = "two_exports_are_independent";
    let Some(mut one) = open(TEST, Arc::new(RamDevice::new(MIB))) else { return };
    let Some(mut two) = open(TEST, Arc::new(RamDevice::new(MIB))) else { return };
    assert_ne!(one.path(), two.path());
    let fill = |rig: &TestExport, byte| {
        open_direct(rig.path()).write_all_at(&AlignedBytes::new(4096, byte), 0).unwrap()
    };
    fill(&one, 1);
    fill(&two, 2);
    let mut page = AlignedBytes::new(4096, 0);
    open_direct(one.path()).read_exact_at(&mut page, 0).unwrap();
    assert!(page.iter().all(|&b| b == 1));
    // The identity of the other export detaches nothing at this path.
    let (path, identity) = (one.path().to_path_buf(), two.export.identity());
    assert_eq!(loopdev::detach_if(&path, identity, Detach::IfUnclaimed), Ok(Detached::NotOurs));
    // Nor does it claim the device for a moment, in which it could not be mounted.
    std::thread::scope(|scope| {
        let attempts = scope.spawn(|| {
            let detach = || loopdev::detach_if(&path, identity, Detach::IfUnclaimed);
            (0..2000).for_each(|_| assert_eq!(detach(), Ok(Detached::NotOurs)));
        });
        let (mut claims, mut waits) = (0, 0);
        while !attempts.is_finished() {
            waits += u32::from(claim(&path).1);
            claims += 1;
        }
        assert!(waits * 20 <= claims, "{waits} of {claims} claims had to wait");
    });
    one.export.stop().unwrap();
    open_direct(two.path()).read_exact_at(&mut page, 0).unwrap();
    assert!(page.iter().all(|&b| b == 2));
    assert!(is_clean(one.dir.path()) && !is_clean(two.dir.path()));
    two.export.stop().unwrap();
    two.export.stop().unwrap();
    assert!(is_clean(two.dir.path()));
}

#[test]
fn stop_refuses_while_mounted_and_keeps_serving() {
    const TEST: &str = "stop_refuses_while_mounted_and_keeps_serving";
    if !have(TEST, &["mkfs.ext4", "mount", "umount"]) {
        return;
    }
    let Some(mut rig) = open(TEST, Arc::new(RamDevice::new(16 * MIB))) else { return };
    run("mkfs.ext4", &["-q", "-F", rig.path().to_str().unwrap()]);
    let at = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(rig.path(), at.path());
    let Err(ExportError::InUse { uses, .. }) = rig.export.stop() else { panic!("stopped while mounted") };
    let mount_point = at.path().canonicalize().unwrap();
    assert_eq!(uses, [BlockUse::Mounted { mount_point }]);
    let file = File::create(at.path().join("file")).unwrap();
    file.write_all_at(b"still there", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mounted.unmount();
    let reader = File::open(rig.path()).unwrap();
    let me = std::process::id();
    let uses = blockuse::uses(rig.path()).unwrap();
    assert!(uses.iter().any(|u| matches!(u, BlockUse::Open { pid, .. } if *pid == me)), "{uses:?}");
    drop(reader);
    rig.export.stop().unwrap();
    assert!(is_clean(rig.dir.path()));
}

#[test]
fn bad_sizes_and_used_mount_points_are_refused() {
    const TEST: &str = "bad_sizes_and_used_mount_points_are_refused";
    let Some(rig) = open(TEST, Arc::new(RamDevice::new(MIB))) else { return };
    let again = LoopExport::start(Arc::new(RamDevice::new(MIB)), rig.dir.path(), LoopOptions::default());
    assert!(matches!(again, Err(ExportError::MountPointTaken { .. })));
    let dir = tempfile::tempdir().unwrap();
    for len_bytes in [1, 4095, 4097] {
        let device = Arc::new(RamDevice::new(len_bytes));
        let refused = LoopExport::start(device, dir.path(), LoopOptions::default()).err();
        assert_eq!(refused, Some(ExportError::BadSize { len_bytes }));
    }
    let nowhere =
        LoopExport::start(Arc::new(RamDevice::new(MIB)), &dir.path().join("no"), LoopOptions::default());
    assert!(matches!(nowhere, Err(ExportError::System(_))));
    assert!(is_clean(dir.path()) && !is_clean(rig.dir.path()));
}

#[test]
fn the_loop_device_gets_the_sizes_of_the_device_inside() {
    const TEST: &str = "the_loop_device_gets_the_sizes_of_the_device_inside";
    let device = Arc::new(ReplaceableDevice::default());
    let Some(rig) = open(TEST, device.clone()) else { return };
    let path = rig.path().to_path_buf();
    let name = path.file_name().unwrap().to_str().unwrap().to_string();
    let len_bytes = || {
        let sectors = std::fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
        sectors.trim().parse::<u64>().unwrap() * 512
    };
    let resize = |users, inside: Option<u64>| {
        rig.export.resize::<ExportError>(users, &mut || {
            let ram = |len| -> Arc<dyn BlockDevice> { Arc::new(RamDevice::new(len)) };
            device.replace(inside.map(ram));
            Ok(())
        })
    };
    assert_eq!(len_bytes(), 0);
    // A reader whose pages the kernel caches.
    let reader = File::open(&path).unwrap();
    for len in [MIB, 4096, 64 * MIB] {
        resize(Users::Refuse, Some(len)).unwrap();
        assert_eq!(len_bytes(), len);
        let mut page = [1; 4096];
        reader.read_exact_at(&mut page, len - 4096).unwrap();
        assert!(page == [0; 4096]);
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all_at(&[7; 4096], 0).unwrap();
        writer.sync_all().unwrap();
        let (claimed, _) = claim(&path);
        assert!(matches!(resize(Users::Refuse, None), Err(ExportError::InUse { .. })));
        assert_eq!(len_bytes(), len);
        drop(claimed);
        resize(Users::Ignore, None).unwrap();
        assert_eq!((len_bytes(), reader.read_at(&mut page, 0).unwrap()), (0, 0));
        // The contents that the reader's page cache had are gone.
        resize(Users::Ignore, Some(MIB)).unwrap();
        reader.read_exact_at(&mut page, 0).unwrap();
        assert!(page == [0; 4096], "{len}");
        resize(Users::Ignore, None).unwrap();
    }
}

#[test]
fn detaching_a_free_or_missing_loop_device_does_nothing() {
    const TEST: &str = "detaching_a_free_or_missing_loop_device_does_nothing";
    let Some(mut rig) = open(TEST, Arc::new(RamDevice::new(MIB))) else { return };
    let (path, identity) = (rig.path().to_path_buf(), rig.export.identity());
    assert_eq!(loopdev::identity(&path), Ok(Some(identity)));
    rig.export.stop().unwrap();
    assert_ne!(loopdev::identity(&path), Ok(Some(identity)));
    assert_eq!(loopdev::detach_if(&path, identity, Detach::WhenLastUserCloses), Ok(Detached::NotOurs));
    let other = LoopIdentity { lo_device: 1, lo_inode: 1 };
    let missing = Path::new("/dev/loop1000000");
    assert_eq!(loopdev::detach_if(missing, other, Detach::IfUnclaimed), Ok(Detached::NotOurs));
}
