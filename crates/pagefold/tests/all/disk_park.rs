//! Disks that park pages: chosen, parked, read back, counted, and what ends a pass.

use crate::support::parking::*;
use crate::support::{Nbd, Sandbox, is_running, kill, wait_until};
use std::path::PathBuf;
use std::process::Stdio;

#[test]
fn a_file_system_on_a_loop_disk_is_parked_and_comes_back() {
    let test = "a_file_system_on_a_loop_disk_is_parked_and_comes_back";
    let tree = "/usr/include";
    if let Some(why) = no_devices(&["mkfs.ext4", "e2fsck", "mount", "cp", "diff"]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let (file, mount) = (s.path("park"), s.path("mnt"));
    let words = format!("disk create -q --door loop --size 1G --name x --backing {}", file.display());
    let device = s.ok(&words).trim_end().to_string();
    let at = mount.to_str().unwrap();
    let copy = mount.join("tree");
    std::fs::create_dir(&mount).unwrap();
    crate::support::sh("mkfs.ext4", &["-q", &device]);
    crate::support::sh("mount", &[&device, at]);
    crate::support::sh("cp", &["-a", tree, copy.to_str().unwrap()]);
    crate::support::sh("sync", &["-f", at]);
    assert!(park(&s, "--all")["parked_pages"].as_u64().unwrap() > 1000);
    s.run("disk set x reset=1").fails(4, at);
    crate::support::sh("umount", &[at]);
    park(&s, "--all");
    crate::support::sh("e2fsck", &["-fn", &device]);
    // Mounted anew, every byte comes from the backing and not from the page cache.
    crate::support::sh("mount", &["-o", "ro", &device, at]);
    crate::support::sh("diff", &["-r", "--no-dereference", tree, copy.to_str().unwrap()]);
    crate::support::sh("umount", &[at]);
    let p = s.show("x")["parking"].clone();
    assert!(p["read_pages"].as_u64().unwrap() > 1000, "{p}");
    assert_eq!((&p["unreadable_pages"], &p["corrupt_pages"]), (&0.into(), &0.into()));
    s.ok("disk set x reset=1");
    let mut first = [1; 8192];
    std::io::Read::read_exact(&mut std::fs::File::open(&device).unwrap(), &mut first).unwrap();
    assert!(first == [0; 8192]);
    s.ok("disk remove x");
    assert!(!file.exists() && s.left().is_empty());
}

#[test]
fn every_way_to_choose_pages_parks_those() {
    let s = Sandbox::new();
    create(&s, "--size 16M");
    let mut client = connect(&s);
    // 256 raw, 512 folded and 256 same-filled pages; the last are never parked.
    let data = pages(1024, 3);
    for (words, parked) in [
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
        let report = park(&s, words);
        assert_eq!(report["parked_pages"], parked, "{words}: {report}");
        assert!(report["failure"].is_null(), "{report}");
        assert_eq!(bd_stat(&s)[0], parked, "{words}");
        is_there(&mut client, &data);
    }
    for (set, parked) in [
        ("writeback=idle", 0),
        ("idle=all writeback=huge_idle", 256),
        ("idle=all writeback=type=idle", 768),
        ("writeback=page_index=3", 1),
        ("writeback=page_indexes=250-261", 12),
    ] {
        write(&mut client, &data);
        assert_eq!(s.ok(&format!("disk set x {set}")), "", "{set}");
        assert_eq!(bd_stat(&s)[0], parked, "{set}");
    }
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_pagefold"))
        .args(["disk", "set", "x", "writeback=page_index=0 page_indexes=2-4 page_index=1"])
        .env("PAGEFOLD_RUNTIME_DIR", s.runtime())
        .status()
        .unwrap();
    assert!(ran.success());
    assert_eq!(bd_stat(&s)[0], 12 + 5);
    is_there(&mut client, &data);
}

#[test]
fn what_is_parked_is_read_back_shown_and_counted() {
    for layout in ["on", "off"] {
        let s = Sandbox::new();
        create(&s, &format!("--size 64M --compressed-writeback {layout}"));
        s.ok("disk set x promote=0");
        let data = pages(4096, 4);
        let mut client = connect(&s);
        write(&mut client, &data);
        let text = s.ok("disk park x --all");
        assert!(text.starts_with("parked 3 072 pages (") && text.ends_with(")\n"), "{text}");
        let shown = s.show("x");
        let p = &shown["parking"];
        assert_eq!((&p["pages"], &shown["pages"]["parked"]), (&3072.into(), &3072.into()));
        assert_eq!(shown["pages"]["stored"], 4096);
        assert_eq!(shown["pages"]["folded"], 0);
        let number = |name: &str| p[name].as_u64().unwrap_or_else(|| panic!("{name} in {p}"));
        match layout {
            // Raw pages as they are, and a quarter of the others.
            "on" => assert!(number("written_bytes") < 3072 * 3000, "{p}"),
            _ => assert_eq!(number("written_bytes"), 3072 * 4096, "{p}"),
        }
        assert!(number("payload_bytes") <= number("written_bytes"), "{p}");
        assert!(number("free_bytes") < number("capacity_bytes"), "{p}");
        is_there(&mut client, &data);
        assert_eq!(bd_stat(&s), [3072, 3072, 3072]);
        let text = s.ok("disk show x");
        for words in ["Parked", "3 072 pages in", "parked pages too", "removed with the disk", "read back"] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        client.write(0, &vec![0; 16 << 20]);
        assert_eq!(bd_stat(&s)[0], 0);
    }
}

#[test]
fn parking_that_cannot_be_says_why_and_how_far_it_came() {
    let s = Sandbox::new();
    s.ok("disk create -q --door nbd --size 8M --name plain");
    s.run("disk park plain --all").fails(5, "ENODEV");
    s.run("disk set plain writeback=idle").fails(5, "--backing");
    s.run("disk show plain -a bd_stat").fails(5, "ENODEV");
    assert_eq!(s.ok("disk show plain -a backing_dev"), "none\n");
    assert!(s.show("plain")["parking"].is_null());
    assert!(!s.ok("disk show plain").contains("Parked"));

    create(&s, "--size 8M");
    let data = pages(1024, 5);
    let mut client = connect(&s);
    write(&mut client, &data);
    for (words, code, says) in [
        ("disk park x", 2, "--all"),
        ("disk park x --all --huge", 2, "cannot be used with"),
        ("disk park nosuch --all", 3, "no disk"),
        ("disk park x --pages 0-2048", 2, "ERANGE"),
        ("disk park x --pages 5-4", 2, "ERANGE"),
        ("disk park x --pages some", 2, "range of pages"),
        ("disk park x --idle soon", 2, "10m"),
        ("disk set x writeback=page_index=2048", 2, "ERANGE"),
        ("disk set x writeback=old", 2, "EINVAL"),
        ("disk set x writeback_batch_size=0", 2, "EINVAL"),
    ] {
        s.run(words).fails(code, says);
    }
    assert_eq!(bd_stat(&s), [0, 0, 0]);

    // The budget is exact, and what it allows is parked.
    s.ok("disk set x writeback_limit=100 writeback_limit_enable=1 writeback_batch_size=7");
    let ran = s.run("disk park x --all");
    ran.fails(1, "EIO");
    assert!(ran.out.starts_with("parked 100 pages"), "{ran:?}");
    assert_eq!(bd_stat(&s), [100, 0, 100]);
    assert_eq!(s.ok("disk show x -a writeback_limit"), "0\n");
    s.run("disk set x writeback=huge").fails(1, "0 pages were parked");
    assert_eq!(s.show("x")["parking"]["limit_left_pages"], 0);
    s.ok("disk set x writeback_limit=3");
    let ran = s.run("disk park x --all --json");
    assert_eq!(ran.code, 1);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["parked_pages"], &report["failure"]["exit"]), (&3.into(), &"failed".into()));
    s.ok("disk set x writeback_limit_enable=0");
    assert_eq!(s.ok("disk park x --all --quiet"), "");
    is_there(&mut client, &data);
}

