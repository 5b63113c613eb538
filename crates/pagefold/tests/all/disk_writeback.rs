//! Disks that write back pages: selection, counters, reading back, and the ways in which a pass ends.

use crate::support::writeback::*;
use crate::support::{Nbd, Sandbox, is_running, kill, wait_until};
use std::path::PathBuf;
use std::process::Stdio;

#[test]
fn a_file_system_on_a_loop_disk_is_written_back_and_read_back_unchanged() {
    let test = "a_file_system_on_a_loop_disk_is_written_back_and_read_back_unchanged";
    let tree = "/usr/include";
    if let Some(why) = no_devices(&["mkfs.ext4", "e2fsck", "mount", "cp", "diff"]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let (file, mount) = (s.path("backing"), s.path("mnt"));
    let words = format!("disk create -q --export loop --size 1G --name x --backing {}", file.display());
    let device = s.ok(&words).trim_end().to_string();
    let at = mount.to_str().unwrap();
    let copy = mount.join("tree");
    std::fs::create_dir(&mount).unwrap();
    crate::support::sh("mkfs.ext4", &["-q", &device]);
    crate::support::sh("mount", &[&device, at]);
    crate::support::sh("cp", &["-a", tree, copy.to_str().unwrap()]);
    crate::support::sh("sync", &["-f", at]);
    assert!(write_back(&s, "--all")["written_back_pages"].as_u64().unwrap() > 1000);
    s.run("disk set x reset=1").fails(4, at);
    crate::support::sh("umount", &[at]);
    write_back(&s, "--all");
    crate::support::sh("e2fsck", &["-fn", &device]);
    // After mounting it again, every byte comes from the backing and not from the page cache.
    crate::support::sh("mount", &["-o", "ro", &device, at]);
    crate::support::sh("diff", &["-r", "--no-dereference", tree, copy.to_str().unwrap()]);
    crate::support::sh("umount", &[at]);
    let p = s.show("x")["writeback"].clone();
    assert!(p["read_pages"].as_u64().unwrap() > 1000, "{p}");
    assert_eq!((&p["unreadable_pages"], &p["corrupt_pages"]), (&0.into(), &0.into()));
    s.ok("disk set x reset=1");
    let mut device = std::fs::File::open(&device).unwrap();
    assert_eq!(std::io::Read::read(&mut device, &mut [1; 8192]).unwrap(), 0);
    drop(device);
    s.ok("disk remove x");
    assert!(!file.exists() && s.left().is_empty());
}

#[test]
fn every_way_to_select_pages_writes_back_exactly_these() {
    let s = Sandbox::new();
    create(&s, "--size 16M");
    let mut client = connect(&s);
    // 256 raw, 512 compressed and 256 same-filled pages. Same-filled pages are never written back.
    let data = pages(1024, 3);
    for (words, written_back) in [
        ("--pages 0-9 --pages 20 --pages 300-309", 21),
        ("--pages 900-1023", 0),
        ("--huge", 256),
        ("--huge-idle", 0),
        ("--incompressible", 256),
        ("--idle 0", 768),
        ("--idle 2h", 0),
        ("--all", 768),
    ] {
        write(&mut client, &data);
        assert_eq!(bd_stat(&s)[0], 0, "{words}");
        let report = write_back(&s, words);
        assert_eq!(report["written_back_pages"], written_back, "{words}: {report}");
        assert!(report["failure"].is_null(), "{report}");
        assert_eq!(bd_stat(&s)[0], written_back, "{words}");
        assert_reads(&mut client, &data);
    }
    for (set, written_back) in [
        ("writeback=idle", 0),
        ("idle=all writeback=huge_idle", 256),
        ("idle=all writeback=type=idle", 768),
        ("writeback=page_index=3", 1),
        ("writeback=page_indexes=250-261", 12),
    ] {
        write(&mut client, &data);
        assert_eq!(s.ok(&format!("disk set x {set}")), "", "{set}");
        assert_eq!(bd_stat(&s)[0], written_back, "{set}");
    }
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_pagefold"))
        .args(["disk", "set", "x", "writeback=page_index=0 page_indexes=2-4 page_index=1"])
        .env("PAGEFOLD_RUNTIME_DIR", s.runtime())
        .status()
        .unwrap();
    assert!(ran.success());
    assert_eq!(bd_stat(&s)[0], 12 + 5);
    assert_reads(&mut client, &data);
}

#[test]
fn written_back_pages_are_read_back_shown_and_counted() {
    for layout in ["on", "off"] {
        let s = Sandbox::new();
        create(&s, &format!("--size 64M --compressed-writeback {layout}"));
        s.ok("disk set x promote=0");
        let data = pages(4096, 4);
        let mut client = connect(&s);
        write(&mut client, &data);
        let text = s.ok("disk writeback x --all");
        assert!(text.starts_with("wrote back 3072 pages (") && text.ends_with(")\n"), "{text}");
        let shown = s.show("x");
        let p = &shown["writeback"];
        assert_eq!((&p["pages"], &shown["pages"]["written_back"]), (&3072.into(), &3072.into()));
        assert_eq!(shown["pages"]["stored"], 4096);
        assert_eq!(shown["pages"]["compressed"], 0);
        let number = |name: &str| p[name].as_u64().unwrap_or_else(|| panic!("{name} in {p}"));
        match layout {
            // Raw pages take 4096 bytes, the others a quarter of that.
            "on" => assert!(number("written_bytes") < 3072 * 3000, "{p}"),
            _ => assert_eq!(number("written_bytes"), 3072 * 4096, "{p}"),
        }
        assert!(number("payload_bytes") <= number("written_bytes"), "{p}");
        assert!(number("free_bytes") < number("capacity_bytes"), "{p}");
        assert_reads(&mut client, &data);
        assert_eq!(bd_stat(&s), [3072, 3072, 3072]);
        let text = s.ok("disk show x");
        for words in [
            "Written back",
            "3072 pages in",
            "including written-back pages",
            "removed with the disk",
            "read back",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        client.write(0, &vec![0; 16 << 20]);
        assert_eq!(bd_stat(&s)[0], 0);
    }
}

#[test]
fn failed_writeback_reports_the_reason_and_the_pages_written() {
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --size 8M --name plain");
    s.run("disk writeback plain --all").fails(5, "ENODEV");
    s.run("disk set plain writeback=idle").fails(5, "--backing");
    s.run("disk show plain -a writeback_high").fails(5, "ENODEV");
    assert_eq!(s.ok("disk show plain -a backing_dev"), "none\n");
    assert!(s.show("plain")["writeback"].is_null());
    assert!(!s.ok("disk show plain").contains("Written back"));

    create(&s, "--size 8M");
    let data = pages(1024, 5);
    let mut client = connect(&s);
    write(&mut client, &data);
    for (words, code, says) in [
        ("disk writeback x", 2, "--all"),
        ("disk writeback x --all --huge", 2, "cannot be used with"),
        ("disk writeback nosuch --all", 3, "no disk"),
        ("disk writeback x --pages 0-2048", 2, "ERANGE"),
        ("disk writeback x --pages 5-4", 2, "ERANGE"),
        ("disk writeback x --pages some", 2, "range of pages"),
        ("disk writeback x --idle soon", 2, "10m"),
        ("disk set x writeback=page_index=2048", 2, "ERANGE"),
        ("disk set x writeback=old", 2, "EINVAL"),
        ("disk set x writeback_batch_size=0", 2, "EINVAL"),
    ] {
        s.run(words).fails(code, says);
    }
    assert_eq!(bd_stat(&s), [0, 0, 0]);

    // Exactly as many pages are written back as the limit allows.
    s.ok("disk set x writeback_limit=100 writeback_limit_enable=1 writeback_batch_size=7");
    let ran = s.run("disk writeback x --all");
    ran.fails(1, "EIO");
    assert!(ran.out.starts_with("wrote back 100 pages"), "{ran:?}");
    assert_eq!(bd_stat(&s), [100, 0, 100]);
    assert_eq!(s.ok("disk show x -a writeback_limit"), "0\n");
    s.run("disk set x writeback=huge").fails(1, "0 pages were written back");
    assert_eq!(s.show("x")["writeback"]["limit_left_pages"], 0);
    s.ok("disk set x writeback_limit=3");
    let ran = s.run("disk writeback x --all --json");
    assert_eq!(ran.code, 1);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["written_back_pages"], &report["failure"]["exit"]), (&3.into(), &"failed".into()));
    s.ok("disk set x writeback_limit_enable=0");
    let ran = s.run("disk writeback x --all --quiet");
    assert!(ran.code == 0 && ran.err.is_empty() && ran.out.starts_with("wrote back "), "{ran:?}");
    assert_reads(&mut client, &data);
}

