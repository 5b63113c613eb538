//! Tests of every operation against the kernel: they compare the memory afterwards with the expected contents.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::mem::Reservation;

const PAGE: usize = 4096;

/// Reserves `pages` pages. Other tests fork, and pages that a child shares cannot be moved, so children do not get
/// these.
fn reserve(pages: usize) -> Reservation {
    let range = Reservation::new(pages * PAGE).unwrap();
    // SAFETY: children that tests fork exit without accessing the range or dropping the value.
    unsafe { range.keep_from_children() }.unwrap();
    range
}

/// A context and a range of `pages` pages, registered for missing pages and for `write_protect`; `None` if the kernel
/// refuses the context.
fn ranges(test: &str, open: UffdOptions, write_protect: bool, pages: usize) -> Option<(Uffd, Reservation)> {
    let uffd = match Uffd::open(&open) {
        Ok(uffd) => uffd,
        Err(e) => {
            pagefold_testkit::skipped!("{test}: {e}");
            return None;
        }
    };
    let range = reserve(pages);
    uffd.register(at(&range, 0), range.len_bytes(), true, write_protect).unwrap();
    Some((uffd, range))
}

fn at(range: &Reservation, page: usize) -> usize {
    range.base().addr().get() + page * PAGE
}

/// Reads the first byte of a page by a plain access.
fn load(range: &Reservation, page: usize) -> u8 {
    assert!(page * PAGE < range.len_bytes());
    // SAFETY: the byte is inside the reservation (just checked), and every access to it is atomic.
    let byte = unsafe { &*range.base().as_ptr().add(page * PAGE).cast::<std::sync::atomic::AtomicU8>() };
    byte.load(std::sync::atomic::Ordering::Relaxed)
}

fn store(range: &Reservation, page: usize, value: u8) {
    assert!(page * PAGE < range.len_bytes());
    // SAFETY: the byte is inside the reservation (just checked), and all accesses to it are atomic.
    let byte = unsafe { &*range.base().as_ptr().add(page * PAGE).cast::<std::sync::atomic::AtomicU8>() };
    byte.store(value, std::sync::atomic::Ordering::Relaxed);
}

/// Pages that are each filled with their number plus one.
fn numbered(pages: usize) -> Vec<u8> {
    (0..pages * PAGE).map(|i| (i / PAGE + 1) as u8).collect()
}

/// Fills one page of `range`.
fn fill(uffd: &Uffd, range: &Reservation, page: usize, value: u8) -> Done {
    assert!(page * PAGE < range.len_bytes());
    let contents = [value; PAGE];
    // SAFETY: a page of a reservation that only this test uses.
    unsafe { uffd.copy(at(range, page), contents.as_ptr(), PAGE, true) }
}

const ALL_OF_8: Done = Done { len_bytes: 8 * PAGE, errno: 0 };

#[test]
fn a_user_mode_context_opens_and_has_the_features_of_the_kernel() {
    let Some((uffd, _range)) = ranges("user_mode_only_context", UffdOptions::default(), false, 1) else {
        return;
    };
    assert_eq!(uffd.features(), kernel_features().unwrap());
    assert!(uffd.features().has(Feature::Sigbus), "Linux 4.14 has it, before user mode only");
    // SAFETY: the calls only read flags of a descriptor.
    let (fd, status) = unsafe {
        let raw = uffd.as_fd().as_raw_fd();
        (libc::fcntl(raw, libc::F_GETFD), libc::fcntl(raw, libc::F_GETFL))
    };
    assert!(fd & libc::FD_CLOEXEC != 0 && status & libc::O_NONBLOCK != 0);
}

#[test]
fn system_calls_fail_on_missing_pages_of_a_user_mode_context() {
    let test = "system_calls_fail_on_missing_pages_of_a_user_mode_context";
    let Some((uffd, range)) = ranges(test, UffdOptions::default(), false, 2) else { return };
    let read_into = |page: usize| {
        let zeroes = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: the kernel writes into a page of a reservation that only this test uses, or fails.
        let n = unsafe { libc::read(zeroes.as_raw_fd(), at(&range, page) as *mut libc::c_void, 1) };
        if n == 1 { Ok(()) } else { Err(Errno::last()) }
    };
    assert_eq!(read_into(0), Err(Errno(libc::EFAULT)));
    assert_eq!(fill(&uffd, &range, 0, 7), Done { len_bytes: PAGE, errno: 0 });
    assert_eq!(read_into(0), Ok(()));
    assert_eq!(load(&range, 0), 0);
    uffd.unregister(at(&range, 0), range.len_bytes()).unwrap();
    assert_eq!(read_into(1), Ok(()));
}