#[test]
fn reset_forgets_what_is_parked_but_not_under_a_client() {
    let s = Sandbox::new();
    create(&s, "--size 8M");
    let mut client = connect(&s);
    write(&mut client, &pages(1024, 6));
    park(&s, "--pages 0-500");
    s.run("disk set x reset=1").fails(4, "EBUSY");
    assert_eq!(bd_stat(&s)[0], 501);
    drop(client);
    wait_until("the client is gone", || s.run("disk set x reset=1").code == 0);
    let shown = s.show("x");
    assert_eq!((&shown["pages"]["stored"], &shown["parking"]["pages"]), (&0.into(), &0.into()));
    is_there(&mut connect(&s), &vec![0; 8 << 20]);
}

/// A disk on a medium so slow that a pass over all of it takes a quarter of a minute, and a command that
/// parks all of it and has begun.
fn slow_pass(s: &Sandbox) -> (PathBuf, std::process::Child, Vec<u8>) {
    let file = create(s, "--size 64M --compressed-writeback off --backing-delay 2000");
    s.ok("disk set x writeback_batch_size=1");
    let data = pages(8192, 7);
    write(&mut connect(s), &data);
    let mut command = s.command("disk park x --all --json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the pass has begun", || bd_stat(s)[0] > 0);
    (file, child, data)
}

fn ended(s: &Sandbox, child: std::process::Child) -> crate::support::Ran {
    assert_eq!(s.left(), ["x"]);
    crate::support::Ran::new("disk park x --all --json", child.wait_with_output().unwrap())
}

