//! Files, loop devices and mounts for tests of media, in this crate and in `pagefold-control`.

#![allow(dead_code, reason = "each test program uses a part of this module")]

use pagefold_sys::loopdev::{self, AttachedLoop, Detach};
use pagefold_testkit::skipped;
use std::fs::File;

/// An unnamed file of zeroes, on a disk rather than in memory.
pub fn sparse_file(len_bytes: u64) -> File {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(len_bytes).unwrap();
    file
}

/// A loop device on a file, detached on drop.
pub struct LoopDevice(pub AttachedLoop);

impl LoopDevice {
    pub fn attach(test: &str, file: &File) -> Option<Self> {
        match loopdev::attach(file, 512) {
            Ok(attached) => Some(LoopDevice(attached)),
            Err(e) => {
                skipped!("{test}: {e}");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = loopdev::detach_if(&self.0.path, self.0.identity, Detach::WhenLastUserCloses);
    }
}

/// Whether a program ran and succeeded.
pub fn run(program: &str, arguments: &[&str]) -> bool {
    std::process::Command::new(program).args(arguments).output().is_ok_and(|o| o.status.success())
}

/// A mount, unmounted on drop.
pub struct Mounted<'a>(pub &'a str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        assert!(run("umount", &[self.0]) || std::thread::panicking());
    }
}
