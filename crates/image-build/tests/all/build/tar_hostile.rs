//! Archives that are cut off, damaged, or made to exhaust a program.

use super::options;
use super::tar_forms::{refusal, scan_bytes};
use crate::tarball::Tarball;
use pagefold_image_build::source::tar::{TarOptions, scan};
use pagefold_image_build::{BuildError, Tree, build};
use proptest::prelude::*;
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;

/// An archive with all kinds of headers, without its end.
fn archive() -> Tarball {
    members().into_iter().fold(Tarball::default(), |archive, add| add(archive))
}

/// Functions that add the members of the archive, in order.
fn members() -> Vec<fn(Tarball) -> Tarball> {
    vec![
        |archive| archive.pax(b'g', &[("comment", b"global")]),
        |archive| archive.member("d/", b'5', ""),
        |archive| archive.long(b'L', &[b'n'; 200]).file("short", &[b'x'; 700]),
        |archive| {
            archive
                .pax(b'x', &[("path", b"d/pax"), ("mtime", b"1.5"), ("SCHILY.xattr.user.a", b"b")])
                .file("short", b"y")
        },
        |archive| archive.member("link", b'1', "d/pax"),
        |archive| {
            archive
                .pax(b'x', &[("GNU.sparse.map", b"512,512,4096,1"), ("GNU.sparse.size", b"9999")])
                .file("sparse", &[b's'; 513])
        },
        |archive| {
            archive
                .raw(old_sparse(0o20000, &[(512, 512)], true), |_| {})
                .data(&continuation(&[(1024, 512)]))
                .data(&[b'o'; 1024])
        },
    ]
}

/// A header of GNU's old sparse form.
fn old_sparse(real: u64, map: &[(u64, u64)], is_continued: bool) -> [u8; 512] {
    let stored = map.iter().map(|(_, len)| len).sum::<u64>() + 512 * u64::from(is_continued);
    let mut block = Tarball::header(b"old", b'S', stored);
    block[257..265].copy_from_slice(b"ustar  \0");
    put_map(&mut block[386..], map);
    block[482] = is_continued.into();
    block[483..494].copy_from_slice(format!("{real:011o}").as_bytes());
    block
}

fn put_map(area: &mut [u8], map: &[(u64, u64)]) {
    for ((offset, len), entry) in map.iter().zip(area.chunks_mut(24)) {
        entry[..12].copy_from_slice(format!("{offset:011o} ").as_bytes());
        entry[12..24].copy_from_slice(format!("{len:011o} ").as_bytes());
    }
}

fn continuation(map: &[(u64, u64)]) -> [u8; 512] {
    let mut block = [0; 512];
    put_map(&mut block, map);
    block
}

/// Only the end of a member can be the end of an archive without its mark.
#[test]
fn an_archive_that_is_cut_off_within_a_member_is_refused() {
    let whole = archive().end();
    let end = whole.len() - 1024;
    let mut so_far = Tarball::default();
    let ends = members().into_iter().map(|add| {
        so_far = add(std::mem::take(&mut so_far));
        so_far.0.len()
    });
    let ends: Vec<usize> = ends.collect();
    let note = |cut: usize| scan_bytes(&whole[..cut], &TarOptions::default()).unwrap().notes.concat();
    assert_eq!(note(whole.len()), "");
    for cut in (0..end).step_by(7).chain((0..end).step_by(512)).filter(|cut| !ends.contains(cut)) {
        let message = refusal(&whole[..cut]);
        assert!(message.contains("cut off"), "{cut}: {message}");
    }
    for cut in ends.into_iter().chain(end..end + 512) {
        assert!(note(cut).contains("ends without blocks of zeroes"), "{cut}");
    }
    assert!(note(end + 512).contains("ends with one block of zeroes in place of two"));
    (end + 513..whole.len()).for_each(|cut| assert_eq!(note(cut), "", "{cut}"));
}

