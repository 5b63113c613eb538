//! Disks with the loop export, which needs root, FUSE and loop devices.

use crate::support::{Sandbox, alone_with_swap, have, is_running, kill, no_loop, sh, wait_until};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A sandbox with a loop disk `x`; `None`, after printing the reason, if that is not possible here.
fn disk(test: &str, tools: &[&str]) -> Option<(Sandbox, PathBuf)> {
    let missing = tools.iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return None;
    }
    let s = Sandbox::new();
    let out = s.ok("disk create --size 128M --name x --export loop");
    Some((s, out.trim_end().into()))
}

/// Whether the loop device is attached to a file of this sandbox.
fn is_attached(s: &Sandbox, device: &Path) -> bool {
    let name = device.file_name().unwrap().to_str().unwrap();
    let backing = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
    backing.is_ok_and(|b| b.contains(s.runtime().to_str().unwrap()))
}

fn assert_nothing_left(s: &Sandbox, device: &Path) {
    assert!(!is_attached(s, device), "{} is still attached", device.display());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(s.runtime().to_str().unwrap()), "{mounts}");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn auto_chooses_the_loop_export_if_it_works() {
    if let Some(why) = no_loop() {
        pagefold_testkit::skipped!("auto_chooses_the_loop_export_if_it_works: {why}");
        return;
    }
    let s = Sandbox::new();
    let device: PathBuf = s.ok("disk create --size 8M --name x").trim_end().into();
    assert!(device.starts_with("/dev") && is_attached(&s, &device));
    s.ok("disk remove x");
    assert_nothing_left(&s, &device);
}

#[test]
fn a_disk_with_a_mounted_file_system_cannot_be_removed() {
    let Some((s, device)) =
        disk("a_disk_with_a_mounted_file_system_cannot_be_removed", &["mkfs.ext4", "mount"])
    else {
        return;
    };
    let (device_text, mount) = (device.to_str().unwrap(), s.path("mnt"));
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", device_text]);
    sh("mount", &[device_text, mount.to_str().unwrap()]);
    let text = "some text that compresses well\n".repeat(10_000);
    std::fs::write(mount.join("file"), &text).unwrap();
    let pid = s.server_pid("x");
    let users = s.show("x")["used_by"][0].as_str().unwrap().to_string();
    assert!(users.contains(mount.to_str().unwrap()), "{users}");
    for words in ["disk remove x", "disk remove x --force"] {
        s.run(words).fails(4, mount.to_str().unwrap());
    }
    // After SIGTERM, the server goes on serving while the device is in use.
    kill(pid, "TERM");
    sh("umount", &[mount.to_str().unwrap()]);
    sh("mount", &[device_text, mount.to_str().unwrap()]);
    assert!(std::fs::read_to_string(mount.join("file")).unwrap() == text);
    sh("umount", &[mount.to_str().unwrap()]);
    s.ok("disk remove x");
    assert!(!is_running(pid));
    assert_nothing_left(&s, &device);
}

/// Its contents cannot be reached, and an unmount would wait for it: so it is killed although its disk is mounted.
#[test]
fn a_stopped_server_of_a_mounted_disk_is_killed_with_force() {
    let test = "a_stopped_server_of_a_mounted_disk_is_killed_with_force";
    let Some((s, device)) = disk(test, &["mkfs.ext4", "mount", "umount"]) else { return };
    let (device_text, mount) = (device.to_str().unwrap(), s.path("mnt"));
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", device_text]);
    sh("mount", &[device_text, mount.to_str().unwrap()]);
    std::fs::write(mount.join("file"), "not yet on the disk\n".repeat(10_000)).unwrap();
    let pid = s.server_pid("x");
    // A server that answers is never killed under a mount.
    s.run("disk remove x --force").fails(4, mount.to_str().unwrap());
    assert!(is_running(pid));
    kill(pid, "STOP");
    let refused = s.run("disk remove x");
    refused.fails(1, &format!("'kill -CONT {pid}'"));
    refused.fails(1, "'disk remove --force' kills it, mounted or not");
    let left = s.run("disk remove x --force");
    left.fails(4, &format!("umount -l '{}'", mount.display()));
    left.fails(4, "the contents are lost");
    assert!(!is_running(pid));
    // Nothing waits any more.
    let synced =
        std::fs::File::open(&mount).and_then(|folder| rustix::fs::syncfs(&folder).map_err(Into::into));
    assert!(synced.is_err());
    sh("umount", &["-l", mount.to_str().unwrap()]);
    wait_until("the rest is removed", || s.run("disk list").code == 0 && s.left().is_empty());
    assert_nothing_left(&s, &device);
}

