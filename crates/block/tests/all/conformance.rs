//! The promises that every export keeps, over one list of exports and transports ([`Access::ALL`]).
//!
//! The tests see an export as its users do: as a block device that is read directly, or through the protocol. Each gets
//! the same requests, and a model in memory says what a read must return.

use super::nbd_tls::{Pki, plain, tls};
use crate::support::loop_device::{open_direct, skip};
use crate::support::nbd::{Client, NAME, Served};
use pagefold_block::loop_export::{ExportError, LoopExport, LoopOptions};
use pagefold_block::nbd::proto::cmd;
use pagefold_block::nbd::{Export, Limits, Server};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use pagefold_fuse::Transport;
use pagefold_page::{AlignedBytes, PageIndex};
use pagefold_sys::fusering;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const LEN: usize = 8 << 20;
/// Writes to these pages fail for want of space, and reads of them as corrupt.
const FULL: u64 = 7 << 20;
const CORRUPT: u64 = (7 << 20) + (PAGE as u64);

/// A device with two pages that fail, which counts flushes.
struct Tested {
    inner: RamDevice,
    flushes: AtomicUsize,
}

fn touches(offset: u64, len: usize, page: u64) -> bool {
    offset <= page && page < offset + len as u64
}

impl BlockDevice for Tested {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        match touches(offset, buf.len(), CORRUPT) {
            true => Err(BlockError::Corrupt { index: PageIndex::containing(CORRUPT) }),
            false => self.inner.read_at(offset, buf),
        }
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        match touches(offset, data.len(), FULL) {
            true => Err(BlockError::NoSpace { index: PageIndex::containing(FULL) }),
            false => self.inner.write_at(offset, data),
        }
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.inner.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.inner.write_zeroes(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A way to reach a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    LoopThroughDevice,
    LoopThroughRings,
    /// Rings for requests of 128 KiB, the shortest limit.
    LoopThroughShortRings,
    NbdSimple,
    NbdStructured,
    NbdTcp,
    NbdTls,
}

impl Access {
    const ALL: [Access; 7] = [
        Access::LoopThroughDevice,
        Access::LoopThroughRings,
        Access::LoopThroughShortRings,
        Access::NbdSimple,
        Access::NbdStructured,
        Access::NbdTcp,
        Access::NbdTls,
    ];

    fn has_rings(self) -> bool {
        matches!(self, Access::LoopThroughRings | Access::LoopThroughShortRings)
    }
}

/// An open export.
enum Open {
    Loop(Box<LoopExport>, #[allow(dead_code, reason = "removed when it is dropped")] tempfile::TempDir),
    Nbd {
        served: Served,
        structured: bool,
    },
    NbdAt {
        addr: SocketAddr,
        /// The certificates, with TLS.
        pki: Option<Pki>,
        #[allow(dead_code, reason = "stopped when it is dropped")]
        server: Server,
    },
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// One user of an export. Every request is in whole pages.
enum User {
    Device(File, PathBuf),
    Client(Client<Box<dyn Stream>>),
}

/// A user with the export open.
fn client<S: Stream + 'static>(client: Client<S>) -> User {
    let Client { stream, structured, cookie, message } = client;
    User::Client(Client { stream: Box::new(stream), structured, cookie, message })
}

impl Open {
    fn new(test: &str, access: Access, device: Arc<dyn BlockDevice>) -> Option<Open> {
        let uring = access.has_rings();
        match access {
            Access::NbdSimple | Access::NbdStructured => {
                let export = Export::new(NAME, "a test disk", device).unwrap();
                let served = Served::with(export, Limits::default());
                Some(Open::Nbd { served, structured: access != Access::NbdSimple })
            }
            Access::NbdTcp | Access::NbdTls => {
                let server = Server::new(Export::new(NAME, "", device).unwrap(), Limits::default());
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let addr = listener.local_addr().unwrap();
                let pki = (access == Access::NbdTls).then(Pki::new);
                server.serve_tcp(listener, pki.as_ref().map(Pki::server_config)).unwrap();
                Some(Open::NbdAt { addr, pki, server })
            }
            Access::LoopThroughDevice | Access::LoopThroughRings | Access::LoopThroughShortRings => {
                let usual = LoopOptions { uring, ..LoopOptions::default() };
                let options = match access {
                    Access::LoopThroughShortRings => {
                        LoopOptions { ring_bytes: fusering::queues().unwrap() as u64 * (256 << 10), ..usual }
                    }
                    _ => usual,
                };
                let dir = tempfile::tempdir().unwrap();
                let export = match LoopExport::start(device, dir.path(), options) {
                    Ok(export) => export,
                    Err(ExportError::Unavailable(why)) => return skip(test, &format!("{access:?}: {why}")),
                    Err(e) => panic!("{e}"),
                };
                let request_bytes = match export.disk().transport() {
                    Transport::Device { .. } => None,
                    Transport::Rings { request_bytes, .. } => Some(*request_bytes),
                };
                let short = access == Access::LoopThroughShortRings;
                assert_eq!(request_bytes, uring.then_some(if short { 128 << 10 } else { 1 << 20 }));
                Some(Open::Loop(Box::new(export), dir))
            }
        }
    }