#[test]
fn others_are_answered_during_a_pass_and_ctrl_c_ends_it() {
    let s = Sandbox::new();
    let (_, child, data) = slow_pass(&s);
    for _ in 0..20 {
        s.show("x");
    }
    s.ok("disk list");
    s.ok("disk set x promote=0 mem_limit=1G");
    s.run("disk park x --huge").fails(4, "EBUSY");
    s.run("disk set x writeback=huge").fails(4, "EBUSY");
    assert!(bd_stat(&s)[0] < 6144, "the pass ended before others were answered");
    kill(child.id() as i32, "INT");
    let ran = ended(&s, child);
    ran.fails(1, "EINTR");
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let parked = report["parked_pages"].as_u64().unwrap();
    assert!((1..6144).contains(&parked), "{report}");
    assert_eq!(bd_stat(&s)[0], parked);
    // Nothing of it is left: others can park, and what it parked can be read.
    s.ok("disk park x --pages 6140-6143");
    is_there(&mut connect(&s), &data[..MIB as usize]);
    s.ok("disk remove x --force");
}

#[test]
fn a_client_that_hangs_up_ends_its_pass() {
    let s = Sandbox::new();
    let (_, mut child, _) = slow_pass(&s);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("another pass may begin", || s.run("disk park x --pages 8191").code == 0);
    assert!(bd_stat(&s)[0] < 6144, "the pass went on to its end");
}

#[test]
fn a_disk_is_removed_during_a_pass() {
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
    wait_until("the server has ended", || !is_running(pid));
    assert!(!child.wait_with_output().unwrap().status.success());
    s.ok("disk list");
    assert!(!file.exists());
}

#[test]
fn a_server_that_dies_during_a_pass_leaves_nothing() {
    let s = Sandbox::new();
    let (file, child, _) = slow_pass(&s);
    kill(s.server_pid("x"), "KILL");
    let output = child.wait_with_output().unwrap();
    let ran = crate::support::Ran::new("disk park", output);
    ran.fails(3, "has died");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_disk_holds_more_than_its_memory() {
    let s = Sandbox::new();
    create(&s, "--size 256M --memory 8M");
    // A quarter that does not compress is 16 MiB, and half at a quarter of its size is 8 MiB.
    let data = pages(16384, 11);
    let mut client = connect(&s);
    write(&mut client, &data);
    is_there(&mut client, &data);
    let shown = s.show("x");
    let (p, memory) = (&shown["parking"], &shown["memory"]);
    assert!(p["pages"].as_u64().unwrap() > 16384 / 4, "{p}");
    assert!(memory["pool_max_bytes"].as_u64().unwrap() <= 8 * MIB, "{memory}");
    assert!(!s.ok("disk show x").contains("on request only"));
    s.ok("disk remove x --force");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_full_backing_is_told_in_words_and_loses_nothing() {
    let s = Sandbox::new();
    create(&s, "--size 256M --memory 8M --backing-size 12M");
    let data = pages(16384, 12);
    let mut client = connect(&s);
    let page_written =
        |client: &mut Nbd, i: usize| client.try_write((i * PAGE) as u64, &data[i * PAGE..][..PAGE]);
    let written = (0..16384).take_while(|&i| page_written(&mut client, i)).count();
    // The first 16 MiB do not compress: more than memory holds. All of it is more than both hold.
    assert!((4096..16384).contains(&written), "{written} pages");
    // Told at the latest when it has been tried again.
    let words = "the backing, or the file system under it, is full: pages stay in memory";
    wait_until("it is told", || s.ok("disk show x").contains(words));
    is_there(&mut client, &data[..written * PAGE]);
    // What is discarded makes room.
    client.write(0, &vec![0; 4 << 20]);
    wait_until("there is room again", || page_written(&mut client, written));
}

/// The backing is another disk whose server is stopped: a medium that never answers.
#[test]
fn a_server_whose_backing_does_not_answer_is_removed_by_force() {
    let test = "a_server_whose_backing_does_not_answer_is_removed_by_force";
    if let Some(why) = no_devices(&[]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let medium = s.ok("disk create -q --door loop --size 64M --name medium").trim_end().to_string();
    s.ok(&format!("disk create -q --door nbd --size 64M --memory 8M --name x --backing {medium}"));
    s.run("disk remove medium").fails(4, "the backing of another disk");
    let mut client = connect(&s);
    let medium_pid = s.server_pid("medium");
    kill(medium_pid, "STOP");
    write(&mut client, &pages(512, 5));
    let park = || s.quietly("disk park x --all").spawn().unwrap();
    let mut parking = park();
    wait_until("a pass waits for the medium", || {
        // Refused, because the question below was being answered.
        if parking.try_wait().unwrap().is_some() {
            parking = park();
        }
        // Asked with a page that was never written: if this pass is the first it has nothing to wait for.
        s.run("disk park x --pages 16000").code == 4
    });
    // Everything else goes on.
    assert_eq!(s.show("x")["parking"]["pages"], 0);
    drop(client);
    let ran = s.run("disk remove x --force");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("ending the server"), "{ran:?}");
    assert_eq!(s.left(), ["medium"]);
    parking.wait().unwrap();
    kill(medium_pid, "CONT");
    wait_until("the medium is let go", || s.run("disk remove medium").code == 0);
}
