//! Files and loop devices for the tests of `open_backing`.

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