    fn user(&self) -> User {
        match self {
            Open::Loop(export, _) => {
                User::Device(open_direct(export.device_path()), export.device_path().to_path_buf())
            }
            Open::Nbd { served, structured } => client(served.open(*structured)),
            Open::NbdAt { addr, pki: None, .. } => {
                let mut user = plain(*addr);
                user.open(true);
                client(user)
            }
            Open::NbdAt { addr, pki: Some(pki), .. } => {
                let mut user = tls(*addr, pki.client_config(Some(pki)));
                user.open(true);
                client(user)
            }
        }
    }
}

/// The error number of a request; 0 after success.
fn errno(result: std::io::Result<()>) -> i32 {
    result.err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO))
}

impl User {
    fn read(&mut self, offset: usize, buf: &mut AlignedBytes) -> i32 {
        match self {
            User::Device(file, _) => errno(file.read_exact_at(buf, offset as u64)),
            User::Client(client) => {
                let cookie = client.send(0, cmd::READ, offset as u64, buf.len() as u32, &[]);
                match client.read_reply(cookie, 0, offset as u64, buf.len() as u32) {
                    Ok(data) => {
                        buf.copy_from_slice(&data);
                        0
                    }
                    Err(error) => error as i32,
                }
            }
        }
    }

    fn write(&mut self, offset: usize, data: &AlignedBytes) -> i32 {
        match self {
            User::Device(file, _) => errno(file.write_all_at(data, offset as u64)),
            User::Client(client) => client.call(0, cmd::WRITE, offset as u64, data.len() as u32, data) as i32,
        }
    }

    /// Makes a range zero.
    fn zero(&mut self, offset: usize, len: usize) {
        match self {
            User::Device(_, path) => {
                use rustix::fs::{FallocateFlags, fallocate};
                let file = File::options().write(true).open(path).unwrap();
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, mode, offset as u64, len as u64).unwrap();
            }
            User::Client(client) => {
                assert_eq!(client.call(0, cmd::WRITE_ZEROES, offset as u64, len as u32, &[]), 0);
            }
        }
    }

    fn flush(&mut self) {
        match self {
            User::Device(file, _) => file.sync_all().unwrap(),
            User::Client(client) => assert_eq!(client.call(0, cmd::FLUSH, 0, 0, &[]), 0),
        }
    }
}

/// Calls `check` with an export of a new device for each way to reach one.
fn over_all(test: &str, check: impl Fn(&Open, &Tested)) {
    for access in Access::ALL {
        let parameter = access.has_rings().then(|| super::loop_uring::offer_rings(test, "1"));
        if matches!(parameter, Some(None)) {
            continue;
        }
        let device = Arc::new(Tested { inner: RamDevice::new(LEN as u64), flushes: AtomicUsize::new(0) });
        let Some(open) = Open::new(test, access, device.clone()) else { continue };
        println!("{access:?}");
        check(&open, &device);
    }
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }
}

