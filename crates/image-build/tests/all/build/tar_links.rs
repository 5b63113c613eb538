//! Archives whose members lie below symbolic links, replace each other, or have an unusual end.

use super::tar_forms::{contents, kind, refusal, scan_bytes, scanned, target};
use crate::tarball::Tarball;
use pagefold_image::read::FileKind;
use pagefold_image_build::source::Whiteouts;
use pagefold_image_build::source::tar::{TarOptions, scan, scan_watched};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

#[test]
fn members_below_links_are_where_the_links_lead_within_the_root() {
    let archive = Tarball::default()
        .member("usr/lib64", b'5', "")
        .member("lib64", b'2', "usr/lib64")
        .member("usr/up", b'2', "../../../lib64")
        .member("absolute", b'2', "/usr/./lib64/")
        .member("usr/root", b'2', "/")
        .file("lib64/a", b"a")
        .file("usr/up/b", b"b")
        .file("absolute/sub/c", b"c")
        .file("usr/root/d", b"d")
        .member("hard", b'1', "usr/up/b")
        .member("lib64/hard", b'1', "/lib64/a")
        .member("again", b'1', "lib64")
        .file("x/../usr/root/../dots", b"e");
    let scanned = scanned(archive);
    for (path, wanted) in [
        ("usr/lib64/a", "a"),
        ("usr/lib64/b", "b"),
        ("usr/lib64/sub/c", "c"),
        ("d", "d"),
        ("hard", "b"),
        ("usr/lib64/hard", "a"),
        ("usr/dots", "e"),
    ] {
        assert_eq!(contents(&scanned, path), wanted.as_bytes(), "{path}");
    }
    assert_eq!(scanned.tree.find(b"hard"), scanned.tree.find(b"usr/lib64/b"));
    // A hard link is one to the link itself.
    assert_eq!(target(&scanned, "again"), Some(&b"usr/lib64"[..]));
    assert!(scanned.tree.find(b"x").is_none());
}

#[test]
fn directories_below_the_target_of_a_link_are_made() {
    let archive = Tarball::default()
        .member("l", b'2', "no/where")
        .file("l/a", b"a")
        .member("m", b'2', "not/../here")
        .file("m/b", b"b");
    let scanned = scanned(archive);
    assert_eq!(
        (contents(&scanned, "no/where/a"), contents(&scanned, "here/b")),
        (b"a".to_vec(), b"b".to_vec())
    );
    assert!(scanned.tree.find(b"not").is_none());
}

#[test]
fn loops_and_long_ways_of_links_are_refused_by_name() {
    let with = |archive: Tarball, name: &str| refusal(&archive.file(name, b"").end());
    let own = Tarball::default().member("d/l", b'2', "l");
    let wanted = "'d/l/x': its path leads through more than 40 symbolic links, or through a loop of them: the last one \
                  is 'd/l', a link to 'l'";
    assert!(with(own.clone(), "d/l/x").contains(wanted));
    let hard = refusal(&own.member("h", b'1', "d/l/x").end());
    assert!(hard.contains("'h': a hard link to 'd/l/x': its path leads through more than 40"), "{hard}");
    let two = Tarball::default().member("a", b'2', "b/x").member("b", b'2', "a/x");
    assert!(with(two, "a/y").contains("a loop of them"));
    // Each way is longer by the name of a directory.
    let mut deep = Tarball::default().member("l0", b'2', "d");
    for step in 1..=30 {
        let long = "n".repeat(200);
        deep = deep.long(b'L', format!("l{}/{long}", step - 1).as_bytes()).member("x", b'5', "");
        deep =
            deep.long(b'K', format!("l{}/{long}", step - 1).as_bytes()).member(&format!("l{step}"), b'2', "");
    }
    let message = refusal(&deep.end());
    assert!(message.contains("its symbolic links lead to a path of more than 4095 bytes"), "{message}");
    let below = Tarball::default().file("f", b"").member("l", b'2', "f");
    assert!(with(below, "l/x").contains("'l/x': it is below 'f', no directory"));
}

#[test]
fn members_replace_directories_and_links_of_their_names() {
    let archive = Tarball::default()
        .file("d/sub/x", b"x")
        .member("kept", b'1', "d/sub/x")
        .file("d", b"file")
        .member("to", b'5', "")
        .member("l", b'2', "to")
        .member("l", b'5', "")
        .file("l/in", b"in")
        .file("e/x", b"x")
        .member("e", b'1', "d");
    let scanned = scanned(archive);
    assert_eq!((contents(&scanned, "d"), contents(&scanned, "kept")), (b"file".to_vec(), b"x".to_vec()));
    assert_eq!(kind(&scanned, "l"), FileKind::Directory);
    assert!(scanned.tree.find(b"to/in").is_none() && scanned.tree.find(b"l/in").is_some());
    assert_eq!(scanned.tree.find(b"e"), scanned.tree.find(b"d"));
    let within = Tarball::default().file("d/x", b"").member("d", b'1', "d/x").end();
    assert!(refusal(&within).contains("'d': a hard link to 'd/x', which is not before it"));
}