#[test]
fn an_export_whose_threads_have_ended_is_reported() {
    let Some((s, device)) = disk("an_export_whose_threads_have_ended_is_reported", &[]) else { return };
    assert_eq!(s.show("x")["export_failure"], serde_json::Value::Null);
    s.abort_export("x");
    s.assert_export_ended("x");
    assert!(std::fs::read(&device).is_err());
    s.ok("disk remove x");
    assert_nothing_left(&s, &device);
}

/// Copies real files to a file system on a disk, checks the file system, and compares the files. The files are a tree
/// that every machine with a C compiler has; two codecs are used.
#[test]
fn real_files_are_read_back_unchanged_on_ext4_and_xfs() {
    let test = "real_files_are_read_back_unchanged_on_ext4_and_xfs";
    let tree = "/usr/include";
    let jobs: [(&str, &str, &[&str]); 2] =
        [("mkfs.ext4", "lz4", &["e2fsck", "-fn"]), ("mkfs.xfs", "zstd", &["xfs_repair", "-n"])];
    for (mkfs, codec, check) in jobs {
        let Some((s, _small)) = disk(test, &[mkfs, check[0], "mount", "cp", "diff"]) else { return };
        let device: PathBuf = s
            .ok(&format!("disk create --size 1G --name tree --export loop --codec {codec}"))
            .trim_end()
            .into();
        let (device_text, mount) = (device.to_str().unwrap(), s.path("mnt"));
        std::fs::create_dir(&mount).unwrap();
        let copy = mount.join("tree");
        sh(mkfs, &["-q", device_text]);
        sh("mount", &[device_text, mount.to_str().unwrap()]);
        sh("cp", &["-a", tree, copy.to_str().unwrap()]);
        sh("umount", &[mount.to_str().unwrap()]);
        sh(check[0], &[check[1], device_text]);
        // After mounting it again, every byte comes from the store and not from the page cache.
        sh("mount", &["-o", "ro", device_text, mount.to_str().unwrap()]);
        sh("diff", &["-r", "--no-dereference", tree, copy.to_str().unwrap()]);
        sh("umount", &[mount.to_str().unwrap()]);
        let stored = s.show("tree")["original_bytes"].as_u64().unwrap();
        assert!(stored > 8 << 20, "only {stored} bytes reached the store");
        s.ok("disk remove tree");
        s.ok("disk remove x");
        assert_nothing_left(&s, &device);
    }
}

#[test]
fn a_disk_used_as_swap_is_removed_only_with_force() {
    let _alone = alone_with_swap();
    let Some((s, device)) = disk("a_disk_used_as_swap_is_removed_only_with_force", &["mkswap", "swapon"])
    else {
        return;
    };
    sh("mkswap", &["-q", device.to_str().unwrap()]);
    sh("swapon", &[device.to_str().unwrap()]);
    s.run("disk remove x").fails(4, "swap");
    s.ok("disk remove x --force");
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    assert!(!swaps.contains(&format!("{} ", device.display())), "{swaps}");
    assert_nothing_left(&s, &device);
}

#[test]
fn the_next_command_cleans_up_after_sigkill() {
    let Some((s, device)) = disk("the_next_command_cleans_up_after_sigkill", &[]) else { return };
    let file = std::fs::OpenOptions::new().write(true).open(&device).unwrap();
    // Dirty pages in the cache of the device, which cannot be written any more.
    file.write_all_at(&[7; 1 << 20], 0).unwrap();
    drop(file);
    s.kill_disk("x");
    let ran = s.run("disk list");
    assert!(ran.code == 0 && ran.err.contains("cleaned up"), "{ran:?}");
    assert_nothing_left(&s, &device);
}