#[test]
fn copy_fills_missing_pages_and_stops_at_a_present_one() {
    let Some((uffd, range)) = ranges("copy_fills_missing_pages", UffdOptions::default(), false, 8) else {
        return;
    };
    assert_eq!(fill(&uffd, &range, 5, 99).errno, 0);
    let contents = numbered(8);
    // SAFETY: only this test uses the reservation; the source has `pages` pages from `page` on.
    let copy = |page: usize, pages: usize| unsafe {
        uffd.copy(at(&range, page), contents[page * PAGE..].as_ptr(), pages * PAGE, true)
    };
    assert_eq!(copy(0, 8), Done { len_bytes: 5 * PAGE, errno: libc::EEXIST });
    assert_eq!(copy(5, 3), Done { len_bytes: 0, errno: libc::EEXIST });
    assert_eq!(copy(6, 2), Done { len_bytes: 2 * PAGE, errno: 0 });
    assert_eq!(copy(0, 0), Done { len_bytes: 0, errno: 0 });
    let expected = [1, 2, 3, 4, 5, 99, 7, 8];
    assert_eq!(std::array::from_fn(|page| load(&range, page)), expected);
}

#[test]
fn copy_fails_for_unreadable_sources_and_unregistered_or_unaligned_targets() {
    let Some((uffd, range)) = ranges("copy_from_where_nothing_is", UffdOptions::default(), false, 2) else {
        return;
    };
    let source = reserve(2);
    // SAFETY: only this test uses the reservations.
    unsafe {
        libc::mprotect(at(&source, 1) as *mut libc::c_void, PAGE, libc::PROT_NONE);
        let stopped = uffd.copy(at(&range, 0), source.base().as_ptr(), 2 * PAGE, true);
        assert_eq!(stopped, Done { len_bytes: PAGE, errno: libc::EFAULT });
        let foreign = uffd.copy(at(&source, 0), numbered(1).as_ptr(), PAGE, true);
        assert_eq!(foreign, Done { len_bytes: 0, errno: libc::ENOENT });
        let unaligned = uffd.copy(at(&range, 1) + 1, numbered(1).as_ptr(), PAGE, true);
        assert_eq!(unaligned, Done { len_bytes: 0, errno: libc::EINVAL });
    }
}

#[test]
fn zero_fills_missing_pages_and_stops_at_a_present_one() {
    let Some((uffd, range)) = ranges("zero_fills_missing_pages", UffdOptions::default(), false, 8) else {
        return;
    };
    assert_eq!(fill(&uffd, &range, 2, 99).errno, 0);
    // SAFETY: only this test uses the reservation.
    let zero = |page: usize, pages: usize| unsafe { uffd.zero(at(&range, page), pages * PAGE, true) };
    assert_eq!(zero(0, 8), Done { len_bytes: 2 * PAGE, errno: libc::EEXIST });
    assert_eq!(zero(3, 5), Done { len_bytes: 5 * PAGE, errno: 0 });
    assert_eq!(std::array::from_fn(|page| load(&range, page)), [0, 0, 99, 0, 0, 0, 0, 0]);
    store(&range, 7, 5);
    assert_eq!((load(&range, 6), load(&range, 7)), (0, 5));
}

/// As [`ranges`]; `None` also if the kernel cannot move pages.
fn movable(test: &str, pages: usize) -> Option<(Uffd, Reservation)> {
    let (uffd, range) = ranges(test, UffdOptions::default(), false, pages)?;
    if uffd.features().has(Feature::Move) {
        return Some((uffd, range));
    }
    pagefold_testkit::skipped!("{test}: {}", OpenError::Lacks(Feature::Move));
    None
}

