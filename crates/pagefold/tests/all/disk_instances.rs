//! The ways to name a disk, commands on several disks, and the names that are generated.

use crate::support::{Sandbox, have, no_loop, sh};
use std::path::Path;

#[test]
fn an_nbd_disk_is_named_by_its_name_uri_or_socket() {
    let s = Sandbox::new();
    s.ok("disk create --size 8M --export nbd --name other");
    let uri = s.ok("disk create --size 16M --export nbd --name x");
    let socket = s.runtime().join("x/nbd.sock");
    std::os::unix::fs::symlink(&socket, s.path("link")).unwrap();
    let default_export = uri.trim_end().replace("///x?", "///?");
    let (socket, link) = (socket.display().to_string(), s.path("link").display().to_string());
    for named in ["x", uri.trim_end(), &default_export, &socket, &link] {
        assert_eq!(s.show(named)["name"], "x", "{named}");
        assert_eq!(s.ok(&format!("disk show {named} -a size")), "16777216\n");
        s.ok(&format!("disk set {named} mem_limit=1M"));
    }
    std::fs::write(s.path("file"), "").unwrap();
    for (wrong, says) in [
        ("nbd://localhost/x".to_string(), "is not the device"),
        (s.path("nosuch").display().to_string(), "No such file"),
        (s.path("file").display().to_string(), "is not the device"),
        (s.path("").display().to_string(), "is not the device"),
        ("/dev/null".to_string(), "'pagefold disk list' lists the disks"),
    ] {
        s.run(&format!("disk show {wrong}")).fails(3, says);
    }
    s.run("disk show x:y").fails(2, "not a valid disk name");
    s.ok(&format!("disk remove {}", uri.trim_end()));
    assert_eq!(s.left(), ["other"]);
    s.run(&format!("disk remove {}", uri.trim_end())).fails(3, "is not the device");
}

#[test]
fn a_path_is_not_a_disk_where_none_ever_was() {
    let s = Sandbox::new();
    s.run("disk show /dev/null").fails(3, "is not the device");
    s.run("disk show nosuch").fails(3, "there is no disk 'nosuch'");
    s.run("disk show -- -x").fails(2, "not a valid disk name");
    s.ok("disk remove --all");
}

#[test]
fn a_loop_disk_is_named_by_its_device_or_mount_point() {
    let test = "a_loop_disk_is_named_by_its_device_or_mount_point";
    let missing = ["mkfs.ext4", "mount"].iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    s.ok("disk create --size 16M --name other --export loop");
    let device = s.ok("disk create --size 64M --name x --export loop");
    let (device, link, mount) = (device.trim_end(), s.path("by-id"), s.path("mnt"));
    std::os::unix::fs::symlink(device, &link).unwrap();
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", device]);
    let (link, mount) = (link.to_str().unwrap(), mount.to_str().unwrap());
    s.run(&format!("disk show {mount}")).fails(3, "is not the device");
    sh("mount", &[device, mount]);
    for named in [device, link, mount, &format!("{mount}/../mnt/")] {
        assert_eq!(s.show(named)["name"], "x", "{named}");
    }
    s.run(&format!("disk remove {mount}")).fails(4, "mounted");
    // A directory on the file system is not its mount point.
    s.run(&format!("disk show {mount}/lost+found")).fails(3, "is not the device");
    sh("umount", &[mount]);
    s.ok(&format!("disk remove {link}"));
    assert_eq!(s.left(), ["other"]);
    assert!(Path::new(device).exists());
    s.run(&format!("disk show {device}")).fails(3, "is not the device");
}

#[test]
fn several_disks_are_removed_and_a_failure_does_not_stop_the_others() {
    let s = Sandbox::new();
    for name in ["a", "b", "c", "d"] {
        s.ok(&format!("disk create --size 8M --export nbd --name {name}"));
    }
    let client = crate::support::Nbd::connect(&s.runtime().join("b/nbd.sock"));
    let ran = s.run("disk remove a b nosuch c");
    ran.fails(4, "disk 'b' was not removed: in use by 1 NBD client");
    assert!(ran.err.contains("there is no disk 'nosuch'"), "{ran:?}");
    assert!(ran.err.ends_with("pagefold: error: 2 of 4 disks were not removed\n"), "{ran:?}");
    assert_eq!(s.run("disk remove nosuch b").code, 3);
    drop(client);
    let mut left = s.left();
    left.sort();
    assert_eq!(left, ["b", "d"]);
    s.run("disk remove").fails(2, "DISK");
    s.run("disk remove --all b").fails(2, "--all");
    s.ok("disk remove --all --force");
    assert_eq!(s.left(), Vec::<String>::new());
    s.ok("disk remove --all");
}

#[test]
fn a_generated_name_is_never_that_of_an_earlier_disk() {
    let s = Sandbox::new();
    let create = || {
        let ran = s.run("disk create --size 8M --export nbd");
        assert_eq!(ran.code, 0, "{ran:?}");
        let name =
            ran.err.split("note: created disk '").nth(1).unwrap().split('\'').next().unwrap().to_string();
        assert!(ran.out.contains(&format!(":///{name}?")), "{ran:?}");
        name
    };
    assert_eq!(create(), "disk0");
    s.ok("disk remove disk0");
    assert_eq!(create(), "disk1");
    // Neither after its server died.
    s.kill_disk("disk1");
    assert_eq!(create(), "disk2");
    // A user may choose any name.
    s.ok("disk create --size 8M --export nbd --name disk3");
    assert_eq!(create(), "disk4");
    // Without a counter, after the highest number.
    s.ok("disk remove disk2");
    std::fs::remove_file(s.runtime().join(".counter")).unwrap();
    assert_eq!(create(), "disk5");
    std::fs::write(s.runtime().join(".counter"), "gibberish").unwrap();
    assert_eq!(create(), "disk6");
    s.ok("disk remove --all");
    assert_eq!(create(), "disk7");
}

#[test]
fn misspelt_attributes_and_codecs_are_corrected() {
    let s = Sandbox::new();
    s.ok("disk create --size 8Mi --export nbd --name x");
    assert_eq!(s.show("x")["size_bytes"], 8 << 20);
    s.run("disk set x mem_limt=1M").fails(2, "did you mean 'mem_limit'?");
    s.run("disk show x -a mm_stats").fails(2, "did you mean 'mm_stat'?");
    s.run("disk create --size 8M --codec zsdt").fails(2, "did you mean 'zstd'?");
    let ran = s.run("disk create --size 8M --codec nosuch");
    ran.fails(2, "known are lz4");
    assert!(!ran.err.contains("did you mean"), "{ran:?}");
    s.run("disk create --size 4X").fails(2, "powers of 1024");
}
