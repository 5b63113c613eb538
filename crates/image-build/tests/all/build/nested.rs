//! Whiteouts and attributes of overlayfs in a source, with all treatments; the end-to-end tests mount the results.

use super::tar_forms::scan_bytes;
use crate::tarball::Tarball;
use pagefold_image::read::FileKind;
use pagefold_image_build::Tree;
use pagefold_image_build::source::tar::TarOptions;
use pagefold_image_build::source::{NestedOverlay, OverlayFound, Scanned, Whiteouts};

/// A layer that hides `gone` by a file, and has whiteouts and attributes of another mount.
fn archive() -> Vec<u8> {
    Tarball::default()
        .file(".wh.gone", b"")
        .pax(b'x', &[("SCHILY.xattr.trusted.overlay.redirect", b"r"), ("SCHILY.xattr.user.a", b"1")])
        .member("d", b'5', "")
        .member("d/hidden", b'3', "")
        .member("other", b'1', "d/hidden")
        .pax(
            b'x',
            &[("SCHILY.xattr.trusted.overlay.opaque", b"y"), ("SCHILY.xattr.user.overlay.opaque", b"y")],
        )
        .member("op", b'5', "")
        .member("op/hidden", b'1', "d/hidden")
        .pax(b'x', &[("SCHILY.xattr.trusted.overlay.overlay.opaque", b"y")])
        .member("escaped", b'5', "")
        .file("left-out/.wh.x", b"")
        .member("left-out/y", b'3', "")
        .end()
}

fn scanned(nested: NestedOverlay, whiteouts: Whiteouts) -> Scanned {
    let exclude = vec![pagefold_image_build::Pattern::parse("left-out").unwrap()];
    scan_bytes(&archive(), &TarOptions { nested, whiteouts, exclude, ..TarOptions::default() }).unwrap()
}

/// Names and values of the attributes at a path, and the type of file if that is a device or regular.
fn shown(tree: &Tree, path: &str) -> String {
    let Some(id) = tree.find(path.as_bytes()) else { return "none".into() };
    let kind = match tree.kind(id) {
        FileKind::CharDevice => "device ",
        FileKind::Regular => "file ",
        _ => "",
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = tree.xattrs(id).iter().map(|(n, v)| format!("{}={} ", text(n), text(v))).collect::<String>();
    let short = |text: &str| text.replace("trusted.overlay.", "T.").replace("user.overlay.", "U.");
    format!("{kind}{}", short(&all)).trim_end().to_string()
}

#[test]
fn what_the_source_has_of_overlayfs_is_counted_without_what_is_left_out() {
    for nested in [NestedOverlay::Keep, NestedOverlay::Escape, NestedOverlay::Strip] {
        for whiteouts in [Whiteouts::Files, Whiteouts::Overlay, Whiteouts::OverlayUser] {
            let found = scanned(nested, whiteouts).overlay;
            assert_eq!(found, OverlayFound { whiteouts: 3, xattrs: 3 }, "{nested:?} {whiteouts:?}");
        }
    }
    let plain = scan_bytes(&Tarball::default().file("f", b"").end(), &TarOptions::default()).unwrap();
    assert_eq!(plain.overlay, OverlayFound::default());
}

#[test]
fn whiteouts_and_attributes_are_escaped_for_the_kind_of_mount() {
    let of_root = [
        ("", "T.overlay.opaque=x T.overlay.whiteouts= U.opaque=x U.whiteouts="),
        (
            "d",
            "T.overlay.opaque=x T.overlay.redirect=r T.overlay.whiteouts= user.a=1 U.opaque=x U.whiteouts=",
        ),
        ("d/hidden", "file T.overlay.whiteout= U.whiteout="),
        ("other", "file T.overlay.whiteout= U.whiteout="),
        ("op", "T.overlay.opaque=y U.opaque=y"),
        ("op/hidden", "none"),
        ("escaped", "T.overlay.overlay.opaque=y"),
    ];
    let files = scanned(NestedOverlay::Escape, Whiteouts::Files).tree;
    for (path, wanted) in of_root {
        assert_eq!(shown(&files, path), wanted, "{path}");
    }
    assert_eq!(shown(&files, ".wh.gone"), "file");
    // The layer's whiteout hides a name, and those of the source do not.
    let overlay = scanned(NestedOverlay::Escape, Whiteouts::Overlay).tree;
    assert_eq!(shown(&overlay, "gone"), "device");
    let root = "T.origin= T.overlay.opaque=x T.overlay.whiteouts= U.opaque=x U.whiteouts=";
    for (path, wanted) in [("", root)].iter().chain(&of_root[1..]) {
        assert_eq!(shown(&overlay, path), *wanted, "{path}");
    }
    let user = scanned(NestedOverlay::Escape, Whiteouts::OverlayUser).tree;
    for (path, wanted) in [
        ("", "T.opaque=x T.whiteouts= U.origin= U.overlay.opaque=x U.overlay.whiteouts="),
        ("d", "T.opaque=x T.redirect=r T.whiteouts= user.a=1 U.overlay.opaque=x U.overlay.whiteouts="),
        ("other", "file T.whiteout= U.overlay.whiteout="),
        ("op", "T.opaque=y U.overlay.opaque=y"),
        ("op/hidden", "none"),
        ("escaped", "T.overlay.opaque=y"),
    ] {
        assert_eq!(shown(&user, path), wanted, "{path}");
    }
}

#[test]
fn whiteouts_and_attributes_are_left_out() {
    for (whiteouts, gone) in [(Whiteouts::Files, "none"), (Whiteouts::Overlay, "device")] {
        let tree = scanned(NestedOverlay::Strip, whiteouts).tree;
        for (path, wanted) in [
            ("gone", gone),
            ("d", "user.a=1"),
            ("d/hidden", "none"),
            ("other", "none"),
            ("op", ""),
            ("escaped", ""),
        ] {
            assert_eq!(shown(&tree, path), wanted, "{whiteouts:?} {path}");
        }
    }
}

#[test]
fn files_that_are_whiteouts_by_an_attribute_are_left_out_with_it() {
    let mark = |name: &str| {
        Tarball::default().pax(b'x', &[(&format!("SCHILY.xattr.{name}"), b"")]).file("d/hidden", b"").end()
    };
    for name in ["trusted.overlay.whiteout", "user.overlay.whiteout", "trusted.overlay.overlay.whiteout"] {
        let scanned =
            |nested| scan_bytes(&mark(name), &TarOptions { nested, ..TarOptions::default() }).unwrap();
        let kept = scanned(NestedOverlay::Keep);
        assert_eq!(
            shown(&kept.tree, "d/hidden"),
            format!("file {name}=").replace("trusted.overlay.", "T.").replace("user.overlay.", "U.")
        );
        let stripped = scanned(NestedOverlay::Strip);
        assert_eq!(shown(&stripped.tree, "d/hidden"), "none", "{name}");
        assert_eq!(stripped.overlay.whiteouts, 1, "{name}");
    }
    // A file with contents is none.
    let other = Tarball::default()
        .pax(b'x', &[("SCHILY.xattr.user.overlay.whiteout", b"")])
        .file("f", b"contents")
        .end();
    let stripped =
        scan_bytes(&other, &TarOptions { nested: NestedOverlay::Strip, ..TarOptions::default() }).unwrap();
    assert_eq!(shown(&stripped.tree, "f"), "file");
}
