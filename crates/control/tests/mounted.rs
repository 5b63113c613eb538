//! A test that mounts: a mounted device is refused as a backing. It is in a separate process, because children between
//! fork and exec hold the locks that other tests check.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::LoopDevice;
use pagefold_control::backing::{OpenError, OpenOptions, open_backing};
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