/// A link can lead through two thousand names, and an archive of a megabyte can have two thousand members below it.
#[test]
fn the_work_for_links_is_limited() {
    let mut archive = Tarball::default().long(b'K', &b"./".repeat(2040)).member("l0", b'2', "");
    for link in 1..=39 {
        let target = [&b"./".repeat(2040)[..], format!("l{}", link - 1).as_bytes()].concat();
        archive = archive.long(b'K', &target).member(&format!("l{link}"), b'2', "");
    }
    let below = |count: usize| {
        (0..count).fold(archive.clone(), |archive, n| archive.file(&format!("l39/{n}"), b"")).end()
    };
    let few = scan_bytes(&below(40), &TarOptions::default()).unwrap();
    assert!(few.tree.find(b"39").is_some());
    let message = refusal(&below(2000));
    assert!(message.contains("lead through too many names: the last one is 'l"), "{message}");
}

#[test]
fn sparse_maps_of_each_form_are_checked() {
    for (real, map) in [
        (4096, &[(512, 512), (0, 512)][..]),
        (4096, &[(0, 1024), (512, 512)]),
        (4096, &[(4000, 512)]),
        (4096, &[(1 << 32, 0)]),
    ] {
        let old = Tarball::default().raw(old_sparse(real, map, false), |_| {}).data(&[0; 2048]).end();
        assert!(refusal(&old).contains("'old': the map of a sparse file of 4096 bytes"), "{map:?}");
    }
    for (size, map, stored, wanted) in [
        ("100", "5,10,5,10", 20, "the map of a sparse file of 100 bytes"),
        ("100", "9223372036854775808,9223372036854775808", 20, "the map of a sparse file of 100 bytes"),
        ("100", "18446744073709551615,2", 2, "the map of a sparse file of 100 bytes"),
        ("100", "5,18446744073709551616", 20, "pax record GNU.sparse.map: the number"),
        ("100", "0,10", 20, "the map of a sparse file has 10 bytes, the archive 20"),
        ("100", "0,30", 20, "the map of a sparse file has 30 bytes, the archive 20"),
        ("9223372036854775807", "0,20", 20, "a sparse file of 9223372036854775807 bytes; up to 2^47"),
        ("", "0,20", 20, "a sparse file without a length"),
    ] {
        let records = [("GNU.sparse.map", map.as_bytes()), ("GNU.sparse.size", size.as_bytes())];
        let archive = Tarball::default().pax(b'x', &records).file("f", &vec![1; stored]).end();
        let message = refusal(&archive);
        assert!(message.contains(wanted), "{message}, wanted {wanted}");
    }
    let records =
        [("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"100")];
    for text in
        ["", "x", "1\n5\n", "99999999999999999999\n", "1\n\n\n", "18446744073709551615\n0\n0\n", "1\n0\n-1\n"]
    {
        let archive = Tarball::default().pax(b'x', &records).file("f", text.as_bytes()).end();
        let message = refusal(&archive);
        assert!(message.contains("the map of a sparse file is damaged"), "{text:?}: {message}");
    }
    let other = Tarball::default().pax(b'x', &[("GNU.sparse.major", b"2")]).file("f", b"").end();
    assert!(refusal(&other).contains("a sparse file of form 2.0"));
}

#[test]
fn the_total_of_sparse_files_is_limited() {
    let size = (1u64 << 46).to_string();
    let records = [("GNU.sparse.size", size.as_bytes())];
    let one = |name| Tarball::default().pax(b'x', &records).file(name, b"").0;
    let archive = Tarball([one("a"), one("b"), one("c")].concat()).end();
    assert!(refusal(&archive).contains("'c': with its 70368744177664 bytes the files have more than 2^47"));
}

#[test]
fn metadata_has_a_limit() {
    let value = vec![b'v'; 60_000];
    let mut archive = Tarball::default();
    for i in 0..40 {
        archive = archive.pax(b'x', &[("SCHILY.xattr.user.a", &value)]).file(&format!("{i}"), b"");
    }
    let archive = archive.end();
    assert!(scan_bytes(&archive, &TarOptions::default()).is_ok());
    let small = TarOptions { metadata_bytes_max: 1 << 20, ..TarOptions::default() };
    match scan_bytes(&archive, &small) {
        Err(BuildError::Archive { what, .. }) => {
            assert!(what.contains("takes more than 1 MiB, the limit"), "{what}")
        }
        other => panic!("{other:?}"),
    }
    // A path of 2000 directories in each member.
    let mut deep = Tarball::default();
    for i in 0..40 {
        deep = deep.long(b'L', format!("{i}/{}", "d/".repeat(2000)).as_bytes()).member("x", b'5', "");
    }
    assert!(matches!(scan_bytes(&deep.end(), &small), Err(BuildError::Archive { .. })));
    let attribute = vec![b'v'; 65_536];
    let large = Tarball::default().pax(b'x', &[("SCHILY.xattr.user.a", &attribute)]).file("f", b"").end();
    assert!(refusal(&large).contains("'f': attribute user.a: more than 64 KiB"));
}

/// Extended headers are in memory until their member comes.
#[test]
fn extended_headers_have_limits() {
    let claims = Tarball::default().raw(Tarball::header(b"pax", b'x', 1 << 30), |_| {}).end();
    assert!(refusal(&claims).contains("an extended header of 1073741824 bytes; up to 1 MiB"));
    let value = vec![b'v'; 60_000];
    let with = |headers: usize| {
        let mut archive = Tarball::default();
        for i in 0..headers {
            archive = archive.pax(b'x', &[(&format!("SCHILY.xattr.user.{i}"), &value)]);
        }
        archive.file("f", b"").end()
    };
    assert!(scan_bytes(&with(20), &TarOptions::default()).is_ok());
    assert!(refusal(&with(80)).contains("'f': extended headers of more than 4 MiB"));
}

/// Members that add nothing but their names are charged too: so is each of many with one name.
#[test]
fn empty_members_are_charged() {
    let small = TarOptions { metadata_bytes_max: 1 << 20, ..TarOptions::default() };
    for is_one_name in [false, true] {
        let mut archive = Tarball::default();
        for i in 0..20_000 {
            archive = archive.file(&if is_one_name { "f".to_string() } else { format!("{i}") }, b"");
        }
        let refused = scan_bytes(&archive.end(), &small);
        assert!(matches!(refused, Err(BuildError::Archive { .. })), "{is_one_name}");
    }
}

#[test]
fn only_the_last_of_many_long_names_counts() {
    let mut archive = Tarball::default();
    for i in 0..5000 {
        archive = archive.long(b'L', format!("name-{i}").as_bytes());
    }
    let scanned = scan_bytes(&archive.file("f", b"").end(), &TarOptions::default()).unwrap();
    assert_eq!(scanned.tree.len(), 2);
    assert!(scanned.tree.find(b"name-4999").is_some());
}

#[test]
fn hard_links_that_form_a_loop_are_refused() {
    let archive = Tarball::default().member("a", b'1', "b").member("b", b'1', "a").end();
    assert!(refusal(&archive).contains("'a': a hard link to 'b', which is not before it"));
}

fn run(tree: &Tree) -> Result<(), BuildError> {
    let file = tempfile::tempfile().unwrap();
    build(tree, &options("lz4", 4096, false), &file, &mut |_| ControlFlow::Continue(())).map(|_| ())
}

#[test]
fn an_archive_that_changes_after_the_scan_is_an_error() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a.tar");
    fs::write(&path, Tarball::default().file("f", b"contents").end()).unwrap();
    let tree = scan(File::open(&path).unwrap(), &path, &TarOptions::default()).unwrap().tree;
    assert!(run(&tree).is_ok());
    File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert!(matches!(run(&tree), Err(BuildError::Changed { path }) if path.ends_with("a.tar")));
    File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
    assert!(matches!(run(&tree), Err(BuildError::Changed { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Whatever bytes are changed, the scan ends, and what it accepts can be read.
    #[test]
    fn damaged_archives_are_refused_or_readable(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = archive().end();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for block in bytes.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        if let Ok(scanned) = scan_bytes(&bytes, &TarOptions::default()) {
            for path in [&b"d/pax"[..], b"sparse", b"old", &[b'n'; 200]] {
                let Some(id) = scanned.tree.find(path) else { continue };
                let Some(content) = scanned.tree.content(id, path) else { continue };
                let mut beginning = vec![0; content.len_bytes().min(1 << 20) as usize];
                content.open().unwrap().read_exact_at(&mut beginning, 0).unwrap();
            }
        }
    }
}
