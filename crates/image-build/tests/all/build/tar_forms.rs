//! Archives made by hand: the forms of names, numbers, records and sparse maps, and what becomes of members.

use crate::tarball::Tarball;
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::DeviceNumber;
use pagefold_image_build::source::tar::{TarOptions, scan};
use pagefold_image_build::source::{Scanned, Whiteouts};
use pagefold_image_build::{BuildError, InodeId, Metadata, Pattern};
use std::io::Write;
use std::path::Path;

pub fn scan_bytes(archive: &[u8], options: &TarOptions) -> Result<Scanned, BuildError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(archive).unwrap();
    scan(file, Path::new("a.tar"), options)
}

pub fn scanned(archive: Tarball) -> Scanned {
    scan_bytes(&archive.end(), &TarOptions::default()).unwrap()
}

/// The message of the refusal, without the archive's name.
pub fn refusal(archive: &[u8]) -> String {
    match scan_bytes(archive, &TarOptions::default()) {
        Err(error @ BuildError::Archive { .. }) => error.to_string().replace("'a.tar', member ", ""),
        other => panic!("{other:?}"),
    }
}

fn find(scanned: &Scanned, path: &str) -> InodeId {
    scanned.tree.find(path.as_bytes()).unwrap_or_else(|| panic!("{path} is missing"))
}

fn metadata(scanned: &Scanned, path: &str) -> Metadata {
    scanned.tree.metadata(find(scanned, path))
}

pub fn kind(scanned: &Scanned, path: &str) -> FileKind {
    scanned.tree.kind(find(scanned, path))
}

pub fn target<'s>(scanned: &'s Scanned, path: &str) -> Option<&'s [u8]> {
    scanned.tree.link_target(find(scanned, path))
}

pub fn contents(scanned: &Scanned, path: &str) -> Vec<u8> {
    let content = scanned.tree.content(find(scanned, path), path.as_bytes()).unwrap();
    let mut bytes = vec![0; content.len_bytes() as usize];
    let reader = content.open().unwrap();
    reader.read_exact_at(&mut bytes, 0).unwrap();
    reader.finish().unwrap();
    bytes
}

#[test]
fn names_come_from_headers_prefixes_long_names_and_records() {
    let long = "l".repeat(200);
    let archive = Tarball::default()
        .raw(Tarball::header(b"name", b'0', 0), |block| block[345..351].copy_from_slice(b"prefix"))
        .raw(Tarball::header(&[b'h'; 100], 0, 0), |block| block[257..265].fill(0))
        .raw(Tarball::header(b"gnu", b'0', 0), |block| {
            block[257..265].copy_from_slice(b"ustar  \0");
            block[345..351].copy_from_slice(b"atime!");
        })
        .long(b'L', format!("d/{long}").as_bytes())
        .long(b'K', b"target of a link")
        .member("short", b'2', "short")
        .pax(b'x', &[("path", b"from/pax"), ("linkpath", b"to/pax")])
        .member("short", b'2', "short")
        .member("./dotted//x/./y", b'0', "")
        .member("/absolute", b'0', "")
        .member("slashed/", 0, "");
    let scanned = scanned(archive);
    for path in ["prefix/name", &"h".repeat(100), "gnu", "dotted/x/y", "absolute"] {
        assert_eq!(kind(&scanned, path), FileKind::Regular, "{path}");
    }
    assert_eq!(target(&scanned, &format!("d/{long}")), Some(&b"target of a link"[..]));
    assert_eq!(target(&scanned, "from/pax"), Some(&b"to/pax"[..]));
    assert_eq!(kind(&scanned, "slashed"), FileKind::Directory);
    assert!(scanned.tree.find(b"short").is_none());
    let made = metadata(&scanned, "dotted/x");
    assert_eq!((made.permissions, made.uid, made.mtime.seconds), (0o755, 0, 0o14527252200));
}