#[test]
fn reset_discards_written_back_pages_and_is_refused_with_a_client() {
    let s = Sandbox::new();
    create(&s, "--size 8M");
    let mut client = connect(&s);
    write(&mut client, &pages(1024, 6));
    write_back(&s, "--pages 0-500");
    s.run("disk set x reset=1").fails(4, "EBUSY");
    assert_eq!(bd_stat(&s)[0], 501);
    drop(client);
    wait_until("the client has disconnected", || s.run("disk set x reset=1").code == 0);
    let shown = s.show("x");
    assert_eq!((&shown["pages"]["stored"], &shown["size_bytes"]), (&0.into(), &0.into()));
    assert_eq!(s.ok("disk show x -a backing_dev"), "none\n");
    s.ok("disk set x disksize=8M");
    assert_reads(&mut connect(&s), &vec![0; 8 << 20]);
}

/// A disk on a medium so slow that a pass over all pages takes a quarter of a minute, and a command that has begun such
/// a pass.
fn slow_pass(s: &Sandbox) -> (PathBuf, std::process::Child, Vec<u8>) {
    let file = create(s, "--size 64M --compressed-writeback off --backing-delay 2000");
    s.ok("disk set x writeback_batch_size=1");
    let data = pages(8192, 7);
    write(&mut connect(s), &data);
    let mut command = s.command("disk writeback x --all --json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the pass has begun", || bd_stat(s)[0] > 0);
    (file, child, data)
}

