use super::*;
use crate::{Buffer, ByteSource, Demand, Direct, FileBacking, FileOptions, Uring};
use pagefold_testkit::skipped;
use std::os::unix::fs::FileExt;

const PAGES: u64 = 64;

/// A file of pages, each filled with its number + 1, and a region with space for all of them.
fn setup(test: &str) -> Option<(FileBacking, Buffers)> {
    let file = tempfile::tempfile().unwrap();
    for page in 0..PAGES {
        file.write_all_at(&[page as u8 + 1; 4096], page * 4096).unwrap();
    }
    file.sync_all().unwrap();
    match FileBacking::new(file, FileOptions { direct: Direct::Auto, uring: Uring::On }) {
        Ok(backing) => Some((backing, Buffers::new(PAGES as usize * 4096).unwrap())),
        Err(e) => {
            skipped!("{test}: {e}");
            None
        }
    }
}

fn request(operation: Operation, page: u64, mut buf: Buffer) -> Request {
    buf.fill(0xA0 + page as u8);
    Request { id: page, operation, offset: page * 4096, len_bytes: buf.len(), buf }
}

fn page_buffer(buffers: &Buffers) -> Buffer {
    buffers.get(4096, Demand::Required).unwrap()
}

#[test]
fn all_requests_complete_after_abandon() {
    let Some((backing, buffers)) = setup("all_requests_complete_after_abandon") else { return };
    for sent in [0, 3, 8] {
        let mut queue = UringQueue::new(&backing, &backing.file, 16, &buffers).unwrap();
        for page in 0..8 {
            let operation = if page % 2 == 0 { Operation::Read } else { Operation::Write };
            if page == sent {
                queue.start();
            }
            queue.submit(request(operation, page, page_buffer(&buffers))).unwrap();
        }
        if sent == 8 {
            queue.start();
        }
        queue.abandon();
        queue.submit(request(Operation::Read, 20, page_buffer(&buffers))).unwrap();
        assert_eq!(queue.in_flight(), 9);
        let mut done = Vec::new();
        assert_eq!(queue.complete(usize::MAX, &mut done), 9);
        assert_eq!((queue.in_flight(), queue.free.len()), (0, 16));
        for Completion { request, result } in done {
            let page = request.id as u8;
            assert_eq!(result, Ok(()));
            let expected = if request.operation == Operation::Read { page + 1 } else { 0xA0 + page };
            assert!(request.buf.iter().all(|&b| b == expected), "page {page}");
        }
        let mut page = [0; 4096];
        backing.read_at(5 * 4096, &mut page).unwrap();
        assert_eq!(page, [0xA5; 4096]);
    }
}

/// Allocates and frees buffers of many sizes, so that the same addresses are reused. If the region returned their
/// memory to the kernel in between, the ring would read into the pages that it registered, which the region no longer
/// maps.
#[test]
fn a_registered_region_shows_reads_after_its_buffers_were_reused() {
    let test = "a_registered_region_shows_reads_after_its_buffers_were_reused";
    let Some((backing, _)) = setup(test) else { return };
    let buffers = Buffers::new(16 * 4096).unwrap();
    let mut queue = UringQueue::new(&backing, &backing.file, 4, &buffers).unwrap();
    if queue.registered.is_none() {
        skipped!("{test}: the kernel registers no memory");
        return;
    }
    let take = |pages: usize| buffers.get(pages * 4096, Demand::Required).unwrap();
    let mut done = Vec::new();
    for (first_pages, long_pages) in [(10, 11), (3, 14), (12, 16)] {
        let mut first = take(first_pages);
        first.fill(1);
        let short = take(4);
        drop(first);
        take(long_pages).fill(2);
        queue.submit(request(Operation::Read, 7, take(5))).unwrap();
        assert_eq!(queue.complete(1, &mut done), 1);
        for (page, bytes) in done[0].request.buf.chunks(4096).enumerate() {
            assert!(bytes.iter().all(|&b| b == page as u8 + 8), "page {page}");
        }
        done.clear();
        drop(short);
    }
}

/// Overwrites returned buffers at once, so that a late write by the kernel would show.
#[test]
fn dropping_a_ring_waits_for_all_its_requests() {
    let Some((backing, buffers)) = setup("dropping_a_ring_waits_for_all_its_requests") else { return };
    for _ in 0..20 {
        let mut queue = UringQueue::new(&backing, &backing.file, PAGES as usize, &buffers).unwrap();
        for page in 0..PAGES {
            queue.submit(request(Operation::Read, page, page_buffer(&buffers))).unwrap();
        }
        queue.start();
        drop(queue);
        assert_eq!(buffers.in_use_bytes(), 0);
        let mut all = buffers.get(PAGES as usize * 4096, Demand::BestEffort).unwrap();
        all.fill(0x55);
        backing.flush().unwrap();
        assert!(all.iter().all(|&b| b == 0x55));
    }
}

