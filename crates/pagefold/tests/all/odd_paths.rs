//! Paths that are not UTF-8, as they are in file systems of older systems: of images, mount points, lists and backings.

use crate::support::{Ran, Sandbox};
use pagefold_sys::{fusedev, rundir};
use pagefold_testkit::skipped;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// "café" in ISO 8859-1.
const ODD: &[u8] = b"caf\xe9";

/// Runs a command with paths after its words.
fn run(s: &Sandbox, words: &str, paths: &[&Path]) -> String {
    let output = s.command(words).args(paths).output().unwrap();
    let (code, err) = (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(code, Some(0), "{words}: {err}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn images_and_mount_points_have_any_path() {
    if rundir::effective_uid() != 0 || fusedev::open().is_err() {
        skipped!("images_and_mount_points_have_any_path: needs root and /dev/fuse");
        return;
    }
    let s = Sandbox::new();
    let folder = s.path("").join(OsStr::from_bytes(ODD));
    let [tree, image, at, list] = ["tree", "image", "at", "list"]
        .map(|name| folder.join(OsStr::from_bytes(&[name.as_bytes(), ODD].concat())));
    fs::create_dir_all(&tree).unwrap();
    fs::create_dir(&at).unwrap();
    fs::write(tree.join("file"), "contents").unwrap();
    run(&s, "image build -q", &[&tree, &image]);
    run(&s, "image check -q", &[&image]);
    let list_arg = [b"--record=".as_slice(), list.as_os_str().as_bytes()].concat();
    run(&s, "image mount -q", &[Path::new(OsStr::from_bytes(&list_arg)), &image, &at]);
    assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "contents");
    run(&s, "image stats", &[&at]);
    let mounts: serde_json::Value = serde_json::from_str(&run(&s, "image mounts --json", &[])).unwrap();
    let bytes: Vec<serde_json::Value> = at.as_os_str().as_bytes().iter().map(|byte| (*byte).into()).collect();
    assert!(mounts.to_string().contains(&serde_json::json!({ "bytes": bytes }).to_string()), "{mounts}");
    // Another server takes the mount over.
    run(&s, "image restart -q", &[&at]);
    assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "contents");
    run(&s, "image unmount -q", &[&at]);
    assert!(fs::read(&list).is_ok() && s.left().is_empty(), "{:?}", s.left());
}

#[test]
fn backings_have_any_path() {
    let s = Sandbox::new();
    let backing = s.path("").join(OsStr::from_bytes(ODD));
    fs::File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    let mut command = s.command("disk create --name odd --size 64M --export nbd --backing");
    let created = Ran::new("disk create", command.arg(&backing).output().unwrap());
    assert_eq!(created.code, 0, "{}", created.err);
    s.ok("disk show odd");
    s.ok("disk remove odd");
}
