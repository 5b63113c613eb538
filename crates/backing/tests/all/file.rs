//! Behaviour of files that other media do not have.

use crate::support::sparse_file;
use pagefold_backing::{Backing, BackingError, Buffers, ByteSource, Direct, FileBacking, FileOptions, Uring};
use std::fs::File;
use std::os::unix::fs::MetadataExt;

fn options(direct: Direct, uring: Uring) -> FileOptions {
    FileOptions { direct, uring }
}

#[test]
fn a_length_that_is_no_multiple_of_blocks_goes_through_the_page_cache() {
    let odd = || sparse_file(10_001);
    let backing = FileBacking::new(odd(), FileOptions::default()).unwrap();
    assert_eq!((backing.block_bytes(), backing.len_bytes()), (1, 10_001));
    assert!(backing.describe().contains("page cache"));
    backing.write_at(9_999, b"ab").unwrap();
    assert!(matches!(backing.write_at(10_000, b"ab"), Err(BackingError::OutOfRange { .. })));
    assert_eq!(backing.len_bytes(), 10_001);
    assert!(FileBacking::new(odd(), options(Direct::On, Uring::Off)).is_err());
}

#[test]
fn direct_writes_do_not_make_the_file_longer() {
    let Some(backing) = crate::support::file(Direct::On, Uring::Off) else { return };
    let end = backing.len_bytes();
    backing.write_at(end - 5, b"12345").unwrap();
    let mut last = [0; 10];
    backing.read_at(end - 10, &mut last).unwrap();
    assert_eq!(&last, b"\0\0\0\0\x0012345");
}

#[test]
fn discard_frees_space_of_the_file_system() {
    for direct in [Direct::Off, Direct::Auto] {
        let file = sparse_file(1 << 20);
        let watched = file.try_clone().unwrap();
        let backing = FileBacking::new(file, options(direct, Uring::Auto)).unwrap();
        backing.write_at(0, &vec![1; 1 << 20]).unwrap();
        backing.flush().unwrap();
        let before = watched.metadata().unwrap().blocks();
        backing.discard(0, 1 << 19).unwrap();
        let after = watched.metadata().unwrap().blocks();
        assert!(after < before, "{after} < {before}");
        assert_eq!(watched.metadata().unwrap().len(), 1 << 20);
    }
}

#[test]
fn descriptions_report_which_options_are_in_effect() {
    let backing = FileBacking::new(sparse_file(4096), options(Direct::Off, Uring::Off)).unwrap();
    assert_eq!(backing.describe(), "file, page cache, positioned I/O");
    if let Some(backing) = crate::support::file(Direct::On, Uring::On) {
        assert_eq!(backing.describe(), "file, direct I/O, io_uring");
        assert!(backing.block_bytes() >= 512);
    }
}

#[test]
fn a_character_device_is_refused() {
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let error = FileBacking::new(null, FileOptions::default()).unwrap_err();
    assert_eq!(error.errno(), libc::ENOTBLK);
}

#[test]
fn an_empty_file_is_an_empty_medium() {
    let backing = FileBacking::new(sparse_file(0), FileOptions::default()).unwrap();
    assert_eq!(backing.len_bytes(), 0);
    assert!(backing.read_at(0, &mut [0]).is_err());
    let buffers = Buffers::new(4096).unwrap();
    assert_eq!(backing.queue(4, &buffers).unwrap().complete(1, &mut Vec::new()), 0);
}

#[test]
fn a_write_to_a_file_open_for_reading_fails_with_ebadf() {
    let path = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    path.as_file().set_len(1 << 16).unwrap();
    for uring in [Uring::Auto, Uring::Off] {
        let read_only = File::open(path.path()).unwrap();
        let backing = FileBacking::new(read_only, options(Direct::Auto, uring)).unwrap();
        assert_eq!(backing.write_at(0, &[1; 4096]).unwrap_err().errno(), libc::EBADF);
        let buffers = Buffers::new(1 << 16).unwrap();
        let mut queue = backing.queue(2, &buffers).unwrap();
        let buf = buffers.get(4096, pagefold_backing::Demand::Required).unwrap();
        let operation = pagefold_backing::Operation::Write;
        queue
            .submit(pagefold_backing::Request { id: 1, operation, offset: 4096, buf, len_bytes: 4096 })
            .unwrap();
        let mut done = Vec::new();
        queue.complete(1, &mut done);
        assert_eq!(done[0].result.as_ref().unwrap_err().errno(), libc::EBADF);
        assert_eq!(done[0].request.buf.len(), 4096);
    }
}
