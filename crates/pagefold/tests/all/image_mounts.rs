//! `image mounts`, and commands on mounted images: by the directory, by the path of the image, on several at once.

use crate::image_mount::{MountSandbox, contents, kill, read_all};
use pagefold_sys::{fusedev, mounts};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
/// The state of an image that the kernel mounted.
const BY_KERNEL: &str = "mounted by the kernel";

/// A further directory to mount on, which is unmounted when dropped.
struct Further(PathBuf);

impl Further {
    fn new(sandbox: &MountSandbox, name: &str) -> Self {
        let path = sandbox.inner.path(name);
        fs::create_dir(&path).unwrap();
        Further(path)
    }

    fn is_mounted(&self) -> bool {
        mounts::at(&self.0).unwrap().is_some()
    }
}

impl Drop for Further {
    fn drop(&mut self) {
        let _ = fusedev::abort_and_unmount(&self.0);
    }
}

fn mount(sandbox: &MountSandbox, at: &Path) {
    sandbox.ok(&format!("-q image mount {} {}", sandbox.image.display(), at.display()));
}

#[test]
fn mounts_lists_mounted_images_in_columns_and_as_json() {
    let Some(sandbox) = MountSandbox::new("mounts_lists_mounted_images_in_columns_and_as_json") else {
        return;
    };
    // Other tests let the kernel mount images meanwhile.
    let served = || {
        let json: serde_json::Value = serde_json::from_str(&sandbox.ok("image mounts --json")).unwrap();
        assert_eq!(json["schema_version"], 1);
        let mounts = json["mounts"].as_array().unwrap().iter();
        mounts.filter(|mount| mount["state"] != BY_KERNEL).cloned().collect::<Vec<_>>()
    };
    let none = sandbox.ok("image mounts");
    assert!(none.contains("note: no images are mounted") || none.contains(BY_KERNEL), "{none}");
    assert!(served().is_empty());
    sandbox.ok(&sandbox.words("mount", "--memory 8M -j 2"));
    let further = Further::new(&sandbox, "further");
    mount(&sandbox, &further.0);
    read_all(&sandbox.at);
    let list = sandbox.ok("image mounts");
    let heading: Vec<_> = list.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heading, ["MOUNTPOINT", "IMAGE", "MEMORY", "LIMIT", "READS", "STATE", "PID"]);
    let (at, image) = (sandbox.at.to_str().unwrap(), sandbox.image.to_str().unwrap());
    let row = list.lines().find(|line| line.starts_with(&format!("{at} "))).unwrap();
    let row: Vec<_> = row.split_whitespace().collect();
    assert!(row[..2] == [at, image] && list.contains("8 MiB") && row.contains(&"ok"), "{list}");
    let chosen = sandbox.ok("image mounts --noheadings --bytes --output limit,mountpoint");
    let numbers: Vec<_> = chosen.lines().filter(|line| line.starts_with(char::is_numeric)).collect();
    assert_eq!(numbers, [format!("8388608   {at}"), format!("67108864  {}", further.0.display())]);
    let (code, said) = sandbox.run("image mounts --output SIZE");
    assert!(code == USAGE && said.contains("MOUNTPOINT, IMAGE"), "{code}, {said}");
    let (mounts, stats) = (served(), sandbox.stats());
    assert_eq!((mounts.len(), &mounts[0]["state"]), (2, &"ok".into()));
    assert_eq!(mounts[0]["reads"]["asked_bytes"], contents().len() as u64 + 6);
    assert_eq!(mounts[0]["server"]["pid"], stats["server"]["pid"]);
    assert_eq!(stats.as_object().unwrap().keys().next().unwrap(), "budget", "keys are sorted when parsed");
    assert_eq!(stats["schema_version"], 1);
    assert!(
        stats["server"]["peak_rss_bytes"].as_u64().unwrap() >= stats["server"]["rss_bytes"].as_u64().unwrap()
    );
    sandbox.ok("image unmount --all");
    assert!(!further.is_mounted());
    sandbox.assert_nothing_left();
    sandbox.ok("image unmount --all");
}

#[test]
fn mounts_are_found_by_the_image_and_by_links() {
    let Some(sandbox) = MountSandbox::new("mounts_are_found_by_the_image_and_by_links") else { return };
    let image = sandbox.image.display();
    let link = sandbox.inner.path("link");
    std::os::unix::fs::symlink(&sandbox.image, &link).unwrap();
    mount(&sandbox, &sandbox.at);
    for name in [&sandbox.image, &link, &sandbox.at] {
        let stats = sandbox.ok(&format!("image stats {}", name.display()));
        assert!(stats.contains(&format!("mounted on          {}\n", sandbox.at.display())), "{stats}");
    }
    let further = Further::new(&sandbox, "further");
    mount(&sandbox, &further.0);
    for verb in ["stats", "unmount"] {
        let (code, said) = sandbox.run(&format!("image {verb} {image}"));
        let both = format!("'{}', '{}'", sandbox.at.display(), further.0.display());
        assert!(code == USAGE && said.contains(&both), "{code}, {said}");
    }
    sandbox.ok(&format!("image unmount {}", further.0.display()));
    // The image has no name any more, and the mount is still found by it.
    fs::remove_file(&sandbox.image).unwrap();
    sandbox.ok(&format!("image stats {image}"));
    sandbox.ok(&format!("image unmount {image}"));
    sandbox.assert_nothing_left();
    let (code, said) = sandbox.run(&format!("image stats {image}"));
    assert!(code == NOT_FOUND && said.contains("'pagefold image mounts'"), "{code}, {said}");
}

