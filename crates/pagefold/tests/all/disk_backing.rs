//! The backing of a disk: created, refused, passed to the server, and removed with the disk.

use crate::support::writeback::*;
use crate::support::{Sandbox, is_root, is_running, kill, wait_until};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

#[test]
fn a_new_backing_file_is_private_sparse_and_removed_with_the_disk() {
    let s = Sandbox::new();
    let file = s.path("backing");
    let words = "disk create --export nbd --name x --size 64M --backing";
    let ran = s.run(&format!("{words} {}", file.display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let shown = s.ok("disk show x");
    assert!(shown.contains("(not encrypted; removed with the disk)"), "{ran:?} {shown}");
    let meta = std::fs::metadata(&file).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    assert_eq!(meta.len(), 88 * MIB);
    assert!(meta.blocks() * 512 < 4 * MIB, "{} blocks", meta.blocks());
    assert_eq!(s.ok("disk show x -a backing_dev"), format!("{}\n", file.display()));
    let shown = s.show("x");
    assert_eq!(shown["writeback"]["path"], file.to_str().unwrap());
    assert_eq!(
        (&shown["writeback"]["layout"], &shown["writeback"]["created"]),
        (&"log".into(), &true.into())
    );
    s.ok("disk remove x");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());

    let file = create(&s, "--size 64M --backing-size 10485700 --compressed-writeback off");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 10 * MIB);
    assert_eq!(s.ok("disk show x -a compressed_writeback"), "0\n");
    assert_eq!(s.show("x")["writeback"]["layout"], "blocks");
    // After SIGTERM, the next command removes the file: the server has no access to the path.
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has exited", || !is_running(pid));
    let ran = s.run("disk list");
    assert!(ran.err.contains("has ended; cleaned up"), "{ran:?}");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_foreground_command_removes_its_backing_file() {
    let s = Sandbox::new();
    let file = s.path("backing");
    let words = format!("disk create --export nbd --size 8M --name x -f --backing {}", file.display());
    let mut child = s.quietly(&words).spawn().unwrap();
    wait_until("the disk exists", || s.run("disk show x").code == 0);
    assert!(file.exists());
    kill(child.id() as i32, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn unsuitable_backings_are_refused_and_not_changed() {
    let s = Sandbox::new();
    let at = |name: &str| s.path(name).display().to_string();
    std::fs::write(s.path("foreign"), "x".repeat(8 << 20)).unwrap();
    std::fs::write(s.path("small"), "").unwrap();
    let large = std::fs::File::create(s.path("large")).unwrap();
    large.set_len(32 * MIB).unwrap();
    std::fs::create_dir(s.path("folder")).unwrap();
    symlink(s.path("large"), s.path("link")).unwrap();
    symlink(s.path("nowhere"), s.path("dangling")).unwrap();
    for (words, code, says) in [
        (at("foreign"), 2, "--force-backing"),
        (at("small"), 2, "at least"),
        (at("folder"), 2, "a folder"),
        (at("link"), 2, "symbolic link"),
        (at("dangling"), 2, "symbolic link"),
        (at("no/such/folder"), 2, "make it first"),
        (format!("{} --backing-size 1M", at("new")), 2, "of 1 MiB"),
        (format!("{} --backing-size 1M", at("new")), 2, "at least 4 MiB"),
        (format!("{} --backing-size lots", at("new")), 2, "--backing-size"),
        (format!("{} --backing-size 16M", at("large")), 2, "32 MiB"),
        (format!("{} --writeback-rate x", at("new")), 2, "--writeback-rate"),
        (format!("{} --compressed-writeback maybe", at("new")), 2, "on"),
        ("/dev/null".to_string(), 2, "character device"),
    ] {
        s.run(&format!("disk create --export nbd --size 8M --name x --backing {words}")).fails(code, says);
        assert_eq!(s.left(), Vec::<String>::new(), "{words}");
    }
    s.run("disk create --size 8M --writeback-rate 1M").fails(2, "--backing");
    assert!(!s.path("new").exists() && !s.path("nowhere").exists());
    assert_eq!(std::fs::metadata(s.path("foreign")).unwrap().len(), 8 << 20);
    assert!(s.path("link").is_symlink());
}

#[test]
fn a_backing_without_write_permission_is_refused() {
    if !is_root() {
        pagefold_testkit::skipped!(
            "a_backing_without_write_permission_is_refused: needs root to own the file"
        );
        return;
    }
    let s = Sandbox::for_user(65534);
    let file = s.path("backing");
    std::fs::File::create(&file).unwrap().set_len(32 * MIB).unwrap();
    let words = format!("disk create --export nbd --size 8M --name x --backing {}", file.display());
    s.run(&words).fails(5, "cannot be opened");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn an_existing_backing_file_keeps_its_size_and_stays() {
    let s = Sandbox::new();
    let file = s.path("backing");
    std::fs::write(&file, "x".repeat(16 << 20)).unwrap();
    let words = "disk create --export nbd --size 8M --name x --force-backing --backing";
    let ran = s.run(&format!("{words} {}", file.display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(s.ok("disk show x").contains("stays when the disk is removed"));
    let data = pages(256, 1);
    let mut client = connect(&s);
    write(&mut client, &data);
    write_back(&s, "--all");
    assert_reads(&mut client, &data);
    drop(client);
    wait_until("the disk can be removed", || s.run("disk remove x").code == 0);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 16 << 20);
    // The file is a backing by now, so it needs no --force-backing.
    create(&s, "--size 8M --backing-size 16M");
    s.ok("disk remove x");
    assert!(file.exists());
}

#[test]
fn a_backing_in_use_by_another_disk_is_refused() {
    let s = Sandbox::new();
    let file = create(&s, "--size 8M");
    for force in ["", "--force-backing"] {
        let words =
            format!("disk create --export nbd --size 8M --name y {force} --backing {}", file.display());
        s.run(&words).fails(4, "in use by another pagefold disk");
    }
    assert_eq!(s.left(), ["x"]);
    assert!(file.exists());
}

#[test]
fn a_failed_create_removes_its_backing_file() {
    let s = Sandbox::new();
    let file = s.path("backing");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let words = format!("disk create --size 8M --name x --listen {address} --backing {}", file.display());
    s.run(&words).fails(1, "listening on");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn an_interrupted_create_leaves_no_backing_file() {
    for moment in 0..20u64 {
        let s = Sandbox::new();
        let file = s.path("backing");
        let words = format!("disk create --export nbd --size 8M --name x -q --backing {}", file.display());
        let mut child = s.quietly(&words).spawn().unwrap();
        // A sleep, because the delay itself is the parameter of the test.
        std::thread::sleep(std::time::Duration::from_micros(moment * 700));
        kill(child.id() as i32, "INT");
        if !child.wait().unwrap().success() {
            wait_until("nothing is left", || s.left().is_empty() && !file.exists());
        }
    }
}

#[test]
fn the_next_command_removes_the_backing_file_after_sigkill() {
    let s = Sandbox::new();
    let file = create(&s, "--size 8M");
    s.kill_disk("x");
    let ran = s.run("disk list");
    assert!(ran.code == 0 && ran.err.contains("cleaned up"), "{ran:?}");
    assert!(!file.exists());

    // Another file at the same path is not removed.
    let file = create(&s, "--size 8M");
    std::fs::rename(&file, s.path("moved")).unwrap();
    std::fs::write(&file, "mine").unwrap();
    s.kill_disk("x");
    s.ok("disk list");
    assert_eq!(s.left(), Vec::<String>::new());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn the_server_needs_no_access_to_the_path_of_the_backing() {
    if !is_root() {
        pagefold_testkit::skipped!("the_server_needs_no_access_to_the_path_of_the_backing: needs root");
        return;
    }
    let s = Sandbox::new();
    let folder = s.path("closed");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).unwrap();
    let file = folder.join("backing");
    s.ok(&format!("disk create -q --export nbd --size 8M --name x --backing {}", file.display()));
    // Without capabilities, the server cannot enter the folder of another user.
    let status = std::fs::read_to_string(format!("/proc/{}/status", s.server_pid("x"))).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let open = std::fs::read_dir(format!("/proc/{}/fd", s.server_pid("x"))).unwrap().flatten();
    let open = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link == file)).count();
    assert!(open > 0);
    let data = pages(512, 2);
    let mut client = connect(&s);
    write(&mut client, &data);
    assert_eq!(write_back(&s, "--all")["written_back_pages"], 384);
    assert_reads(&mut client, &data);
    s.ok("disk remove x --force");
    assert!(!file.exists());
}

#[test]
fn a_user_without_privileges_writes_back_to_a_file() {
    if !is_root() {
        pagefold_testkit::skipped!(
            "a_user_without_privileges_writes_back_to_a_file: needs root to become another user"
        );
        return;
    }
    let s = Sandbox::for_user(65534);
    let file = s.path("backing");
    let ran = s.run(&format!("disk create --size 8M --name x --backing {}", file.display()));
    assert!(ran.code == 0 && ran.err.contains("using the NBD export"), "{ran:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().uid(), 65534);
    let data = pages(512, 10);
    let mut client = connect(&s);
    write(&mut client, &data);
    assert_eq!(write_back(&s, "--all")["written_back_pages"], 384);
    assert_reads(&mut client, &data);
    s.ok("disk remove x --force");
    assert!(!file.exists());
}

#[test]
fn a_block_device_is_a_backing_unless_it_is_in_use() {
    let tools = ["losetup", "mkfs.ext4", "mount", "mkswap", "swapon"];
    let _alone = crate::support::alone_with_swap();
    if let Some(why) = no_devices(&tools) {
        pagefold_testkit::skipped!("a_block_device_is_a_backing_unless_it_is_in_use: {why}");
        return;
    }
    let s = Sandbox::new();
    let file = s.path("device");
    std::fs::File::create(&file).unwrap().set_len(64 * MIB).unwrap();
    let device = LoopDevice::on(&file);
    let name = device.0.as_str();
    let words = format!("disk create --export nbd --size 16M --name x --backing {name}");

    let ran = s.run(&words);
    assert!(ran.code == 0 && s.ok("disk show x").contains("stays when"), "{ran:?}");
    let data = pages(1024, 8);
    let mut client = connect(&s);
    write(&mut client, &data);
    assert_eq!(write_back(&s, "--all")["written_back_pages"], 768);
    assert_reads(&mut client, &data);
    assert!(s.show("x")["writeback"]["medium"].as_str().unwrap().contains("block device"));
    s.run(&words.replace("--name x", "--name y")).fails(4, "in use");
    s.ok("disk remove x --force");

    crate::support::sh("mkswap", &["-q", name]);
    s.run(&words).fails(2, "--force-backing");
    crate::support::sh("swapon", &[name]);
    s.run(&format!("{words} --force-backing")).fails(4, "swap");
    crate::support::sh("swapoff", &[name]);

    crate::support::sh("mkfs.ext4", &["-q", "-F", name]);
    s.run(&words).fails(2, "--force-backing");
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    crate::support::sh("mount", &[name, mount.to_str().unwrap()]);
    s.run(&format!("{words} --force-backing")).fails(4, mount.to_str().unwrap());
    crate::support::sh("umount", &[mount.to_str().unwrap()]);
    assert_eq!(s.left(), Vec::<String>::new());
    s.ok(&format!("{words} --force-backing -q"));
    s.ok("disk remove x");
    assert!(Path::new(name).exists());
}

#[test]
fn a_full_file_system_under_the_backing_loses_no_page() {
    if let Some(why) = no_devices(&["mount"]) {
        pagefold_testkit::skipped!("a_full_file_system_under_the_backing_loses_no_page: {why}");
        return;
    }
    let s = Sandbox::new();
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    crate::support::sh("mount", &["-t", "tmpfs", "-o", "size=8m", "none", mount.to_str().unwrap()]);
    let file = mount.join("backing");
    s.ok(&format!("disk create -q --export nbd --size 64M --name x --backing {}", file.display()));
    // A quarter, 16 MiB, does not compress: more than the file system has space for.
    let data = pages(16384, 9);
    let mut client = connect(&s);
    write(&mut client, &data);
    let ran = s.run("disk writeback x --all");
    ran.fails(1, "ENOSPC");
    assert!(ran.out.contains("stayed: their write failed"), "{ran:?}");
    let shown = s.show("x");
    let failed = shown["writeback"]["failed_pages"].as_u64().unwrap();
    assert!(failed > 0 && shown["writeback"]["pages"].as_u64().unwrap() > 0, "{}", shown["writeback"]);
    assert!(s.ok("disk show x").contains("stayed in memory because their write failed"));
    assert_reads(&mut client, &data);
    s.ok("disk remove x --force");
    assert!(!file.exists());
    crate::support::sh("umount", &[mount.to_str().unwrap()]);
}