fn ended(s: &Sandbox, child: std::process::Child) -> crate::support::Ran {
    assert_eq!(s.left(), ["x"]);
    crate::support::Ran::new("disk writeback x --all --json", child.wait_with_output().unwrap())
}

#[test]
fn other_commands_work_during_a_pass_and_ctrl_c_ends_it() {
    let s = Sandbox::new();
    let (_, child, data) = slow_pass(&s);
    for _ in 0..20 {
        s.show("x");
    }
    s.ok("disk list");
    s.ok("disk set x promote=0 mem_limit=1G");
    s.run("disk writeback x --huge").fails(4, "EBUSY");
    s.run("disk set x writeback=huge").fails(4, "EBUSY");
    assert!(bd_stat(&s)[0] < 6144, "the pass ended before the other commands");
    kill(child.id() as i32, "INT");
    let ran = ended(&s, child);
    ran.fails(1, "EINTR");
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let written_back = report["written_back_pages"].as_u64().unwrap();
    assert!((1..6144).contains(&written_back), "{report}");
    assert_eq!(bd_stat(&s)[0], written_back);
    // Another pass can run, and the written-back pages can be read.
    s.ok("disk writeback x --pages 6140-6143");
    assert_reads(&mut connect(&s), &data[..MIB as usize]);
    s.ok("disk remove x --force");
}

#[test]
fn a_pass_ends_when_its_client_disconnects() {
    let s = Sandbox::new();
    let (_, mut child, _) = slow_pass(&s);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("another pass may begin", || s.run("disk writeback x --pages 8191").code == 0);
    assert!(bd_stat(&s)[0] < 6144, "the pass went on to its end");
}

#[test]
fn a_disk_can_be_removed_during_a_pass() {
    for words in ["disk remove x", "disk remove x --force"] {
        let s = Sandbox::new();
        let (file, child, _) = slow_pass(&s);
        s.ok(words);
        assert!(!file.exists());
        assert_eq!(s.left(), Vec::<String>::new());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
    }
}

