//! Reads of files and block devices into memory of a region beside eviction, on each of the ways that the kernel has: the
//! device, or the server of a file system, writes to the pages after the kernel has looked them up. See `devices.rs`.

use crate::devices::{FILE_PAGES, USED, address, file, fill_beside_eviction, region};
use crate::support::each;
use io_uring::{IoUring, opcode, types};
use pagefold_fuse::{
    Attr, CachedAttr, Entry, Errno, FileSystem, FileType, FuseMount, Handle, Inode, Mounter, Offer, OpenMode,
    Opened, Range, Settings, Unsupported, free_directory,
};
use pagefold_sys::fusedev::Request;
use pagefold_sys::loopdev::{self, AttachError, AttachedLoop, Detach};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const LEN_BYTES: usize = USED as usize * 4096;
/// Parts of a read that are in flight at once, where a call can have several.
const PARTS: usize = 4;
const PART_BYTES: usize = LEN_BYTES / PARTS;

fn fault() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

/// Runs a test of a way to read: `read` reads [`LEN_BYTES`] bytes at an offset of the file to an address, and returns how
/// many it has read.
fn reads_beside_eviction(test: &str, read: impl Fn(*mut u8, u64) -> io::Result<usize> + Sync) {
    each(test, |mode| {
        let region = region(mode);
        fill_beside_eviction(&region, |first, from| match read(address(&region, first), from * 4096)? {
            LEN_BYTES => Ok(()),
            // A short read stopped at a page that was not resident.
            _ => Err(fault()),
        });
    });
}

/// Reads by pread(2).
fn pread(file: &File, to: *mut u8, offset: u64) -> io::Result<usize> {
    // SAFETY: pages of the calling thread, without references to them.
    file.read_at(unsafe { std::slice::from_raw_parts_mut(to, LEN_BYTES) }, offset)
}

fn open_direct(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Makes the file, which is read past the page cache. `None` if its file system does not have that.
fn direct_file(test: &str) -> Option<File> {
    let file = file();
    match open_direct(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Ok(file) => Some(file),
        Err(error) => {
            pagefold_testkit::skipped!("{test}: no O_DIRECT here: {error}");
            None
        }
    }
}

/// Takes one of the objects that no other thread uses: there is one for each thread.
fn free<T>(of: &[Mutex<T>]) -> MutexGuard<'_, T> {
    of.iter().find_map(|one| one.try_lock().ok()).unwrap()
}

#[test]
fn direct_reads_beside_eviction_leave_no_old_bytes() {
    let test = "direct_reads_beside_eviction";
    let Some(file) = direct_file(test) else { return };
    reads_beside_eviction(test, |to, offset| pread(&file, to, offset));
}

#[test]
fn io_uring_beside_eviction_leaves_no_old_bytes() {
    let test = "io_uring_beside_eviction";
    let Some(file) = direct_file(test) else { return };
    let rings = match [(); 2].map(|()| IoUring::new(8)) {
        [Ok(first), Ok(second)] => [Mutex::new(first), Mutex::new(second)],
        [Err(error), _] | [_, Err(error)] => return pagefold_testkit::skipped!("{test}: {error}"),
    };
    reads_beside_eviction(test, |to, offset| {
        let mut ring = free(&rings);
        for part in 0..PARTS {
            let (to, at) = (to.wrapping_add(part * PART_BYTES), offset + (part * PART_BYTES) as u64);
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), to, PART_BYTES as u32).offset(at);
            // SAFETY: pages of the calling thread, without references to them, and it waits for the reads below.
            unsafe { ring.submission().push(&read.build()) }.unwrap();
        }
        let mut results = Vec::new();
        while results.len() < PARTS {
            ring.submit_and_wait(PARTS - results.len()).unwrap();
            results.extend(ring.completion().map(|entry| entry.result()));
        }
        sum(results.into_iter().map(i64::from))
    });
}

/// Adds up the results of reads of parts.
fn sum(mut results: impl Iterator<Item = i64>) -> io::Result<usize> {
    results.try_fold(0, |sum, result| match usize::try_from(result) {
        Ok(len_bytes) => Ok(sum + len_bytes),
        Err(_) => Err(io::Error::from_raw_os_error(-result as i32)),
    })
}

/// `struct iocb` of linux/aio_abi.h, little-endian.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    reqprio: i16,
    fd: u32,
    buffer: u64,
    len_bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);

/// A context of the calls of libaio.
struct Aio(libc::c_ulong);

