//! The tracer itself: it finds each store to the memory, by instructions and by system calls, and nothing between.

use super::{note_thread, trace, tracer};
use crate::child::{self, Shared, file_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use tracer::Stop;

const LEN: usize = 4 * 4096;

/// Stores eight words, two of them equal to the old ones, copies a page, and changes the file by system calls.
pub fn run_child(shared: Shared) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file_of(&shared.memory);
    // SAFETY: a new mapping of a file that has this length.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0).cast::<u64>()
    };
    let page = [9u8; 4096];
    note_thread(&shared.notes);
    tracer::stop_to_be_traced();
    for (at, value) in [(0, 1), (1, 2), (600, 3), (0, 1), (2, 4), (511, 5), (512, 6), (1, 2)] {
        // SAFETY: the word lies in the mapping, which nothing else in this process accesses.
        unsafe { base.add(at).write_volatile(value) };
    }
    // SAFETY: the same for a whole page.
    unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), base.add(1024).cast(), page.len()) };
    fd.write_all_at(&[7; 100], 3 * 4096 + 50).unwrap();
    shared.memory.punch(0, 4096).unwrap();
    tracer::end_of_traced();
    // SAFETY: as above; the memory can be written again.
    unsafe { base.write_volatile(8) };
}

#[test]
fn the_tracer_finds_each_store() {
    let shared = Shared::new();
    shared.memory.set_len(LEN as u64).unwrap();
    let memory = file_of(&shared.memory);
    let bytes = || {
        let mut bytes = vec![0; LEN];
        memory.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let mut expected = bytes();
    let mut child = child::start("toy .", &shared);
    let mut tracer = trace(&mut child, &shared);
    for (at, value) in [(0, 1u64), (1, 2), (600, 3), (0, 1), (2, 4), (511, 5), (512, 6), (1, 2)] {
        assert!(matches!(tracer.next(), Stop::Store { .. }));
        expected[at * 8..][..8].copy_from_slice(&value.to_le_bytes());
        assert!(bytes() == expected, "word {at}");
    }
    // A copy may go up or down, and its last store may overlap the one before.
    let mut copied = 0;
    let call = loop {
        match tracer.next() {
            Stop::Store { .. } => {
                let nines = bytes().iter().filter(|byte| **byte == 9).count();
                assert!((copied..=copied + 64).contains(&nines), "{copied} to {nines}");
                copied = nines;
            }
            stop => break stop,
        }
    };
    assert_eq!((call, copied), (Stop::Call { number: libc::SYS_pwrite64 as u64 }, 4096));
    assert_eq!(bytes()[3 * 4096 + 50..][..100], [7; 100]);
    assert_eq!(tracer.next(), Stop::Call { number: libc::SYS_fallocate as u64 });
    assert_eq!(bytes()[..4096], [0; 4096]);
    assert_eq!(tracer.next(), Stop::End);
    assert!(child.wait().unwrap().success());
    assert_eq!(bytes()[0], 8, "the process went on");
}