#[test]
fn move_takes_pages_out_and_brings_them_back() {
    let Some((uffd, range)) = movable("move_takes_pages_out", 8) else { return };
    let staging = reserve(8);
    uffd.register(at(&staging, 0), staging.len_bytes(), true, false).unwrap();
    // SAFETY: only this test uses the reservations.
    unsafe {
        assert_eq!(uffd.copy(at(&range, 0), numbered(8).as_ptr(), 8 * PAGE, true), ALL_OF_8);
        assert_eq!(uffd.move_pages(at(&staging, 0), at(&range, 0), 8 * PAGE, false, false), ALL_OF_8);
        assert_eq!(std::array::from_fn(|page| load(&staging, page)), [1, 2, 3, 4, 5, 6, 7, 8]);
        // The pages are missing now, so they can be filled.
        assert_eq!(fill(&uffd, &range, 3, 44).errno, 0);
        let back = uffd.move_pages(at(&range, 0), at(&staging, 0), 8 * PAGE, true, false);
        assert_eq!(back, Done { len_bytes: 3 * PAGE, errno: libc::EEXIST });
        let back = uffd.move_pages(at(&range, 4), at(&staging, 4), 4 * PAGE, true, false);
        assert_eq!(back, Done { len_bytes: 4 * PAGE, errno: 0 });
    }
    assert_eq!(std::array::from_fn(|page| load(&range, page)), [1, 2, 3, 44, 5, 6, 7, 8]);
}

#[test]
fn move_stops_at_holes_unless_they_are_allowed() {
    let Some((uffd, range)) = movable("move_stops_at_holes", 8) else { return };
    let source = reserve(8);
    (0..8).filter(|page| page % 4 != 2).for_each(|page| store(&source, page, page as u8 + 1));
    // SAFETY: only this test uses the reservations.
    unsafe {
        let stopped = uffd.move_pages(at(&range, 0), at(&source, 0), 8 * PAGE, true, false);
        assert_eq!(stopped, Done { len_bytes: 2 * PAGE, errno: libc::ENOENT });
        let moved = uffd.move_pages(at(&range, 2), at(&source, 2), 6 * PAGE, true, true);
        assert_eq!(moved, Done { len_bytes: 6 * PAGE, errno: 0 });
        for hole in [2, 6] {
            assert_eq!(uffd.zero(at(&range, hole), PAGE, true).errno, 0, "{hole} is missing");
        }
    }
    assert_eq!(std::array::from_fn(|page| load(&range, page)), [1, 2, 0, 4, 5, 6, 0, 8]);
    assert_eq!((0..8).map(|page| load(&source, page)).max(), Some(0));
}

/// Pins a page by registering it as a buffer of an io_uring ring, until the ring's descriptor is closed. `None` if
/// rings are refused.
fn pin(range: &Reservation, page: usize) -> Option<OwnedFd> {
    use std::os::fd::FromRawFd;
    const IORING_REGISTER_BUFFERS: libc::c_uint = 0;
    // `struct io_uring_params`: 120 bytes of integers; zeroes are the defaults.
    let mut params = [0u64; 15];
    // SAFETY: the kernel reads and writes the 120 bytes of the structure.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if ring < 0 {
        return None;
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let part = libc::iovec { iov_base: at(range, page) as *mut libc::c_void, iov_len: PAGE };
    // SAFETY: the call gets one vector; no request is submitted to the ring, so the kernel does not access the memory.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            IORING_REGISTER_BUFFERS,
            &raw const part,
            1,
        )
    };
    (rc == 0).then_some(ring)
}