#[test]
fn a_file_with_contents_whose_name_ends_in_a_slash_is_a_file() {
    for letter in [b'0', 0, b'7'] {
        let archive = Tarball::default()
            .raw(Tarball::header(b"d/file/", letter, 4), |_| {})
            .data(b"data")
            .pax(b'x', &[("path", b"by-record/"), ("size", b"3")])
            .raw(Tarball::header(b"short", letter, 0), |_| {})
            .data(b"abc")
            .pax(b'x', &[("GNU.sparse.realsize", b"9"), ("GNU.sparse.map", b"9,0")])
            .raw(Tarball::header(b"hole/", letter, 0), |_| {})
            .raw(Tarball::header(b"empty/", letter, 0), |_| {});
        let scanned = scanned(archive);
        assert_eq!(contents(&scanned, "d/file"), b"data");
        assert_eq!(contents(&scanned, "by-record"), b"abc");
        assert_eq!(contents(&scanned, "hole"), [0; 9]);
        assert_eq!(kind(&scanned, "empty"), FileKind::Directory);
    }
    let below = Tarball::default()
        .raw(Tarball::header(b"file/", b'0', 4), |_| {})
        .data(b"data")
        .file("file/below", b"")
        .end();
    assert!(refusal(&below).contains("'file/below': it is below 'file', no directory"));
}

#[test]
fn numbers_come_from_octal_binary_and_records() {
    let archive = Tarball::default()
        .raw(Tarball::header(b"binary", b'0', 0), |block| {
            block[108..116].copy_from_slice(&[0x80, 0, 0, 0, 0, 1, 0, 0]);
            block[136..148].copy_from_slice(&[0xff; 12]);
        })
        .pax(b'g', &[("gid", b"77"), ("mtime", b"5"), ("comment", b"")])
        .pax(b'x', &[("uid", b"70000"), ("mtime", b"-0.75"), ("hdrcharset", b"BINARY")])
        .file("records", b"12345")
        .pax(b'x', &[("gid", b""), ("uid", b"")])
        .raw(Tarball::header(b"device", b'3', 0), |block| {
            block[329..345].copy_from_slice(b"0000403\x000000007\0");
        })
        .pax(b'x', &[("SCHILY.devmajor", b"10"), ("SCHILY.devminor", b"1048575"), ("size", b"3")])
        .raw(Tarball::header(b"device2", b'4', 0), |_| {})
        .pax(b'x', &[("size", b"3")])
        .raw(Tarball::header(b"sized", b'0', 9999), |_| {})
        .data(b"abc");
    let scanned = scanned(archive);
    let of = |path| {
        let metadata = metadata(&scanned, path);
        (metadata.uid, metadata.gid, metadata.mtime.seconds, metadata.mtime.nanoseconds)
    };
    assert_eq!(of("binary"), (65536, 0o144, -1, 0));
    assert_eq!(of("records"), (70000, 77, -1, 250_000_000));
    assert_eq!(of("device"), (0o1750, 0o144, 5, 0));
    assert_eq!(metadata(&scanned, "records").permissions, 0o640);
    let device = |path| (kind(&scanned, path), scanned.tree.device(find(&scanned, path)));
    let number = |major, minor| Some(DeviceNumber { major, minor });
    assert_eq!(device("device"), (FileKind::CharDevice, number(0o403, 7)));
    assert_eq!(device("device2"), (FileKind::BlockDevice, number(10, 1048575)));
    assert_eq!(
        (contents(&scanned, "records"), contents(&scanned, "sized")),
        (b"12345".to_vec(), b"abc".to_vec())
    );
}

#[test]
fn the_last_member_of_a_name_counts() {
    let archive = Tarball::default()
        .file("a", b"first")
        .member("link", b'1', "a")
        .file("a", b"second")
        .member("d", b'5', "")
        .file("d/kept", b"kept")
        .pax(b'x', &[("uid", b"9")])
        .member("d/", b'5', "")
        .member("s", b'2', "d")
        .member("s", b'5', "")
        .member("e", b'5', "")
        .file("e", b"no directory")
        .member("link", b'1', "./link")
        .pax(b'x', &[("uid", b"8")])
        .member(".", b'5', "");
    let scanned = scanned(archive);
    assert_eq!(
        (contents(&scanned, "a"), contents(&scanned, "link")),
        (b"second".to_vec(), b"first".to_vec())
    );
    assert_eq!(contents(&scanned, "d/kept"), b"kept");
    assert_eq!((metadata(&scanned, "d").uid, metadata(&scanned, "").uid), (9, 8));
    assert_eq!(kind(&scanned, "s"), FileKind::Directory);
    assert_eq!(contents(&scanned, "e"), b"no directory");
}

