//! `image build` from directories with files and attributes that cannot be read.

use crate::support::{Ran, Sandbox};
use pagefold_sys::{fusedev, rundir};
use pagefold_testkit::{noise, seccomp, skipped};
use std::fs;

/// The file that cannot be read in full, and its length.
const BAD: &str = "bad";
const BAD_BYTES: usize = 300_000;

/// A sandbox with a damaged image at `source`: reading the middle of one file gives EIO.
fn with_damaged_mount(test: &str) -> Option<Sandbox> {
    if rundir::effective_uid() != 0 || fusedev::open().is_err() {
        skipped!("{test}: needs root and /dev/fuse");
        return None;
    }
    let s = Sandbox::new();
    fs::create_dir_all(s.path("tree/d")).unwrap();
    fs::write(s.path("tree/d/good"), noise(1, 100_000)).unwrap();
    let text: Vec<u8> = noise(2, BAD_BYTES).iter().map(|byte| b'a' + byte % 16).collect();
    fs::write(s.path("tree").join(BAD), &text).unwrap();
    fs::hard_link(s.path("tree").join(BAD), s.path("tree/d/link")).unwrap();
    let (tree, image, at) = (s.path("tree"), s.path("damaged"), s.path("source"));
    s.ok(&format!(
        "image build -q -z lz4 -C 4K --no-fragments --dedupe none {} {}",
        tree.display(),
        image.display()
    ));
    let shown = s.ok(&format!("image show --json {} /{BAD}", image.display()));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let extents = shown["extents"].as_array().unwrap();
    let extent = &extents[extents.len() / 2];
    let place = extent["at"]["offset_bytes"].as_u64().unwrap_or_else(|| panic!("{extent}")) as usize;
    let mut bytes = fs::read(&image).unwrap();
    bytes[place..place + 4096].fill(0xff);
    fs::write(&image, bytes).unwrap();
    fs::create_dir(&at).unwrap();
    s.ok(&format!("image mount -q {} {}", image.display(), at.display()));
    assert!(fs::read(at.join(BAD)).is_err() && fs::read(at.join("d/good")).is_ok());
    Some(s)
}

fn build(s: &Sandbox, words: &str) -> Ran {
    s.run(&format!("image build --json {words} {} {}", s.path("source").display(), s.path("out").display()))
}

#[test]
fn files_whose_contents_cannot_be_read_are_left_out_or_padded() {
    let Some(s) = with_damaged_mount("files_whose_contents_cannot_be_read_are_left_out_or_padded") else {
        return;
    };
    build(&s, "").fails(1, "--ignore-unreadable leaves out");
    let out = s.path("out");
    assert!(!out.exists());
    for words in ["", "--dedupe none -z none", "--preset small", "--threads 1 -z auto"] {
        let run = build(&s, &format!("--ignore-unreadable --verify {words}"));
        assert_eq!(run.code, 0, "{}", run.err);
        assert!(run.err.contains(&format!("/{BAD}': ")), "{}", run.err);
        let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!((&report["unreadable_count"], &report["inodes"]), (&1.into(), &3.into()), "{report}");
        assert_eq!(s.ok(&format!("image ls -R {} /", out.display())).matches("good").count(), 1);
        s.run(&format!("image cat {} /d/link", out.display())).fails(3, "no such file");

        let run = build(&s, &format!("--ignore-unreadable=zeroes --verify {words}"));
        assert_eq!(run.code, 0, "{}", run.err);
        let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!((&report["zero_filled_count"], &report["unreadable_count"]), (&1.into(), &0.into()));
        let reason = report["zero_filled"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("bytes are zeroes: ") && run.err.contains("not read in full"), "{reason}");
        let (to, image) = (s.path("to"), out.display());
        s.ok(&format!("image extract -q {image} {}", to.display()));
        let (found, wanted) = (fs::read(to.join(BAD)).unwrap(), fs::read(s.path("tree").join(BAD)).unwrap());
        let zeroes = found.iter().filter(|byte| **byte == 0).count();
        assert!(found.len() == wanted.len() && (4096..BAD_BYTES / 2).contains(&zeroes), "{zeroes}");
        assert!(found.iter().zip(&wanted).all(|(found, wanted)| *found == 0 || found == wanted));
        fs::remove_dir_all(to).unwrap();
    }
    s.ok(&format!("image unmount {}", s.path("source").display()));
}

/// Runs a build while a system call fails.
fn build_without(s: &Sandbox, call: libc::c_long, errno: i32, words: &str) -> Ran {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            seccomp::fail(call, errno);
            build(s, words)
        });
        run.join().unwrap()
    })
}

#[test]
fn an_attribute_that_cannot_be_read_is_left_out_and_named() {
    let s = Sandbox::new();
    fs::create_dir_all(s.path("source")).unwrap();
    fs::write(s.path("source/file"), "contents").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(s.path("source/file"), "user.a", b"1", flags).is_err() {
        skipped!("an_attribute_that_cannot_be_read_is_left_out_and_named: no attributes here");
        return;
    }
    for errno in [libc::EOVERFLOW, libc::EACCES, libc::EIO, libc::ENOTSUP] {
        for words in ["", "--ignore-unreadable"] {
            let run = build_without(&s, libc::SYS_getxattr, errno, words);
            assert_eq!(run.code, 0, "{}", run.err);
            assert!(run.err.contains("the attribute 'user.a' of '"), "{}", run.err);
            let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
            let xattrs = report["unreadable_xattrs"].as_array().unwrap();
            assert!(
                xattrs
                    .iter()
                    .any(|x| x["name"] == "user.a" && x["path"].as_str().unwrap().ends_with("/file"))
            );
            assert_eq!(report["unreadable_xattrs_count"], xattrs.len());
            assert_eq!(s.ok(&format!("image cat {} /file", s.path("out").display())), "contents");
            let run = build_without(&s, libc::SYS_listxattr, errno, words);
            assert_eq!(run.code, 0, "{}", run.err);
            assert!(errno == libc::ENOTSUP || run.err.contains("the attributes of '"), "{}", run.err);
        }
    }
}
