//! Pages that are loaded to be read, and later dropped without a look at them: what is written to them by the program, by
//! system calls and by devices is kept.

use crate::support::{MODES, bytes_of, each, noise, read, write};
use io_uring::{IoUring, opcode, types};
use pagefold_memory::{Eviction, Region, RegionConfig, Service};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const PAGES: u64 = 1024;
const LIMIT: u64 = 128 * 4096;
/// The first page of the file that is read.
const FILE_FIRST: u64 = 1 << 32;

fn region(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    Region::new(RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) }).unwrap()
}

/// Pages that readahead takes for scattered ones: those of the first half of the region.
fn scattered(count: u64) -> impl Iterator<Item = u64> + Clone {
    (0..count).map(|at| at * 37 % (PAGES / 2))
}

fn fill(region: &Region) {
    (0..PAGES).for_each(|page| write(region, page, &noise(page)));
}

/// Makes the pages of the first half leave.
fn evict(region: &Region) {
    (PAGES / 2..PAGES).for_each(|page| write(region, page, &noise(page)));
}

fn file() -> File {
    let mut file = tempfile::tempfile().unwrap();
    for page in 0..16 {
        let bytes: Vec<u8> = noise(FILE_FIRST + page).iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all(&bytes).unwrap();
    }
    file
}

#[test]
fn pages_that_were_only_read_are_not_written_again_and_writes_are_kept() {
    each("pages_that_were_only_read", |mode| {
        let region = region(mode);
        fill(&region);
        let folded = region.stats().eviction.folded;
        scattered(400).for_each(|page| assert!(read(&region, page) == noise(page), "{page}, mode {mode}"));
        scattered(400).for_each(|page| assert!(read(&region, page) == noise(page), "{page}, mode {mode}"));
        let stats = region.stats().eviction;
        assert!(stats.clean >= 400 && stats.folded - folded < 400, "mode {mode}: {stats:?}");
        for round in 1..4 {
            for page in scattered(400) {
                assert!(read(&region, page) == noise(page + (round - 1) * PAGES), "{page}, mode {mode}");
                write(&region, page, &noise(page + round * PAGES));
            }
        }
        scattered(400)
            .for_each(|page| assert!(read(&region, page) == noise(page + 3 * PAGES), "{page}, mode {mode}"));
    });
}

#[test]
fn pins_make_pages_that_were_read_writable_for_system_calls() {
    let file = file();
    each("pins_make_pages_that_were_read_writable", |mode| {
        let mut region = region(mode);
        fill(&region);
        for (at, page) in scattered(16).enumerate() {
            assert!(read(&region, page) == noise(page));
            let mut pin = region.pin_mut(bytes_of(page, 1)).unwrap();
            file.read_exact_at(&mut pin, at as u64 * 4096).unwrap();
        }
        evict(&region);
        for (at, page) in scattered(16).enumerate() {
            assert!(read(&region, page) == noise(FILE_FIRST + at as u64), "{page}, mode {mode}");
        }
    });
}

/// The kernel pins the buffers after they were read, and a device writes to them much later.
#[test]
fn a_device_writes_to_pages_that_were_read_before_it_got_them() {
    let file = file();
    each("a_device_writes_to_pages_that_were_read", |mode| {
        let region = region(mode);
        let mut ring = match IoUring::new(8) {
            Ok(ring) => ring,
            Err(error) => return pagefold_testkit::skipped!("a_device_writes_to_pages: {error}"),
        };
        fill(&region);
        scattered(16).for_each(|page| assert!(read(&region, page) == noise(page)));
        // Faults of system calls need a thread that serves them, or a pin while the call is made.
        let needs_pins = MODES[mode].0 == Service::FaultingThread || region.eviction() == Eviction::Protect;
        let pins: Vec<_> =
            scattered(16).filter(|_| needs_pins).map(|page| region.pin(bytes_of(page, 1)).unwrap()).collect();
        let buffer = |page| libc::iovec {
            iov_base: region.as_ptr().wrapping_add(page as usize * 4096).cast(),
            iov_len: 4096,
        };
        let buffers: Vec<_> = scattered(16).map(buffer).collect();
        // SAFETY: the buffers live until the ring is dropped.
        unsafe { ring.submitter().register_buffers(&buffers) }.unwrap();
        let _pins = (region.eviction() == Eviction::Protect).then_some(pins);
        evict(&region);
        for (at, buffer) in buffers.iter().enumerate() {
            let entry =
                opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), buffer.iov_base.cast(), 4096, at as u16);
            // SAFETY: the buffer is registered, and the file lives as long.
            unsafe { ring.submission().push(&entry.offset(at as u64 * 4096).build()) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().map(|entry| entry.result()), Some(4096));
        }
        drop(ring);
        evict(&region);
        for (at, page) in scattered(16).enumerate() {
            assert!(read(&region, page) == noise(FILE_FIRST + at as u64), "{page}, mode {mode}");
        }
    });
}
