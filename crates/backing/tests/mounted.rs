//! Tests that mount: a mounted device is refused as a backing, and a full file system fails with ENOSPC. They are in a
//! separate process, because children between fork and exec hold the locks that other tests check.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::LoopDevice;
use pagefold_backing::{
    Backing, Buffers, Demand, FileBacking, FileOptions, OpenError, OpenOptions, Operation, Request, Uring,
    open_backing,
};
use pagefold_testkit::skipped;

const OPTIONS: OpenOptions =
    OpenOptions { size_bytes: None, min_bytes: 1 << 20, magic: *b"OURMAGIC", force: true };

fn run(program: &str, arguments: &[&str]) -> bool {
    std::process::Command::new(program).args(arguments).output().is_ok_and(|o| o.status.success())
}

/// A mount, unmounted on drop.
struct Mounted<'a>(&'a str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        assert!(run("umount", &[self.0]) || std::thread::panicking());
    }
}

#[test]
fn a_mounted_block_device_is_refused_with_its_mount_point() {
    const NAME: &str = "a_mounted_block_device_is_refused_with_its_mount_point";
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(NAME, &crate::support::sparse_file(32 << 20)) else { return };
    let (path, place) = (device.0.path.to_str().unwrap(), folder.path().to_str().unwrap());
    if !run("mkfs.ext4", &["-q", path]) || !run("mount", &[path, place]) {
        return skipped!("{NAME}: no ext4 can be made and mounted here");
    }
    let mounted = Mounted(place);
    let error = open_backing(&device.0.path, &OPTIONS).unwrap_err();
    drop(mounted);
    assert!(matches!(&error, OpenError::Claimed { uses, .. } if !uses.is_empty()), "{error}");
    assert!(error.to_string().contains(&format!("mounted at {place}")), "{error}");
}

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
    let options = OpenOptions { size_bytes: Some(4 << 20), ..OPTIONS };
    let errors = [Uring::Auto, Uring::Off].map(|uring| {
        let opened = open_backing(&folder.path().join(format!("{uring:?}")), &options).unwrap();
        let backing = FileBacking::new(opened.file, FileOptions { uring, ..Default::default() }).unwrap();
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
