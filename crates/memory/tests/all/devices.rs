//! System calls whose data a device, another process or a later moment writes to memory of a region that is not pinned,
//! or reads from it, while its pages are evicted: after a call that succeeded, no page has old bytes.
//!
//! Where the kernel cannot move pages, such memory must be pinned, and the tests pin it. A call may fail with EFAULT
//! where the faulting thread serves. With `PAGEFOLD_FULL` the tests that meet evictions by chance take longer, and with
//! `PAGEFOLD_LONG` minutes. `device_reads.rs` has the reads of files and block devices.

use crate::support::{MODES, Random, bytes_of, each, noise, read, text, write};
use io_uring::{IoUring, opcode, types};
use pagefold_memory::{Eviction, PinnedSlice, Region, RegionConfig};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PAGES: u64 = 1024;
const LIMIT: u64 = 128 * 4096;
/// Pages of the file that is read. Page `k` of it is `noise(FILE_FIRST + k)`.
pub const FILE_PAGES: u64 = 512;
const FILE_FIRST: u64 = 1 << 32;
/// Pages that the kernel uses at once.
pub const USED: u64 = 16;

pub fn region(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    Region::new(RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) }).unwrap()
}

/// Makes a region that is large enough for streams, whose pages come in by the memory of pages that left.
fn large_region(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    let config = RegionConfig { service, eviction, ..RegionConfig::new(8 * PAGES * 4096, 16 * LIMIT) };
    Region::new(config).unwrap()
}

/// Pins a page where the kernel cannot move pages.
fn pin_if_needed(region: &Region, page: u64) -> Option<PinnedSlice<'_>> {
    let is_needed = region.eviction() == Eviction::Protect;
    is_needed.then(|| region.pin(bytes_of(page, 1)).unwrap())
}

pub fn address(region: &Region, page: u64) -> *mut u8 {
    region.as_ptr().wrapping_add(page as usize * 4096)
}

/// Returns scattered pages, one in each of as many parts of the region.
fn scattered() -> [u64; USED as usize] {
    std::array::from_fn(|at| at as u64 * (PAGES / USED) + at as u64 * 37 % 50)
}

/// Writes to all pages but those that are used, so that these are evicted if they can be.
fn evict_others(region: &Region, used: &[u64], version: u64) {
    (0..PAGES)
        .filter(|page| !used.contains(page))
        .for_each(|page| write(region, page, &noise(page + version)));
}

/// Goes over the other pages in order, several times, so that these leave.
fn read_others(region: &Region, used: &[u64]) {
    for _ in 0..3 {
        let pages = 0..region.len_bytes() as u64 / 4096;
        pages.filter(|page| !used.contains(page)).for_each(|page| touch(region, page));
    }
}

/// Fills a large region and then some pages of it, which are returned.
fn fill_large(region: &Region) -> [u64; USED as usize] {
    (0..region.len_bytes() as u64 / 4096).for_each(|page| write(region, page, &text(page)));
    let used = scattered();
    used.iter().for_each(|page| write(region, *page, &noise(*page)));
    used
}

fn bytes(words: &[u64; 512]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn file() -> File {
    let mut file = tempfile::tempfile().unwrap();
    (0..FILE_PAGES).for_each(|page| file.write_all(&bytes(&noise(FILE_FIRST + page))).unwrap());
    file.sync_all().unwrap();
    file
}

/// Repeats a call that fails with EFAULT after touching its pages.
fn while_faulting<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
    for _ in 0..10_000 {
        match call() {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {}
            result => return result.unwrap(),
        }
    }
    panic!("the call never met its pages resident");
}

fn touch(region: &Region, page: u64) {
    // SAFETY: in the range.
    unsafe { address(region, page).read_volatile() };
}

/// The kernel pins registered buffers for as long as they are registered.
#[test]
fn fixed_buffers_on_scattered_pages_have_what_was_read() {
    let file = file();
    each("fixed_buffers_on_scattered_pages", |mode| {
        let region = region(mode);
        let used = scattered();
        used.iter().for_each(|page| write(&region, *page, &noise(*page)));
        let _pins = used.map(|page| pin_if_needed(&region, page));
        let mut ring = match IoUring::new(8) {
            Ok(ring) => ring,
            Err(error) => return pagefold_testkit::skipped!("fixed_buffers_on_scattered_pages: {error}"),
        };
        let buffers = used.map(|page| libc::iovec { iov_base: address(&region, page).cast(), iov_len: 4096 });
        while_faulting(|| {
            used.iter().for_each(|page| touch(&region, *page));
            // SAFETY: the buffers live until the ring is dropped.
            unsafe { ring.submitter().register_buffers(&buffers) }
        });
        for round in 0..2 {
            evict_others(&region, &used, round + 1);
            for (at, page) in used.iter().enumerate() {
                let from = round * USED + at as u64;
                let read = opcode::ReadFixed::new(
                    types::Fd(file.as_raw_fd()),
                    address(&region, *page),
                    4096,
                    at as u16,
                )
                .offset(from * 4096)
                .build();
                // SAFETY: the buffer is registered, and the file lives as long.
                unsafe { ring.submission().push(&read) }.unwrap();
                ring.submit_and_wait(1).unwrap();
                assert_eq!(ring.completion().next().map(|entry| entry.result()), Some(4096));
            }
            for (at, page) in used.iter().enumerate() {
                assert!(
                    read(&region, *page) == noise(FILE_FIRST + round * USED + at as u64),
                    "{page}, mode {mode}"
                );
            }
        }
        // The bytes that were read last are those that are evicted.
        drop(ring);
        evict_others(&region, &used, 9);
        for (at, page) in used.iter().enumerate() {
            assert!(read(&region, *page) == noise(FILE_FIRST + USED + at as u64), "{page}, mode {mode}");
        }
    });
}