#[test]
fn a_ring_moves_between_threads_with_requests_in_flight() {
    let Some((backing, buffers)) = setup("a_ring_moves_between_threads_with_requests_in_flight") else {
        return;
    };
    let mut queue = UringQueue::new(&backing, &backing.file, PAGES as usize, &buffers).unwrap();
    std::thread::scope(|scope| {
        for page in 0..PAGES {
            queue.submit(request(Operation::Read, page, page_buffer(&buffers))).unwrap();
        }
        queue.start();
        let done = scope.spawn(move || {
            let mut done = Vec::new();
            queue.complete(usize::MAX, &mut done);
            done
        });
        let done = done.join().unwrap();
        assert_eq!(done.len(), PAGES as usize);
        assert!(done.iter().all(|c| c.request.buf.iter().all(|&b| b == c.request.id as u8 + 1)));
    });
}

#[test]
fn unregistered_buffers_are_served_too() {
    let above = Buffers::new(4096).unwrap();
    let Some((backing, registered)) = setup("unregistered_buffers_are_served_too") else {
        return;
    };
    let below = Buffers::new(4096).unwrap();
    // An empty region is one that the kernel refuses.
    let unregistered = Buffers::new(0).unwrap();
    let mut queue = UringQueue::new(&backing, &backing.file, 4, &unregistered).unwrap();
    assert_eq!(queue.registered, None);
    queue.submit(request(Operation::Read, 9, page_buffer(&unregistered))).unwrap();
    queue.submit(request(Operation::Read, 10, page_buffer(&registered))).unwrap();
    let mut done = Vec::new();
    queue.complete(2, &mut done);
    let mut queue = UringQueue::new(&backing, &backing.file, 4, &registered).unwrap();
    assert!(queue.registered.is_some());
    for (page, buffers) in [(11, &above), (12, &below), (13, &registered)] {
        queue.submit(request(Operation::Read, page, page_buffer(buffers))).unwrap();
    }
    queue.submit(request(Operation::Read, 14, Buffer::new(4096))).unwrap();
    assert_eq!(queue.complete(4, &mut done), 4);
    assert!(done.iter().all(|c| c.result.is_ok()));
    assert!(done.iter().all(|c| c.request.buf.iter().all(|&b| b == c.request.id as u8 + 1)));
}

#[test]
fn reading_what_a_file_has_lost_is_an_error() {
    let Some((backing, buffers)) = setup("reading_what_a_file_has_lost_is_an_error") else { return };
    let file = backing.file.try_clone().unwrap();
    file.set_len(2 * 4096 + 1000).unwrap();
    what_is_lost_is_an_error(&backing, &buffers);
    let cached = FileOptions { direct: Direct::Off, uring: Uring::On };
    let cached = FileBacking { len_bytes: backing.len_bytes, ..FileBacking::new(file, cached).unwrap() };
    what_is_lost_is_an_error(&cached, &buffers);
    let mut rest = [9; 1000];
    cached.read_at(2 * 4096, &mut rest).unwrap();
    assert_eq!(rest, [3; 1000]);
}

fn what_is_lost_is_an_error(backing: &FileBacking, buffers: &Buffers) {
    let end = 2 * 4096 + 1000;
    let cut_off = |offset: u64, end| Err(BackingError::CutOff { offset, len_bytes: 4096, end });
    let mut queue = UringQueue::new(backing, &backing.file, 4, buffers).unwrap();
    for page in [1, 2, 3] {
        queue.submit(request(Operation::Read, page, page_buffer(buffers))).unwrap();
    }
    let mut done = Vec::new();
    queue.complete(usize::MAX, &mut done);
    done.sort_by_key(|c| c.request.id);
    assert!(done[0].result == Ok(()) && done[0].request.buf.iter().all(|&b| b == 2));
    assert_eq!(done[1].result, cut_off(2 * 4096, end));
    assert_eq!(done[2].result, cut_off(3 * 4096, 3 * 4096));
    // With an aligned and a misaligned buffer.
    let mut positioned = Buffer::copy_of(&vec![9; 4096 + 1]);
    assert_eq!(backing.read_at(2 * 4096, &mut positioned[..4096]), cut_off(2 * 4096, end));
    assert_eq!(backing.read_at(2 * 4096, &mut positioned[1..]).unwrap_err().errno(), libc::EIO);
    backing.read_at(4096, &mut positioned[1..]).unwrap();
    assert!(positioned[1..].iter().all(|&b| b == 2));
}