#[test]
fn several_images_are_unmounted_despite_a_failure() {
    let Some(sandbox) = MountSandbox::new("several_images_are_unmounted_despite_a_failure") else { return };
    let further = Further::new(&sandbox, "further");
    mount(&sandbox, &sandbox.at);
    mount(&sandbox, &further.0);
    let (one, two) = (sandbox.at.display(), further.0.display());
    let (code, said) = sandbox.run(&format!("image unmount {one} /proc/none {two}"));
    assert!(
        code == NOT_FOUND && said.contains("/proc/none") && said.contains("1 of 3 images"),
        "{code}, {said}"
    );
    assert!(!further.is_mounted());
    sandbox.assert_nothing_left();
    for words in ["image unmount", "image unmount --all /proc"] {
        assert_eq!(sandbox.run(words).0, USAGE, "{words}");
    }
}

#[test]
fn mounts_and_unmount_clean_up_after_killed_servers() {
    let Some(sandbox) = MountSandbox::new("mounts_and_unmount_clean_up_after_killed_servers") else { return };
    mount(&sandbox, &sandbox.at);
    kill(&sandbox);
    let said = sandbox.ok("image mounts");
    assert!(said.contains("has died; cleaned up") && !sandbox.is_mounted(), "{said}");
    for words in [format!("image unmount {}", sandbox.image.display()), "image unmount --all".to_string()] {
        mount(&sandbox, &sandbox.at);
        kill(&sandbox);
        let (code, said) = sandbox.run(&format!("image stats {}", sandbox.at.display()));
        assert!(code == NOT_FOUND && said.contains("has died"), "{code}, {said}");
        sandbox.ok(&words);
        sandbox.assert_nothing_left();
    }
}

#[test]
fn the_kernels_mounts_have_no_statistics_and_are_unmounted() {
    const TEST: &str = "the_kernels_mounts_have_no_statistics_and_are_unmounted";
    let Some(sandbox) = MountSandbox::new(TEST) else { return };
    let (code, said) = sandbox.run(&sandbox.words("mount", "--kernel"));
    if code != 0 {
        return pagefold_testkit::skipped!("{TEST}: {said}");
    }
    let (code, said) = sandbox.run(&sandbox.words("stats", ""));
    assert!(code == NOT_FOUND && said.contains("the kernel mounted"), "{code}, {said}");
    let list = sandbox.ok("image mounts --noheadings --output MOUNTPOINT,STATE");
    let at = sandbox.at.to_str().unwrap();
    assert!(list.lines().any(|line| line.starts_with(at) && line.ends_with(BY_KERNEL)), "{list}");
    sandbox.ok("image unmount --all");
    assert!(sandbox.is_mounted(), "only servers' mounts");
    sandbox.ok(&sandbox.words("unmount", ""));
    assert!(!sandbox.is_mounted());
}

#[test]
fn mount_tells_root_who_can_access_the_files() {
    let test = "mount_tells_root_who_can_access_the_files";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let note = "only root can access the files; mount with --allow-other";
    for (more, is_told) in [("", true), ("--quiet", false), ("--allow-other", false)] {
        let said = sandbox.ok(&sandbox.words("mount", more));
        assert_eq!(said.contains(note), is_told, "{more}: {said}");
        sandbox.ok(&sandbox.words("unmount", ""));
    }
    if let Some(sandbox) = MountSandbox::for_user(test) {
        let said = sandbox.ok(&sandbox.words("mount", ""));
        assert!(!said.contains("note"), "{said}");
        let list = sandbox.ok("image mounts --noheadings --output MOUNTPOINT,STATE");
        let is_row = |line: &str| line.starts_with(sandbox.at.to_str().unwrap()) && line.ends_with(" ok");
        assert!(list.lines().any(is_row), "{list}");
        sandbox.ok("image unmount --all");
        sandbox.assert_nothing_left();
    }
}

#[test]
fn a_truncated_image_is_mounted_with_a_note() {
    let Some(sandbox) = MountSandbox::new("a_truncated_image_is_mounted_with_a_note") else { return };
    let mut bytes = fs::read(&sandbox.image).unwrap();
    let blocks = bytes.len() as u32 / 4096;
    bytes[1024 + 0x24..][..4].copy_from_slice(&(blocks + 1).to_le_bytes());
    // Without its checksum, which is of the super block.
    bytes[1024 + 8] &= !1;
    fs::write(&sandbox.image, bytes).unwrap();
    let said = sandbox.ok(&sandbox.words("mount", ""));
    assert!(said.contains("note: ") && said.contains("it is cut off"), "{said}");
    read_all(&sandbox.at);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

/// `fusermount3` unmounts only what is in /etc/mtab; here it is a program that says what the real one says without that.
#[test]
fn a_user_unmounts_without_etc_mtab() {
    let Some(sandbox) = MountSandbox::for_user("a_user_unmounts_without_etc_mtab") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    let bin = sandbox.inner.path("bin");
    fs::create_dir(&bin).unwrap();
    let program = bin.join("fusermount3");
    let script =
        "#!/bin/sh\necho 'fusermount3: failed to open /etc/mtab: No such file or directory' >&2\nexit 1\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for more in ["", "--force"] {
        let mut command = sandbox.inner.command(&sandbox.words("unmount", more));
        let output = command.env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        sandbox.assert_nothing_left();
        sandbox.ok(&sandbox.words("mount", ""));
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}
