//! System calls with memory of a region as their buffer, pinned or not.

use crate::support::{MODES, bytes_of, comes_true, each, noise, read, write};
use pagefold_memory::{RangeError, Region, RegionConfig, Service};
use std::os::fd::{AsRawFd, OwnedFd};

const PAGES: u64 = 1024;

fn filled(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    let config = RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, 512 << 10) };
    let region = Region::new(config).unwrap();
    (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
    region
}

/// Copies a page to another through a pipe, by system calls. Returns the number of the error if one fails.
fn transfer(region: &Region, from: u64, to: u64, pipe: &(OwnedFd, OwnedFd)) -> Result<(), i32> {
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap();
    let address = |page: u64| region.as_ptr().wrapping_add(page as usize * 4096);
    // SAFETY: pages of the range that only this test uses.
    let wrote = unsafe { libc::write(pipe.1.as_raw_fd(), address(from).cast(), 4096) };
    if wrote != 4096 {
        return Err(errno());
    }
    // SAFETY: a page of the range that only this test uses.
    match unsafe { libc::read(pipe.0.as_raw_fd(), address(to).cast(), 4096) } {
        4096 => Ok(()),
        _ => Err(errno()),
    }
}

#[test]
fn pinned_pages_can_be_buffers_of_system_calls() {
    each("pinned_pages_can_be_buffers_of_system_calls", |mode| {
        let region = filled(mode);
        let pipe = rustix::pipe::pipe().unwrap();
        for from in 0..PAGES / 2 {
            let to = PAGES - 1 - from;
            let _pins = [from, to].map(|page| region.pin(bytes_of(page, 1)).unwrap());
            assert_eq!(transfer(&region, from, to, &pipe), Ok(()), "{from}");
            assert!(read(&region, to) == noise(from), "{from}");
        }
    });
}

#[test]
fn pages_that_are_not_pinned_fault_or_are_served() {
    each("pages_that_are_not_pinned", |mode| {
        let region = filled(mode);
        let pipe = rustix::pipe::pipe().unwrap();
        // The first pages were written first, and are folded by now.
        let results: Vec<_> = (0..64).map(|from| transfer(&region, from, from, &pipe)).collect();
        if MODES[mode].0 == Service::HandlerThreads {
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        } else {
            assert!(results.contains(&Err(libc::EFAULT)), "{results:?}");
        }
        (0..PAGES).for_each(|page| assert!(read(&region, page) == noise(page), "{page}"));
    });
}

#[test]
fn a_pinned_page_is_not_dropped_nor_folded() {
    each("a_pinned_page_is_not_dropped_nor_folded", |mode| {
        let region = filled(mode);
        let pin = region.pin(bytes_of(5, 1)).unwrap();
        // SAFETY: no references into the region.
        let dropped = unsafe { region.discard_shared(bytes_of(5, 1)) };
        assert_eq!(dropped, Err(RangeError::Pinned { page: 5 }));
        (6..PAGES).for_each(|page| write(&region, page, &noise(page + 1)));
        let pipe = rustix::pipe::pipe().unwrap();
        assert_eq!(transfer(&region, 5, 5, &pipe), Ok(()));
        drop(pin);
        // SAFETY: no references into the region.
        unsafe { region.discard_shared(bytes_of(5, 1)) }.unwrap();
        assert!(read(&region, 5) == [0; 512]);
        let too_many = region.pin(bytes_of(0, 65)).err();
        assert_eq!(too_many, Some(RangeError::OverLimit { pages: 65, limit_pages: 64 }));
        assert!(comes_true(|| region.stats().memory.resident <= 512 << 10));
    });
}