#[test]
fn a_signal_ends_a_server_during_a_pass() {
    let s = Sandbox::new();
    let (file, child, _) = slow_pass(&s);
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has exited", || !is_running(pid));
    assert!(!child.wait_with_output().unwrap().status.success());
    s.ok("disk list");
    assert!(!file.exists());
}

#[test]
fn a_server_that_dies_during_a_pass_leaves_nothing() {
    let s = Sandbox::new();
    let (file, child, _) = slow_pass(&s);
    s.kill_disk("x");
    let output = child.wait_with_output().unwrap();
    let ran = crate::support::Ran::new("disk writeback", output);
    ran.fails(3, "has died");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_disk_with_a_backing_stores_more_than_its_memory_limit() {
    let s = Sandbox::new();
    create(&s, "--size 256M --memory 8M");
    // A quarter that does not compress is 16 MiB, and half at a quarter of its size is 8 MiB.
    let data = pages(16384, 11);
    let mut client = connect(&s);
    write(&mut client, &data);
    assert_reads(&mut client, &data);
    let shown = s.show("x");
    let (p, memory) = (&shown["writeback"], &shown["memory"]);
    assert!(p["pages"].as_u64().unwrap() > 16384 / 4, "{p}");
    assert!(memory["pool_max_bytes"].as_u64().unwrap() <= 8 * MIB, "{memory}");
    assert!(!s.ok("disk show x").contains("on request only"));
    s.ok("disk remove x --force");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_full_backing_is_reported_and_loses_no_page() {
    let s = Sandbox::new();
    create(&s, "--size 256M --memory 8M --backing-size 12M");
    let data = pages(16384, 12);
    let mut client = connect(&s);
    let page_written =
        |client: &mut Nbd, i: usize| client.try_write((i * PAGE) as u64, &data[i * PAGE..][..PAGE]);
    let written = (0..16384).take_while(|&i| page_written(&mut client, i)).count();
    // The first 16 MiB do not compress and exceed the memory limit. All data exceeds memory limit and backing together.
    assert!((4096..16384).contains(&written), "{written} pages");
    // Reported at the latest after the next attempt.
    let words = "the backing, or the file system under it, is full: pages stay in memory";
    wait_until("the full backing is reported", || s.ok("disk show x").contains(words));
    assert_reads(&mut client, &data[..written * PAGE]);
    // Discarding makes space.
    client.write(0, &vec![0; 4 << 20]);
    wait_until("there is space again", || page_written(&mut client, written));
}

/// The backing is another disk whose server is stopped: a medium that never responds.
#[test]
fn remove_force_kills_a_server_whose_backing_does_not_respond() {
    let test = "remove_force_kills_a_server_whose_backing_does_not_respond";
    if let Some(why) = no_devices(&[]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let medium = s.ok("disk create -q --export loop --size 64M --name medium").trim_end().to_string();
    s.ok(&format!("disk create -q --export nbd --size 64M --memory 8M --name x --backing {medium}"));
    s.run("disk remove medium").fails(4, "the backing of another disk");
    let mut client = connect(&s);
    let medium_pid = s.server_pid("medium");
    kill(medium_pid, "STOP");
    write(&mut client, &pages(512, 5));
    let write_back = || s.quietly("disk writeback x --all").spawn().unwrap();
    let mut writeback = write_back();
    wait_until("a pass waits for the medium", || {
        // It was refused because the pass below was running.
        if writeback.try_wait().unwrap().is_some() {
            writeback = write_back();
        }
        // This pass selects a page that was never written, so it does not wait for the medium if it runs first.
        s.run("disk writeback x --pages 16000").code == 4
    });
    // Other requests are served.
    assert_eq!(s.show("x")["writeback"]["pages"], 0);
    drop(client);
    let ran = s.run("disk remove x --force");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("killing the server"), "{ran:?}");
    assert_eq!(s.left(), ["medium"]);
    writeback.wait().unwrap();
    kill(medium_pid, "CONT");
    wait_until("the medium is released", || s.run("disk remove medium").code == 0);
}