#[test]
fn what_extraction_refuses_is_refused_by_name() {
    let one =
        |name: &str, letter, link: &str| Tarball::default().file("f", b"x").member(name, letter, link).end();
    let long_name = format!("SCHILY.xattr.user.{}", "a".repeat(251));
    for (archive, wanted) in [
        (one("a/../../b", b'0', ""), "'a/../../b': a path that '..' leads out of the archive"),
        (one("f/x", b'0', ""), "'f/x': it is below 'f', no directory"),
        (one("x", b'1', "missing"), "'x': a hard link to 'missing', which is not before it"),
        (one("x", b'1', "x"), "'x': a hard link to 'x', which is not before it"),
        (one("x", b'1', "./"), "'x': a hard link to './', a directory"),
        (one("x", b'1', "../f"), "'x': a hard link to '../f': a path that '..' leads out"),
        (one("x", b'1', ""), "'x': a hard link to '': it has no name"),
        (one("", b'0', ""), "'': it has no name"),
        (one("./", b'2', "f"), "'./': the root would be no directory"),
        (one("x", b'2', ""), "'x': an empty link"),
        (one("x", b'Z', ""), "'x': a member of the unknown type 'Z'"),
        (Tarball::default().long(b'L', &[b'n'; 256]).file("x", b"").end(), "a name of more than 255 bytes"),
        (
            Tarball::default().long(b'L', &b"n/".repeat(2100)).file("x", b"").end(),
            "a path of more than 4095 bytes",
        ),
        (Tarball::default().pax(b'x', &[("path", b"a\0b")]).file("x", b"").end(), "a path with a NUL byte"),
        (
            Tarball::default().pax(b'g', &[("path", b"a")]).file("x", b"").end(),
            "the record path in a global header",
        ),
        (
            Tarball::default().pax(b'x', &[("uid", b"-1")]).file("x", b"").end(),
            "'x': pax record uid: the number '-1'",
        ),
        (
            Tarball::default().file("good", b"").pax(b'x', &[("mtime", b"nan")]).file("bad", b"").end(),
            "'bad': pax record mtime: the time 'nan'",
        ),
        (
            Tarball::default().pax(b'x', &[("path", b"long"), ("mtime", b"nan")]).file("bad", b"").end(),
            "'long': pax record mtime",
        ),
        (
            Tarball::default().long(b'L', b"long").pax(b'x', &[("mtime", b"nan")]).file("bad", b"").end(),
            "'long': pax",
        ),
        (
            Tarball::default().pax(b'x', &[("mtime", b"nan")]).long(b'L', b"later").file("bad", b"").end(),
            "'bad': pax",
        ),
        (
            Tarball::default().pax(b'x', &[("path", b"a")]).end(),
            "'/': the archive ends after an extended header",
        ),
        (
            Tarball::default().pax(b'x', &[("size", b"9223372036854775807")]).file("x", b"").end(),
            "'x': its header claims 9223372036854775807 bytes; up to 2^47",
        ),
        (
            Tarball::default().raw(Tarball::header(b"x", b'0', 1 << 47), |_| {}).end(),
            "'x': the archive is cut off",
        ),
        (
            Tarball::default().raw(Tarball::header(b"x", b'0', u64::MAX), |_| {}).end(),
            "'x': its header claims 18446744073709551615 bytes; up to 2^47",
        ),
        (
            Tarball::default().pax(b'x', &[(long_name.as_str(), b"")]).file("x", b"").end(),
            "a name of more than 255 bytes",
        ),
        (
            Tarball::default().raw(Tarball::header(b"x", b'x', 2 << 20), |_| {}).end(),
            "an extended header of 2097152",
        ),
        ([Tarball::default().file("a", b"").0, vec![7; 512]].concat(), "'a': byte 512 after it is no header"),
        (Vec::new(), "'/': the archive is cut off"),
    ] {
        let found = refusal(&archive);
        assert!(found.contains(wanted), "{found}, wanted {wanted}");
    }
}