#[test]
fn move_stops_at_pinned_pages() {
    let Some((uffd, range)) = movable("move_stops_at_pinned_pages", 8) else { return };
    let source = reserve(8);
    (0..8).for_each(|page| store(&source, page, page as u8 + 1));
    let Some(ring) = pin(&source, 5) else {
        pagefold_testkit::skipped!("move_stops_at_pinned_pages: io_uring is refused: {}", Errno::last());
        return;
    };
    // SAFETY: only this test uses the reservations.
    let shift = |page: usize, pages: usize| unsafe {
        uffd.move_pages(at(&range, page), at(&source, page), pages * PAGE, true, false)
    };
    assert_eq!(shift(0, 8), Done { len_bytes: 5 * PAGE, errno: libc::EBUSY });
    assert_eq!(shift(6, 2), Done { len_bytes: 2 * PAGE, errno: 0 });
    assert_eq!(load(&source, 5), 6);
    drop(ring);
    // The kernel unpins a ring's buffers only some time after its descriptor is closed.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while shift(5, 1).errno == libc::EBUSY && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(std::array::from_fn(|page| load(&range, page)), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn move_fails_for_pages_that_a_child_shares() {
    let Some((uffd, range)) = movable("move_fails_for_pages_that_a_child_shares", 2) else { return };
    let source = Reservation::new(2 * PAGE).unwrap();
    store(&source, 0, 1);
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child makes system calls only: it waits until the parent has closed the pipe, and exits.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::close(write_end.as_raw_fd());
            libc::read(read_end.as_raw_fd(), [0u8; 1].as_mut_ptr().cast(), 1);
            libc::_exit(0);
        }
        child
    };
    store(&source, 1, 2);
    // SAFETY: only this test uses the reservations.
    let shift =
        |page: usize| unsafe { uffd.move_pages(at(&range, page), at(&source, page), PAGE, true, false) };
    assert_eq!(shift(0), Done { len_bytes: 0, errno: libc::EBUSY });
    assert_eq!(shift(1), Done { len_bytes: PAGE, errno: 0 });
    drop((read_end, write_end));
    // SAFETY: the call waits for the child above, and gets no pointer to write to.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    // Writing to the page makes it exclusive to this process again.
    store(&source, 0, 3);
    assert_eq!(shift(0), Done { len_bytes: PAGE, errno: 0 });
    assert_eq!([load(&range, 0), load(&range, 1)], [3, 2]);
}

#[test]
fn write_protect_of_a_range_that_is_not_registered_for_it_is_refused() {
    let Some((uffd, range)) = ranges("write_protect_refused", UffdOptions::default(), false, 1) else {
        return;
    };
    // SAFETY: the call fails and protects nothing.
    let refused = unsafe { uffd.write_protect(at(&range, 0), PAGE, true, true) };
    assert_eq!(refused, Err(Errno(libc::ENOENT)));
}

/// Reads faults until `count` have arrived, and calls `serve` for each; returns them in the order of arrival.
fn serve(uffd: &Uffd, count: usize, mut serve: impl FnMut(Fault)) -> Vec<Fault> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut served = Vec::new();
    let mut faults = [Fault::default(); 3];
    while served.len() < count {
        let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        let fd = uffd.as_fd();
        assert_eq!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)), Ok(1));
        let n = uffd.read_faults(&mut faults).unwrap();
        faults[..n].iter().for_each(|fault| serve(*fault));
        served.extend_from_slice(&faults[..n]);
    }
    served
}

#[test]
fn faults_of_other_threads_are_read_and_served() {
    let Some((uffd, range)) = ranges("faults_of_other_threads", UffdOptions::default(), false, 8) else {
        return;
    };
    assert_eq!(uffd.read_faults(&mut [Fault::default(); 4]), Ok(0));
    let base = at(&range, 0);
    std::thread::scope(|scope| {
        // One thread per page, so that several faults wait at once; odd pages are written.
        let touch = |page: usize| {
            let range = &range;
            scope.spawn(move || {
                if page % 2 == 1 {
                    store(range, page, 200)
                } else {
                    load(range, page);
                }
            })
        };
        let touching: Vec<_> = (0..8).map(touch).collect();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let page_of = |fault: &Fault| (fault.address - base) / PAGE;
        let mut served = serve(&uffd, 8, |fault| {
            let done = fill(&uffd, &range, page_of(&fault), page_of(&fault) as u8 + 1);
            assert_eq!(done.errno, 0);
        });
        touching.into_iter().for_each(|thread| thread.join().unwrap());
        served.sort_by_key(|fault| fault.address);
        let expected = |page: usize| Fault {
            address: base + page * PAGE,
            is_write: page % 2 == 1,
            is_write_protected: false,
        };
        assert_eq!(served, (0..8).map(expected).collect::<Vec<_>>());
    });
    assert_eq!(std::array::from_fn(|page| load(&range, page)), [1, 200, 3, 200, 5, 200, 7, 200]);
}

