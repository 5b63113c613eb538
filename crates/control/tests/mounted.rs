//! A test that mounts: a mounted device is refused as a backing. It is in a separate process, because children between
//! fork and exec hold the locks that other tests check.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../backing/tests/support/devices.rs"]
mod devices;

use devices::{LoopDevice, Mounted, run, sparse_file};
use pagefold_control::backing::{OpenError, OpenOptions, open_backing};
use pagefold_testkit::skipped;

const OPTIONS: OpenOptions =
    OpenOptions { size_bytes: None, min_bytes: 1 << 20, magic: *b"OURMAGIC", force: true };

#[test]
fn a_mounted_block_device_is_refused_with_its_mount_point() {
    const NAME: &str = "a_mounted_block_device_is_refused_with_its_mount_point";
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(NAME, &sparse_file(32 << 20)) else { return };
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