#[test]
fn attributes_and_access_lists_are_those_of_an_extracted_file() {
    let list = b"user::rwx\nuser:1000:r-x\ngroup::r-x\nmask::rwx\nother::---\n";
    let archive = Tarball::default()
        .pax(b'x', &[("SCHILY.acl.access", list), ("SCHILY.acl.default", b"u::rwx,g::r-x,o::r-x")])
        .member("dir", b'5', "")
        .pax(b'x', &[("SCHILY.acl.access", b"user::r--,group::---,other::---"), ("SCHILY.xattr.user.e", b"")])
        .file("plain", b"")
        .pax(b'x', &[("SCHILY.xattr.system.nfs4_acl", b"x"), ("SCHILY.acl.default", list)])
        .file("unknown", b"")
        .pax(b'x', &[("SCHILY.xattr.user.a", b"b"), ("SCHILY.xattr.trusted.a", b"b")])
        .member("link", b'2', "unknown")
        .pax(b'x', &[("SCHILY.xattr.user.a", b"b")])
        .member("fifo", b'6', "");
    let scanned = scanned(archive);
    assert_eq!(["link", "fifo"].map(|name| metadata(&scanned, name).xattrs.len()), [1, 0]);
    let dir = metadata(&scanned, "dir");
    let names: Vec<&[u8]> = dir.xattrs.iter().map(|(name, _)| name.as_ref()).collect();
    assert_eq!(names, [&b"system.posix_acl_access"[..], b"system.posix_acl_default"]);
    assert_eq!((dir.permissions, dir.xattrs[0].1.len()), (0o770, 4 + 5 * 8));
    let plain = metadata(&scanned, "plain");
    assert_eq!((plain.permissions, plain.xattrs.len(), scanned.dropped_xattrs), (0o400, 1, 4));
    let named = Tarball::default().pax(b'x', &[("SCHILY.acl.access", b"user:joe:rwx")]).file("x", b"").end();
    assert!(refusal(&named).contains("archive with --numeric-owner"));
    let invalid = Tarball::default().pax(b'x', &[("SCHILY.acl.access", b"user::rwx")]).file("x", b"").end();
    assert!(refusal(&invalid).contains("'x': an access control list without"));
}

#[test]
fn whiteouts_become_those_of_overlayfs() {
    let archive = Tarball::default()
        .file("d/.wh.gone", b"")
        .file("d/.wh..wh..opq", b"")
        .member("d", b'5', "")
        .file(".wh.both", b"")
        .file("both", b"new")
        .member("replaced", b'5', "")
        .file(".wh.replaced", b"")
        .file(".wh..wh.plnk", b"")
        .end();
    let plain = scan_bytes(&archive, &TarOptions::default()).unwrap();
    assert_eq!(contents(&plain, "d/.wh.gone"), b"");
    let options = TarOptions { whiteouts: Whiteouts::Overlay, ..TarOptions::default() };
    let scanned = scan_bytes(&archive, &options).unwrap();
    let zero = DeviceNumber { major: 0, minor: 0 };
    assert_eq!(kind(&scanned, "d/gone"), FileKind::CharDevice);
    assert_eq!(scanned.tree.device(find(&scanned, "d/gone")), Some(zero));
    assert_eq!(contents(&scanned, "both"), b"new");
    let opaque: (&[u8], &[u8]) = (b"trusted.overlay.opaque", b"y");
    let origin: (&[u8], &[u8]) = (b"trusted.overlay.origin", b"");
    for (path, wanted) in [("d", vec![opaque, origin]), ("replaced", vec![opaque])] {
        assert_eq!(pairs(&metadata(&scanned, path)), wanted, "{path}");
    }
    assert_eq!(scanned.tree.entries(InodeId::ROOT).count(), 3);
    assert!(metadata(&scanned, "").xattrs.is_empty());
}

/// Names and values of attributes.
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

fn pairs(metadata: &Metadata) -> Pairs<'_> {
    metadata.xattrs.iter().map(|(name, value)| (&**name, &**value)).collect()
}