#[test]
fn complete_submits_all_requests() {
    let Some((backing, buffers)) = setup("complete_submits_all_requests") else { return };
    let mut queue = UringQueue::new(&backing, &backing.file, 4, &buffers).unwrap();
    queue.submit(request(Operation::Read, 1, page_buffer(&buffers))).unwrap();
    assert_eq!(queue.unsent.len(), 1);
    queue.complete(0, &mut Vec::new());
    assert_eq!(queue.unsent.len(), 0);
    queue.submit(request(Operation::Read, 2, page_buffer(&buffers))).unwrap();
    queue.start();
    assert_eq!(queue.unsent.len(), 0);
}

#[test]
fn requests_longer_than_one_operation_are_continued() {
    let Some((backing, buffers)) = setup("requests_longer_than_one_operation_are_continued") else { return };
    let mut queue = UringQueue::new(&backing, &backing.file, 2, &buffers).unwrap();
    let mut done = Vec::new();
    let len_bytes = 5 * MAX_OPERATION_BYTES + 4096;
    let mut buf = buffers.get(len_bytes, Demand::BestEffort).unwrap();
    let pattern = |at: usize| (at / 4096 * 3 + at % 4096 / 512) as u8;
    buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    queue.submit(Request { id: 1, operation: Operation::Write, offset: 4096, buf, len_bytes }).unwrap();
    assert_eq!(queue.complete(1, &mut done), 1);
    // Into memory that is not registered.
    let buf = Buffer::new(len_bytes);
    queue.submit(Request { id: 2, operation: Operation::Read, offset: 4096, buf, len_bytes }).unwrap();
    assert_eq!(queue.complete(1, &mut done), 1);
    let mut positioned = vec![0; len_bytes];
    backing.read_at(4096, &mut positioned).unwrap();
    for read in [&positioned[..], &done[1].request.buf] {
        assert!(read.iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
    }
    assert!(done.iter().all(|c| c.result.is_ok()));
    let mut edges = [0; 1];
    backing.read_at(4095, &mut edges).unwrap();
    assert_eq!(edges, [1]);
    backing.read_at(4096 + len_bytes as u64, &mut edges).unwrap();
    assert_eq!(edges, [(4096 + len_bytes).div_euclid(4096) as u8 + 1]);
}

#[test]
fn without_permission_for_rings_positioned_io_is_used() {
    let outcome = std::thread::spawn(|| {
        pagefold_testkit::seccomp::forbid(libc::SYS_io_uring_setup);
        let file = || {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 16).unwrap();
            file
        };
        let options = |uring| FileOptions { direct: Direct::Auto, uring };
        let refused = FileBacking::new(file(), options(Uring::On)).unwrap_err();
        assert_eq!(refused.errno(), libc::EPERM);
        let backing = FileBacking::new(file(), options(Uring::Auto)).unwrap();
        assert!(backing.describe().ends_with("positioned I/O"), "{}", backing.describe());
        let buffers = Buffers::new(1 << 16).unwrap();
        let mut queue = backing.queue(4, &buffers).unwrap();
        queue.submit(request(Operation::Write, 3, page_buffer(&buffers))).unwrap();
        let mut done = Vec::new();
        assert_eq!(queue.complete(1, &mut done), 1);
        let mut page = [0; 4096];
        backing.read_at(3 * 4096, &mut page).unwrap();
        assert_eq!((page, &done[0].result), ([0xA3; 4096], &Ok(())));
    });
    outcome.join().unwrap();
}

/// As the test that calls `abandon`, but with a real refusal by the kernel.
#[test]
fn all_requests_complete_after_the_kernel_refuses_to_enter_the_ring() {
    all_requests_complete_after(
        "all_requests_complete_after_the_kernel_refuses_to_enter_the_ring",
        libc::EPERM,
    );
}

#[test]
fn all_requests_complete_while_the_kernel_has_no_memory_to_enter_the_ring() {
    let test = "all_requests_complete_while_the_kernel_has_no_memory_to_enter_the_ring";
    for errno in [libc::EAGAIN, libc::ENOMEM] {
        all_requests_complete_after(test, errno);
    }
}

