//! A test that mounts: writes to a full file system fail with ENOSPC. It runs programs, so it is in a separate process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "support/devices.rs"]
mod devices;

use devices::{Mounted, run};
use pagefold_backing::{Backing, Buffers, Demand, FileBacking, FileOptions, Operation, Request, Uring};
use pagefold_testkit::skipped;
use std::fs::File;

/// A sparse file can be larger than its file system: a write then fails when the file system is full.
#[test]
fn writes_to_a_full_file_system_fail_with_enospc() {
    const NAME: &str = "writes_to_a_full_file_system_fail_with_enospc";
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    if !run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", place]) {
        return skipped!("{NAME}: nothing can be mounted here");
    }
    let mounted = Mounted(place);
    let errors = [Uring::Auto, Uring::Off].map(|uring| {
        let path = folder.path().join(format!("{uring:?}"));
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(4 << 20).unwrap();
        let backing = FileBacking::new(file, FileOptions { uring, ..Default::default() }).unwrap();
        let single = backing.write_at(0, &vec![1; 2 << 20]).unwrap_err().errno();
        let buffers = Buffers::new(2 << 20).unwrap();
        let mut queue = backing.queue(1, &buffers).unwrap();
        let buf = buffers.get(2 << 20, Demand::Required).unwrap();
        let len_bytes = buf.len();
        queue
            .submit(Request { id: 0, operation: Operation::Write, offset: 2 << 20, buf, len_bytes })
            .unwrap();
        let mut done = Vec::new();
        queue.complete(1, &mut done);
        [single, done[0].result.as_ref().unwrap_err().errno()]
    });
    drop(mounted);
    assert_eq!(errors, [[libc::ENOSPC; 2]; 2]);
}