#[test]
fn whiteouts_below_links_are_where_the_links_lead() {
    let archive = Tarball::default().member("l", b'2', "d").file("l/.wh.gone", b"").end();
    let options = TarOptions { whiteouts: Whiteouts::Overlay, ..TarOptions::default() };
    assert_eq!(kind(&scan_bytes(&archive, &options).unwrap(), "d/gone"), FileKind::CharDevice);
}

#[test]
fn hard_links_may_have_contents_or_only_a_length() {
    let link = |archive: Tarball, len: u64| {
        archive.raw(Tarball::header(b"link", b'1', len), |block| block[157] = b'a')
    };
    // Its contents look like a member.
    let nested = Tarball::default().file("no", b"").0;
    for (data, has_data, has_records) in [
        (vec![b'y'; 700], true, false),
        (vec![b'y'; 700], false, false),
        (nested, true, true),
        (vec![b'y'; 9], true, true),
    ] {
        for is_last in [false, true] {
            let mut archive = Tarball::default().file("a", &data);
            if has_records {
                archive = archive.pax(b'x', &[("mtime", b"1.5")]);
            }
            archive = link(archive, data.len() as u64);
            if has_data {
                archive = archive.data(&data);
            }
            if !is_last {
                archive = archive.file("c", b"c");
            }
            let scanned = scanned(archive);
            assert_eq!(contents(&scanned, "link"), data);
            assert_eq!(scanned.tree.find(b"c").is_some(), !is_last);
            assert!(scanned.tree.find(b"no").is_none());
        }
    }
}

#[test]
fn a_link_into_a_lower_layer_is_named_with_the_way_out() {
    let message = refusal(&Tarball::default().member("new", b'1', "old").end());
    assert!(
        message.contains("'new': a hard link to 'old', which is not before it in the archive. If"),
        "{message}"
    );
    assert!(
        message.contains("build from all layers") && message.contains("without --layer-cache"),
        "{message}"
    );
    assert!(!message.contains("get it again"));
}

#[test]
fn bytes_after_the_end_are_noted_or_read() {
    let [first, second] = ["a", "b"].map(|name| Tarball::default().file(name, b"x").end());
    let both = [&first[..], &second].concat();
    let lone = [&first[..first.len() - 512], &second].concat();
    let padded = [&first[..], &[0; 9000]].concat();
    let at = first.len();
    for (bytes, note) in [
        (&both, format!("the end of the archive there are {} bytes, from byte {at} on, which", second.len())),
        (&lone, format!("from byte {} on", at - 512)),
        (&[&first[..], b"\0\0x"].concat(), format!("there are 1 bytes, from byte {} on", at + 2)),
        (&padded, String::new()),
    ] {
        let scanned = scan_bytes(bytes, &TarOptions::default()).unwrap();
        let notes = scanned.notes.concat();
        assert!(notes.contains(&note) && notes.is_empty() == note.is_empty(), "{notes}");
        assert!(scanned.tree.find(b"a").is_some() && scanned.tree.find(b"b").is_none());
    }
    let options = TarOptions { ignore_zeros: true, ..TarOptions::default() };
    for bytes in [&both, &lone, &both[..both.len() - 1024].to_vec()] {
        let scanned = scan_bytes(bytes, &options).unwrap();
        assert!(scanned.tree.find(b"a").is_some() && scanned.tree.find(b"b").is_some());
        assert!(scanned.notes.is_empty());
    }
    assert!(scan_bytes(&padded, &options).unwrap().notes.is_empty());
    let junk = [&first[..], &[7; 512]].concat();
    assert!(scan_bytes(&junk, &options).unwrap_err().to_string().contains("is no header of a member"));
}

/// A sparse file of some KiB may have a terabyte of them.
#[test]
fn zeroes_between_archives_are_passed_over_in_parts() {
    let archives = ["a", "b"].map(|name| Tarball::default().file(name, name.as_bytes()).end());
    let options = TarOptions { ignore_zeros: true, ..TarOptions::default() };
    let far = |at: u64| {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&archives[0], 0).unwrap();
        file.write_all_at(&archives[1], at).unwrap();
        file.set_len(at + (1 << 40) + 77).unwrap();
        scan(file, Path::new("far.tar"), &options).map(|scanned| scanned.tree)
    };
    for at in [1 << 40, (1 << 30) + 512 * 5] {
        let tree = far(at).unwrap();
        assert!(tree.find(b"a").is_some() && tree.find(b"b").is_some(), "{at}");
    }
    assert!(far((1 << 30) + 100).unwrap_err().to_string().contains("is no header of a member"));
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[&archives[0][..], &vec![0; 1 << 20], &archives[1]].concat(), 0).unwrap();
    let (mut calls, mut found) = (0, 0);
    let scanned = scan_watched(file, Path::new("dense.tar"), &options, &mut |count| {
        (calls, found) = (calls + 1, count);
        ControlFlow::Continue(())
    });
    assert!(scanned.unwrap().tree.find(b"b").is_some());
    assert!(calls > 16 && found == 3, "{calls} {found}");
}