#[test]
fn whiteouts_of_mounts_with_user_attributes_have_these() {
    let options = TarOptions { whiteouts: Whiteouts::OverlayUser, ..TarOptions::default() };
    let archive = Tarball::default()
        .pax(b'x', &[("SCHILY.xattr.trusted.overlay.redirect", b"r"), ("SCHILY.xattr.trusted.a", b"b")])
        .member("d", b'5', "")
        .file("d/.wh..wh..opq", b"")
        .file("d/.wh.gone", b"")
        .pax(
            b'x',
            &[("SCHILY.xattr.trusted.overlay.origin", b"o"), ("SCHILY.xattr.user.overlay.origin", b"p")],
        )
        .file("both", b"")
        .pax(b'x', &[("SCHILY.xattr.trusted.overlay.origin", b"o")])
        .member("link", b'2', "both")
        .file(".wh.x", b"")
        .end();
    let scanned = scan_bytes(&archive, &options).unwrap();
    let [opaque, origin, redirect]: [&[u8]; 3] =
        [b"user.overlay.opaque", b"user.overlay.origin", b"user.overlay.redirect"];
    let wanted: [(&str, Pairs<'_>); 4] = [
        ("d", vec![(b"trusted.a", b"b"), (opaque, b"y"), (origin, b""), (redirect, b"r")]),
        ("both", vec![(origin, b"p")]),
        ("link", vec![]),
        ("", vec![(origin, b"")]),
    ];
    for (path, wanted) in wanted {
        assert_eq!(pairs(&metadata(&scanned, path)), wanted, "{path}");
    }
}

#[test]
fn directories_that_have_whiteouts_already_are_marked() {
    let origin: (&[u8], &[u8]) = (b"trusted.overlay.origin", b"");
    let archive = Tarball::default()
        .member("a/gone", b'3', "")
        .file("b/file", b"")
        .raw(Tarball::header(b"b/device", b'3', 0), |block| block[329..337].copy_from_slice(b"0000001\0"))
        .pax(b'x', &[("SCHILY.xattr.user.overlay.origin", b"u")])
        .member("c", b'5', "")
        .member("c/gone", b'3', "")
        .end();
    for (whiteouts, c) in [
        (Whiteouts::Files, vec![(&b"user.overlay.origin"[..], &b"u"[..])]),
        // The attribute is renamed.
        (Whiteouts::Overlay, vec![(b"trusted.overlay.origin", b"u")]),
    ] {
        let scanned = scan_bytes(&archive, &TarOptions { whiteouts, ..TarOptions::default() }).unwrap();
        let wanted = [("", vec![]), ("a", vec![origin]), ("b", vec![]), ("c", c)];
        for (path, wanted) in wanted {
            assert_eq!(pairs(&metadata(&scanned, path)), wanted, "{path}");
        }
    }
}

#[test]
fn files_by_which_aufs_describes_a_layer_are_dropped_and_links_to_them_stay() {
    let archive = Tarball::default()
        .member(".wh..wh.plnk/", b'5', "")
        .file(".wh..wh.plnk/1.2", b"data")
        .member("etc/x", b'1', ".wh..wh.plnk/1.2")
        .file(".wh..wh.aufs", b"")
        .member("etc/.wh.gone", b'1', ".wh..wh.aufs")
        .member("etc/.wh.lost", b'1', "not/there")
        .member("etc/.wh..wh.orph/", b'5', "")
        .end();
    for whiteouts in [Whiteouts::Overlay, Whiteouts::OverlayUser] {
        let scanned = scan_bytes(&archive, &TarOptions { whiteouts, ..TarOptions::default() }).unwrap();
        assert_eq!(contents(&scanned, "etc/x"), b"data");
        assert_eq!(scanned.tree.entries(InodeId::ROOT).count(), 1);
        assert_eq!(scanned.tree.entries(find(&scanned, "etc")).count(), 3);
        assert!(["gone", "lost"].iter().all(|n| kind(&scanned, &format!("etc/{n}")) == FileKind::CharDevice));
    }
    let nothing = Tarball::default().file("d/.wh.", b"").end();
    let overlay = TarOptions { whiteouts: Whiteouts::Overlay, ..TarOptions::default() };
    let error = scan_bytes(&nothing, &overlay).unwrap_err().to_string();
    assert!(error.contains("'d/.wh.': a whiteout of no name"), "{error}");
}

#[test]
fn links_of_directories_to_themselves_are_passed_over() {
    let archive = Tarball::default()
        .member(".", b'5', "")
        .member("/", b'1', ".")
        .member("./", b'1', "/")
        .member("d", b'5', "")
        .member("d", b'1', "./d/")
        .member("d/f", b'0', "")
        .member("d/f", b'1', "d/f");
    assert_eq!(contents(&scanned(archive), "d/f"), b"");
    let other = Tarball::default().member("d", b'5', "").member("e", b'1', "d").end();
    assert!(refusal(&other).contains("'e': a hard link to 'd', a directory"));
    let root = Tarball::default().file("f", b"").member(".", b'1', "f").end();
    assert!(refusal(&root).contains("the root would be no directory"));
}

#[test]
fn patterns_leave_out_members() {
    let archive =
        Tarball::default().file("a/x.o", b"o").member("a/y", b'1', "a/x.o").file("b/c/d", b"").end();
    let exclude = ["*.o", "b/c"].map(|text| Pattern::parse(text).unwrap()).to_vec();
    let scanned = scan_bytes(&archive, &TarOptions { exclude, ..TarOptions::default() }).unwrap();
    assert!(scanned.tree.find(b"a/x.o").is_none() && scanned.tree.find(b"b/c").is_none());
    assert_eq!(contents(&scanned, "a/y"), b"o");
}
