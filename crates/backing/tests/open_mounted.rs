//! A mounted device is nobody's backing. In a process of its own: its children would hold the locks that
//! other tests look at.

#![allow(clippy::unwrap_used)]

mod media;

use media::LoopDevice;
use pagefold_backing::{OpenError, OpenOptions, open_backing};
use pagefold_testkit::skipped;

const OPTIONS: OpenOptions =
    OpenOptions { size_bytes: None, min_bytes: 1 << 20, magic: *b"OURMAGIC", force: true };

#[test]
fn a_mounted_block_device_is_refused_with_the_place() {
    const NAME: &str = "a_mounted_block_device_is_refused_with_the_place";
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(NAME, &media::sparse_file(32 << 20)) else { return };
    let run = |program: &str, arguments: &[&str]| {
        std::process::Command::new(program).args(arguments).output().is_ok_and(|o| o.status.success())
    };
    let (path, place) = (device.0.path.to_str().unwrap(), folder.path().to_str().unwrap());
    if !run("mkfs.ext4", &["-q", path]) || !run("mount", &[path, place]) {
        return skipped!("{NAME}: no ext4 can be made and mounted here");
    }
    let error = open_backing(&device.0.path, &OPTIONS).unwrap_err();
    assert!(run("umount", &[place]));
    assert!(matches!(&error, OpenError::Claimed { uses, .. } if !uses.is_empty()), "{error}");
    assert!(error.to_string().contains(&format!("mounted at {place}")), "{error}");
}