#[test]
fn after_sigkill_a_mounted_disk_is_cleaned_up_once_it_is_unmounted() {
    let tools = ["mkfs.ext4", "mount"];
    let Some((s, device)) = disk("after_sigkill_a_mounted_disk_is_cleaned_up_once_it_is_unmounted", &tools)
    else {
        return;
    };
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", device.to_str().unwrap()]);
    sh("mount", &[device.to_str().unwrap(), mount.to_str().unwrap()]);
    s.kill_disk("x");
    for words in ["disk remove x", "disk remove x --force", "disk show x"] {
        s.run(words).fails(4, &format!("umount '{}'", mount.display()));
    }
    sh("umount", &[mount.to_str().unwrap()]);
    s.ok("disk list");
    assert_nothing_left(&s, &device);
}

#[test]
fn sigterm_detaches_the_loop_device_and_the_next_command_cleans_up() {
    let Some((s, device)) = disk("sigterm_detaches_the_loop_device_and_the_next_command_cleans_up", &[])
    else {
        return;
    };
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has exited", || !is_running(pid));
    assert!(!is_attached(&s, &device));
    let ran = s.run("disk list");
    assert!(ran.code == 0 && ran.err.contains("has ended; cleaned up"), "{ran:?}");
    assert_nothing_left(&s, &device);
}

#[test]
fn a_foreground_command_cleans_up_its_loop_disk() {
    if let Some(why) = no_loop() {
        pagefold_testkit::skipped!("a_foreground_command_cleans_up_its_loop_disk: {why}");
        return;
    }
    let s = Sandbox::new();
    let mut child = s.quietly("disk create --size 8M --name x --export loop -f").spawn().unwrap();
    wait_until("the disk exists", || s.run("disk show x").code == 0);
    let device: PathBuf = s.show("x")["device"].as_str().unwrap().into();
    kill(child.id() as i32, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_nothing_left(&s, &device);
}

#[test]
fn no_thread_of_the_server_can_mount() {
    let Some((s, _)) = disk("no_thread_of_the_server_can_mount", &[]) else { return };
    // If RLIMIT_MEMLOCK could not be raised, the server keeps CAP_IPC_LOCK (bit 14).
    let allowed = 1u64 << 14;
    let pid = s.server_pid("x");
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("CapPrm:\t")).unwrap();
        assert_eq!(u64::from_str_radix(line, 16).unwrap() & !allowed, 0, "{status}");
    }
}

#[test]
fn a_disk_with_small_sectors_takes_what_was_made_for_them() {
    let test = "a_disk_with_small_sectors_takes_what_was_made_for_them";
    if let Some(why) = no_loop() {
        return pagefold_testkit::skipped!("{test}: {why}");
    }
    let s = Sandbox::new();
    // The beginning of a FAT file system.
    let mut contents = [0; 8192];
    contents[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
    contents[11..13].copy_from_slice(&512u16.to_le_bytes());
    contents[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (options, sector_bytes) in [("", 4096), (" --sector-size 512", 512)] {
        let device = s.ok(&format!("disk create -q --export loop --size 8M --name x{options}"));
        let device = device.trim_end();
        let queue = format!("/sys/block/{}/queue/logical_block_size", device.trim_start_matches("/dev/"));
        assert_eq!(std::fs::read_to_string(queue).unwrap(), format!("{sector_bytes}\n"));
        assert!(!s.ok("disk show x").contains("--sector-size"));
        let file = s.path("contents");
        std::fs::write(&file, contents).unwrap();
        let (input, output) = (format!("if={}", file.display()), format!("of={device}"));
        // Each block of dd is a request.
        let size = format!("bs={sector_bytes}");
        sh("dd", &[&input, &output, &size, "oflag=direct", "status=none"]);
        let mut read = vec![0; contents.len()];
        std::fs::File::open(device).unwrap().read_exact(&mut read).unwrap();
        assert!(read == contents, "{sector_bytes}");
        let shown = s.ok("disk show x");
        let warns = shown.contains("FAT or NTFS file system made for sectors of 512 bytes");
        assert_eq!(warns, sector_bytes == 4096, "{shown}");
        s.ok("disk remove x");
    }
    s.run("disk create --export loop --size 8M --sector-size 1024").fails(2, "512");
    assert_eq!(s.left(), Vec::<String>::new());
}
