//! The life cycle of a disk: reset, settings, a size. The device stays the same throughout.

use crate::support::{Sandbox, have, no_loop, sh};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The size of a loop device that the kernel reports, bytes.
fn device_bytes(device: &str) -> u64 {
    let name = Path::new(device).file_name().unwrap().to_str().unwrap();
    let sectors = std::fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
    sectors.trim().parse::<u64>().unwrap() * 512
}

fn skip(test: &str) -> bool {
    let missing = ["mkfs.ext4", "mount"].iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    let why = no_loop().map(str::to_string).or(missing);
    if let Some(why) = &why {
        pagefold_testkit::skipped!("{test}: {why}");
    }
    why.is_some()
}

#[test]
fn a_loop_device_stays_through_resets_and_gets_new_sizes() {
    if skip("a_loop_device_stays_through_resets_and_gets_new_sizes") {
        return;
    }
    let s = Sandbox::new();
    let device = s.ok("disk create --size 64M --name x --export loop").trim_end().to_string();
    for (round, (codec, size)) in
        [("lz4", 16u64 << 20), ("zstd", 300 << 20), ("lzo-rle", 4096)].into_iter().enumerate()
    {
        let byte = round as u8 + 1;
        let open = OpenOptions::new().read(true).write(true).open(&device).unwrap();
        open.write_all_at(&[byte; 4096], 0).unwrap();
        open.sync_all().unwrap();
        drop(open);
        s.ok("disk set x reset=1");
        assert_eq!(device_bytes(&device), 0);
        let shown = s.show("x");
        assert_eq!((&shown["size_bytes"], &shown["state"]), (&0.into(), &"no_size".into()), "{shown}");
        assert!(s.ok("disk list").contains("no size yet"));
        assert_eq!(File::open(&device).unwrap().read_at(&mut [0; 512], 0).unwrap(), 0);
        s.run("disk set x compact=1").fails(1, "disksize");
        s.ok(&format!("disk set x comp_algorithm={codec} mem_limit=1G disksize={size}"));
        assert_eq!((device_bytes(&device), s.ok("disk show x -a codec")), (size, format!("{codec}\n")));
        s.run("disk set x disksize=1G").fails(4, "reset=1");
        s.run("disk set x comp_algorithm=lz4").fails(4, "EBUSY");
        // Nothing of the former contents is there.
        let mut page = [9; 4096];
        File::open(&device).unwrap().read_exact_at(&mut page, 0).unwrap();
        assert!(page == [0; 4096]);
    }
    s.ok("disk remove x");
    assert!(s.left().is_empty());
}

#[test]
fn a_mounted_disk_is_not_reset_and_serves_on() {
    if skip("a_mounted_disk_is_not_reset_and_serves_on") {
        return;
    }
    let s = Sandbox::new();
    let device = s.ok("disk create --size 8M --name x --export loop").trim_end().to_string();
    s.ok("disk set x reset=1");
    s.ok("disk set x disksize=64M");
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", &device]);
    sh("mount", &[&device, mount.to_str().unwrap()]);
    std::fs::write(mount.join("file"), vec![7; 1 << 20]).unwrap();
    s.run("disk set x reset=1").fails(4, mount.to_str().unwrap());
    assert_eq!((device_bytes(&device), s.show("x")["size_bytes"].as_u64()), (64 << 20, Some(64 << 20)));
    sh("sync", &["-f", mount.to_str().unwrap()]);
    sh("umount", &[mount.to_str().unwrap()]);
    sh("e2fsck", &["-fn", &device]);
    s.ok("disk set x reset=1");
    // A disk without a size can be removed.
    s.ok("disk remove x");
    assert!(s.left().is_empty());
}

#[test]
fn a_backing_is_attached_before_the_size_and_released_by_a_reset() {
    let s = Sandbox::new();
    let backing = s.path("backing");
    File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    s.ok("disk create --size 8M --name x --export nbd");
    let set = format!("disk set x backing_dev={}", backing.display());
    s.run(&set).fails(4, "EBUSY");
    s.ok("disk set x reset=1");
    s.run("disk set x backing_dev=/nonexistent/file").fails(3, "nonexistent");
    s.ok(&format!("{set} writeback_limit=7 disksize=16M"));
    assert_eq!(s.show("x")["writeback"]["path"], backing.to_str().unwrap());
    assert_eq!(s.ok("disk show x -a writeback_limit"), "7\n");
    s.ok("disk create --size 8M --name y --export nbd");
    s.ok("disk set y reset=1");
    s.run(&format!("disk set y backing_dev={}", backing.display())).fails(4, "in use");
    s.ok("disk set x reset=1");
    s.ok(&format!("disk set y backing_dev={} disksize=8M", backing.display()));
    // It is the user's file: it stays.
    s.ok("disk remove --all");
    assert!(backing.exists() && s.left().is_empty());
}