impl Aio {
    fn new() -> io::Result<Self> {
        let mut context = Aio(0);
        // SAFETY: the kernel writes only the number of the context.
        match unsafe { libc::syscall(libc::SYS_io_setup, PARTS, &raw mut context.0) } {
            0 => Ok(context),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads all parts at once, and waits for them.
    fn read(&self, file: &File, to: *mut u8, offset: u64) -> io::Result<usize> {
        let calls: [Iocb; PARTS] = std::array::from_fn(|part| Iocb {
            fd: file.as_raw_fd().unsigned_abs(),
            buffer: to.wrapping_add(part * PART_BYTES).expose_provenance() as u64,
            len_bytes: PART_BYTES as u64,
            offset: offset as i64 + (part * PART_BYTES) as i64,
            ..Iocb::default()
        });
        let pointers = calls.each_ref().map(std::ptr::from_ref);
        let mut events = [Event::default(); PARTS];
        // SAFETY: the calls live until all of those that were submitted have ended, for which this waits; they read to
        // pages of the calling thread, without references to them. The kernel writes at most as many events.
        let (submitted, ended) = unsafe {
            let submitted = libc::syscall(libc::SYS_io_submit, self.0, PARTS, pointers.as_ptr());
            let n = submitted.max(0);
            let none = std::ptr::null::<libc::timespec>();
            (submitted, libc::syscall(libc::SYS_io_getevents, self.0, n, n, events.as_mut_ptr(), none))
        };
        assert!(submitted >= 1 && ended == submitted, "{submitted} {ended}");
        sum(events[..ended as usize].iter().map(|event| event.result))
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: no call of the context is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

#[test]
fn libaio_beside_eviction_leaves_no_old_bytes() {
    let test = "libaio_beside_eviction";
    let Some(file) = direct_file(test) else { return };
    let contexts = match [Aio::new(), Aio::new()] {
        [Ok(first), Ok(second)] => [Mutex::new(first), Mutex::new(second)],
        [Err(error), _] | [_, Err(error)] => return pagefold_testkit::skipped!("{test}: {error}"),
    };
    reads_beside_eviction(test, |to, offset| free(&contexts).read(&file, to, offset));
}

/// A loop device, until it is dropped.
struct Loop(AttachedLoop);

impl Drop for Loop {
    fn drop(&mut self) {
        loopdev::detach_if(&self.0.path, self.0.identity, Detach::WhenLastUserCloses).unwrap();
    }
}

#[test]
fn a_loop_device_beside_eviction_leaves_no_old_bytes() {
    let test = "a_loop_device_beside_eviction";
    let backing = file();
    let attached = match loopdev::attach(&backing, 4096) {
        Ok(attached) => Loop(attached),
        Err(error @ (AttachError::Unavailable(_) | AttachError::NoDirectIo)) => {
            return pagefold_testkit::skipped!("{test}: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let device = open_direct(&attached.0.path).unwrap();
    reads_beside_eviction(test, |to, offset| pread(&device, to, offset));
}

/// A file system with one file, whose contents the kernel does not cache.
struct OneFile(Vec<u8>);

const NAME: &str = "file";
const INODE: Inode = Inode(2);
const TTL: Duration = Duration::from_secs(60);

impl OneFile {
    fn attr_of(&self, inode: Inode) -> Attr {
        match inode {
            INODE => Attr { size: self.0.len() as u64, ..Attr::new(INODE, FileType::Regular, 0o444, 4096) },
            _ => Attr::new(inode, FileType::Directory, 0o555, 4096),
        }
    }
}

impl FileSystem for OneFile {
    fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
        Ok(Settings::for_requests_of(LEN_BYTES, 16))
    }

    fn lookup(&self, _: Inode, name: &OsStr) -> Result<Entry, Errno> {
        Ok(Entry { attr: (name == NAME).then(|| self.attr_of(INODE)), ttl: TTL })
    }

    fn attr(&self, inode: Inode) -> Result<CachedAttr, Errno> {
        Ok(CachedAttr { attr: self.attr_of(inode), ttl: TTL })
    }

    fn open(&self, _: Inode, _: i32) -> Result<Opened, Errno> {
        Ok(Opened { handle: Handle(0), mode: OpenMode::DIRECT_IO })
    }

    fn read(&self, _: Inode, range: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        let rest = &self.0[(range.offset as usize).min(self.0.len())..];
        let len_bytes = rest.len().min(range.size as usize);
        buffer[..len_bytes].copy_from_slice(&rest[..len_bytes]);
        Ok(len_bytes)
    }
}

#[test]
fn direct_reads_of_fuse_beside_eviction_leave_no_old_bytes() {
    let test = "direct_reads_of_fuse_beside_eviction";
    let mut contents = vec![0; FILE_PAGES as usize * 4096];
    file().read_exact_at(&mut contents, 0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = free_directory(folder.path()).unwrap();
    let request = Request::private("pagefold-test", LEN_BYTES);
    let mounted = FuseMount::new(OneFile(contents), path, &request, Mounter::ThisProcess, 2, || Ok(()));
    let mut mount = match mounted {
        Ok(mount) => mount,
        Err(error) => return pagefold_testkit::skipped!("{test}: {error}"),
    };
    {
        // An ordinary open: the server chose that the reads are direct.
        let file = File::open(mount.path().join(NAME)).unwrap();
        reads_beside_eviction(test, |to, offset| pread(&file, to, offset));
    }
    mount.stop().unwrap();
}