fn all_requests_complete_after(test: &str, errno: i32) {
    let Some((backing, buffers)) = setup(test) else { return };
    let outcome = std::thread::spawn(move || {
        let mut queue = UringQueue::new(&backing, &backing.file, 16, &buffers).unwrap();
        for page in 0..4 {
            queue.submit(request(Operation::Read, page, page_buffer(&buffers))).unwrap();
        }
        queue.start();
        pagefold_testkit::seccomp::fail(libc::SYS_io_uring_enter, errno);
        for page in 4..8 {
            queue.submit(request(Operation::Read, page, page_buffer(&buffers))).unwrap();
        }
        let mut done = Vec::new();
        assert_eq!(queue.complete(usize::MAX, &mut done), 8);
        assert!(queue.is_broken);
        assert!(done.iter().all(|c| c.result.is_ok()));
        assert!(done.iter().all(|c| c.request.buf.iter().all(|&b| b == c.request.id as u8 + 1)));
        drop(queue);
        assert_eq!(done.len() as u64 * 4096, buffers.in_use_bytes());
    });
    outcome.join().unwrap();
}

/// A ring that replaces another is set up while that one still has its memory locked.
#[test]
fn buffers_that_the_kernel_has_refused_are_registered_again() {
    let Some((backing, buffers)) = setup("buffers_that_the_kernel_has_refused_are_registered_again") else {
        return;
    };
    let mut queue = UringQueue::new(&backing, &backing.file, 4, &buffers).unwrap();
    let registered = queue.registered.take();
    queue.ring.submitter().unregister_buffers().unwrap();
    queue.submit(request(Operation::Read, 3, page_buffer(&buffers))).unwrap();
    queue.register_again();
    assert_eq!(queue.registered, None, "a request is in flight");
    let mut done = Vec::new();
    queue.complete(1, &mut done);
    queue.register_again();
    assert!(registered.is_some() && queue.registered == registered);
    queue.submit(request(Operation::Read, 4, page_buffer(&buffers))).unwrap();
    queue.complete(1, &mut done);
    assert!(done.iter().all(|c| c.result.is_ok()));
    assert!(done.iter().all(|c| c.request.buf.iter().all(|&b| b == c.request.id as u8 + 1)));
}

/// Checks every kind of result that the kernel may report against a table.
#[test]
fn short_transfers_continue_at_a_block() {
    let inflight = |operation, done_bytes| InFlight {
        request: Request { id: 0, operation, offset: 0, buf: Buffer::copy_of(&[7; 8192]), len_bytes: 8192 },
        done_bytes,
    };
    use Operation::{Read, Write};
    // Operation, done before, result, block, done after (None: finished), error.
    let table = [
        (Read, 0, 8192, 512, None, 0),
        (Read, 0, 4096, 512, Some(4096), 0),
        (Read, 4096, 4096, 512, None, 0),
        (Read, 0, 1000, 1, Some(1000), 0),
        (Read, 0, 1000, 512, None, libc::EIO),
        (Read, 512, 0, 1, None, libc::EIO),
        (Read, 512, -libc::EINTR, 1, Some(512), 0),
        (Read, 512, -libc::EIO, 1, None, libc::EIO),
        (Write, 0, 8192, 512, None, 0),
        (Write, 0, 1500, 512, Some(1024), 0),
        (Write, 0, 1500, 1, Some(1500), 0),
        (Write, 1024, 100, 512, None, libc::EIO),
        (Write, 0, 0, 1, None, libc::EIO),
        (Write, 0, -libc::ENOSPC, 512, None, libc::ENOSPC),
    ];
    for (operation, before, result, block_bytes, after, errno) in table {
        let mut inflight = inflight(operation, before);
        let progress = apply_result(&mut inflight, result, block_bytes);
        let case = format!("{operation:?} {before} {result} {block_bytes}");
        match progress {
            None => assert_eq!(Some(inflight.done_bytes), after, "{case}"),
            Some(ended) => {
                assert_eq!(after, None, "{case}");
                assert_eq!(
                    ended.map_err(|e| e.errno()),
                    if errno == 0 { Ok(()) } else { Err(errno) },
                    "{case}"
                );
            }
        }
    }
    let mut end_of_file = inflight(Read, 4096);
    let cut_off = BackingError::CutOff { offset: 0, len_bytes: 8192, end: 4196 };
    assert_eq!(apply_result(&mut end_of_file, 100, 512), Some(Err(cut_off)));
}