/// Sends requests of random kinds and lengths to pages `first..end`, and compares reads with a model.
fn use_range(user: &mut User, seed: u64, first: usize, end: usize, requests: usize) {
    let mut numbers = Numbers(seed);
    let mut model = vec![0u8; (end - first) * PAGE];
    for request in 0..requests {
        let start = numbers.below(end - first);
        let most = [1, 8, 300][numbers.below(3)];
        let pages = 1 + numbers.below(most).min(end - first - start - 1);
        let (at, len) = (start * PAGE, pages * PAGE);
        match numbers.below(5) {
            0 | 1 => {
                let mut data = AlignedBytes::new(len, request as u8);
                data[len / 2] = !(request as u8);
                assert_eq!(user.write(first * PAGE + at, &data), 0);
                model[at..at + len].copy_from_slice(&data);
            }
            2 => {
                user.zero(first * PAGE + at, len);
                model[at..at + len].fill(0);
            }
            _ => {
                let mut data = AlignedBytes::new(len, 0xaa);
                assert_eq!(user.read(first * PAGE + at, &mut data), 0);
                assert!(data[..] == model[at..at + len], "request {request}: pages {start}+{pages}");
            }
        }
    }
}

#[test]
fn reads_return_what_was_written_last() {
    over_all("reads_return_what_was_written_last", |open, _| {
        use_range(&mut open.user(), 1, 0, FULL as usize / PAGE, 300);
    });
}

#[test]
fn several_users_write_at_the_same_time() {
    over_all("several_users_write_at_the_same_time", |open, _| {
        std::thread::scope(|scope| {
            for i in 0..4 {
                let mut user = open.user();
                scope.spawn(move || use_range(&mut user, i as u64, i * 400, (i + 1) * 400, 150));
            }
        });
    });
}

#[test]
fn an_error_is_that_of_its_request_and_changes_no_other_page() {
    over_all("an_error_is_that_of_its_request_and_changes_no_other_page", |open, device| {
        let mut user = open.user();
        let (full, corrupt) = (FULL as usize, CORRUPT as usize);
        let page = AlignedBytes::new(PAGE, 3);
        let mut back = AlignedBytes::new(PAGE, 0);
        for _ in 0..3 {
            assert_eq!(user.write(full, &page), libc::ENOSPC);
            assert_eq!(user.write(full - PAGE, &page), 0);
            assert_eq!(user.read(corrupt, &mut back), libc::EIO);
            assert_eq!(user.read(full - PAGE, &mut back), 0);
            assert_eq!(back[..], page[..]);
        }
        let mut inside = vec![1; PAGE];
        device.inner.read_at(FULL, &mut inside).unwrap();
        assert!(inside.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn the_first_and_the_last_page_are_reached_and_none_behind() {
    over_all("the_first_and_the_last_page_are_reached_and_none_behind", |open, _| {
        let mut user = open.user();
        let page = AlignedBytes::new(PAGE, 9);
        for at in [0, LEN - PAGE] {
            let mut back = AlignedBytes::new(PAGE, 0);
            assert_eq!(user.write(at, &page), 0);
            assert_eq!((user.read(at, &mut back), &back[..]), (0, &page[..]));
        }
        assert_ne!(user.read(LEN, &mut AlignedBytes::new(PAGE, 0)), 0);
        assert_eq!(user.write(LEN, &page), libc::ENOSPC);
    });
}

#[test]
fn a_flush_reaches_the_device() {
    over_all("a_flush_reaches_the_device", |open, device| {
        let mut user = open.user();
        assert_eq!(user.write(0, &AlignedBytes::new(PAGE, 1)), 0);
        let before = device.flushes.load(Ordering::SeqCst);
        user.flush();
        assert!(device.flushes.load(Ordering::SeqCst) > before);
    });
}