#[test]
fn faults_have_the_address_of_the_access_if_that_is_wanted() {
    if !kernel_features().is_ok_and(|features| features.has(Feature::ExactAddress)) {
        pagefold_testkit::skipped!("exact_address: the kernel has no exact addresses, or no userfaultfd");
        return;
    }
    for (exact_address, offset) in [(true, PAGE + 1234), (false, PAGE)] {
        let open = UffdOptions { exact_address, ..UffdOptions::default() };
        let Some((uffd, range)) = ranges("exact_address", open, false, 2) else { return };
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| {
                // SAFETY: inside the reservation, which has two pages, and no thread writes to it.
                unsafe { range.base().as_ptr().wrapping_add(PAGE + 1234).read_volatile() }
            });
            let served = serve(&uffd, 1, |_| assert_eq!(fill(&uffd, &range, 1, 7).errno, 0));
            assert_eq!(served[0].address - at(&range, 0), offset, "exact: {exact_address}");
            assert_eq!(loading.join().unwrap(), 7);
        });
    }
}

#[test]
fn writes_to_protected_pages_wait_to_be_served() {
    let Some((uffd, range)) = ranges("writes_to_protected_pages", UffdOptions::default(), true, 2) else {
        return;
    };
    assert_eq!(fill(&uffd, &range, 0, 1).errno, 0);
    // SAFETY: only this test uses the reservation, and it serves the write below.
    unsafe { uffd.write_protect(at(&range, 0), PAGE, true, false) }.unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| store(&range, 0, 9));
        let served = serve(&uffd, 1, |fault| {
            assert_eq!(load(&range, 0), 1);
            // SAFETY: the call removes the protection of a page of the reservation, which only this test uses.
            unsafe { uffd.write_protect(fault.address, PAGE, false, true) }.unwrap();
        });
        writer.join().unwrap();
        let fault = Fault { address: at(&range, 0), is_write: true, is_write_protected: true };
        assert_eq!(served, [fault]);
    });
    assert_eq!(load(&range, 0), 9);
}

#[test]
fn a_thread_waits_until_wake_if_the_copy_does_not_wake() {
    let Some((uffd, range)) = ranges("without_waking", UffdOptions::default(), false, 1) else { return };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| load(&range, 0));
        serve(&uffd, 1, |fault| {
            // SAFETY: only this test uses the reservation; the source is a whole page.
            let done = unsafe { uffd.copy(fault.address, [8u8; PAGE].as_ptr(), PAGE, false) };
            assert_eq!(done.errno, 0);
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!reader.is_finished());
        uffd.wake(at(&range, 0), PAGE).unwrap();
        assert_eq!(reader.join().unwrap(), 8);
    });
}

#[test]
fn with_kernel_faults_system_calls_wait_to_be_served() {
    let open = UffdOptions { kernel_faults: true, ..UffdOptions::default() };
    let test = "with_kernel_faults_system_calls_wait_to_be_served";
    let Some((uffd, range)) = ranges(test, open, false, 1) else { return };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let zeroes = std::fs::File::open("/dev/zero").unwrap();
            // SAFETY: the kernel writes into a page of a reservation that only this test uses.
            unsafe { libc::read(zeroes.as_raw_fd(), at(&range, 0) as *mut libc::c_void, 10) }
        });
        let served = serve(&uffd, 1, |_| assert_eq!(fill(&uffd, &range, 0, 3).errno, 0));
        assert_eq!(reader.join().unwrap(), 10);
        assert!(served[0].is_write);
    });
    // SAFETY: the bytes are inside the reservation and present, and no thread writes there now.
    let bytes = unsafe { std::slice::from_raw_parts(range.base().as_ptr(), 12) };
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3]);
}

#[test]
fn success_without_bytes_done_is_an_error() {
    assert_eq!(bytes_done(Ok(()), 0), Err(Errno(libc::EIO)));
    assert_eq!(bytes_done(Err(Errno(libc::EAGAIN)), 4096), Ok(4096));
    assert_eq!(bytes_done(Err(Errno(libc::EEXIST)), -17), Err(Errno(libc::EEXIST)));
    assert_eq!(bytes_done(Err(Errno(libc::EFAULT)), 0), Err(Errno(libc::EFAULT)));
    assert_eq!(until_stopped(10, |_| Ok(64)), Done { len_bytes: 10, errno: 0 });
}