/// Fills a pipe with pages by vmsplice(2), which takes references to them and copies nothing.
fn vmsplice(to: RawFd, region: &Region, page: u64) -> io::Result<()> {
    let part = libc::iovec { iov_base: address(region, page).cast(), iov_len: 4096 };
    // SAFETY: the kernel only reads the page.
    match unsafe { libc::vmsplice(to, &part, 1, 0) } {
        4096 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn a_pipe_keeps_the_pages_that_were_spliced_into_it() {
    each("a_pipe_keeps_the_pages_that_were_spliced", |mode| {
        let region = large_region(mode);
        let used = fill_large(&region);
        let _pins = used.map(|page| pin_if_needed(&region, page));
        let (from, to) = io::pipe().unwrap();
        for page in used {
            while_faulting(|| {
                touch(&region, page);
                vmsplice(to.as_raw_fd(), &region, page)
            });
        }
        read_others(&region, &used);
        let mut page_read = [0; 4096];
        for page in used {
            (&from).read_exact(&mut page_read).unwrap();
            assert!(page_read[..] == bytes(&noise(page)), "{page}, mode {mode}");
        }
    });
}

/// Sends pages with MSG_ZEROCOPY(7): the socket refers to them until the receiver has them.
fn send_zerocopy(to: &TcpStream, region: &Region, page: u64) -> io::Result<()> {
    // SAFETY: the kernel only reads the page.
    match unsafe { libc::send(to.as_raw_fd(), address(region, page).cast(), 4096, libc::MSG_ZEROCOPY) } {
        4096 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn a_socket_sends_the_pages_that_it_was_given() {
    each("a_socket_sends_the_pages_that_it_was_given", |mode| {
        let region = large_region(mode);
        let used = fill_large(&region);
        let _pins = used.map(|page| pin_if_needed(&region, page));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Bytes for which the receiver has no room stay in the pages.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut from, _) = listener.accept().unwrap();
        let one: libc::c_int = 1;
        // SAFETY: the option is an integer of this size.
        let rc = unsafe {
            libc::setsockopt(to.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const one).cast(), 4)
        };
        assert_eq!(rc, 0);
        for page in used {
            while_faulting(|| {
                touch(&region, page);
                send_zerocopy(&to, &region, page)
            });
        }
        read_others(&region, &used);
        let mut page_read = [0; 4096];
        for page in used {
            from.read_exact(&mut page_read).unwrap();
            assert!(page_read[..] == bytes(&noise(page)), "{page}, mode {mode}");
        }
    });
}

/// Reads to run in each mode, of [`USED`] pages each.
fn reads() -> u64 {
    let is_set = |name| std::env::var_os(name).is_some();
    match (is_set("PAGEFOLD_LONG"), is_set("PAGEFOLD_FULL")) {
        (true, _) => 30_000,
        (_, true) => 500,
        _ => 100,
    }
}

/// Runs two threads that call `fill` for [`USED`] pages at a time, with the first page and the first one of the file, and
/// compares what the pages have afterwards, while a third thread makes pages leave.
pub fn fill_beside_eviction(region: &Region, fill: impl Fn(u64, u64) -> io::Result<()> + Sync) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let fillers = [0, 1].map(|thread| {
            let fill = &fill;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..reads() {
                    let first = (random.below(PAGES / 4 / USED) * 2 + thread) * USED;
                    let from = random.below(FILE_PAGES - USED);
                    (first..first + USED).for_each(|page| write(region, page, &noise(page)));
                    let _pins: Vec<_> =
                        (first..first + USED).map(|page| pin_if_needed(region, page)).collect();
                    match fill(first, from) {
                        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => continue,
                        result => result.unwrap(),
                    }
                    for at in 0..USED {
                        let words = read(region, first + at);
                        assert!(
                            words == noise(FILE_FIRST + from + at),
                            "page {} has {:#x}",
                            first + at,
                            words[0]
                        );
                    }
                }
            })
        });
        scope.spawn(|| {
            let mut random = Random::new(2);
            while !is_done.load(Relaxed) {
                let page = PAGES / 2 + random.below(PAGES / 2);
                write(region, page, &noise(page));
            }
        });
        let results = fillers.map(std::thread::ScopedJoinHandle::join);
        is_done.store(true, Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert!(region.stats().eviction.staged > 100);
}

#[test]
fn writes_of_another_address_space_beside_eviction_are_kept() {
    let mut contents = vec![0; FILE_PAGES as usize * 4096];
    file().read_exact_at(&mut contents, 0).unwrap();
    each("writes_of_another_address_space", |mode| {
        let region = region(mode);
        fill_beside_eviction(&region, |first, from| {
            let len_bytes = USED as usize * 4096;
            let from = contents[from as usize * 4096..][..len_bytes].as_ptr().cast_mut();
            let local = libc::iovec { iov_base: from.cast(), iov_len: len_bytes };
            let remote = libc::iovec { iov_base: address(&region, first).cast(), iov_len: len_bytes };
            // SAFETY: pages of the calling thread, without references to them; the kernel only reads `local`.
            let wrote = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
            match usize::try_from(wrote) {
                Err(_) => Err(io::Error::last_os_error()),
                Ok(wrote) if wrote == len_bytes => Ok(()),
                Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            }
        });
    });
}
