//! Images of container layers, as lower layers of the kernel's overlayfs.

use crate::support::Sandbox;
use pagefold_sys::{fusedev, rundir};
use pagefold_testkit::skipped;
use std::fs;
use std::process::Command;

/// A sandbox with a lower layer `low`, a layer of changes in the form of OCI as `layer` and `layer.tar`, and the folders
/// of a mount.
fn sandbox(test: &str) -> Option<Sandbox> {
    if rundir::effective_uid() != 0 || fusedev::open().is_err() {
        skipped!("{test}: needs root and /dev/fuse");
        return None;
    }
    let s = Sandbox::new();
    let script = "
        mkdir low low/opaque low/merged low/opaque/sub at ov
        touch low/opaque/old low/opaque/gone low/merged/gone low/merged/kept low/gone
        mkdir layer layer/opaque layer/merged layer/alone
        touch layer/opaque/.wh..wh..opq layer/opaque/.wh.gone layer/opaque/new
        touch layer/merged/.wh.gone layer/merged/new layer/alone/.wh.x layer/alone/new layer/.wh.gone
        tar --format=pax -cf layer.tar -C layer .";
    let ran = Command::new("sh").args(["-ec", script]).current_dir(s.path("")).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    Some(s)
}

/// The names of all files below `ov`, after they were copied, and in the copy removed.
const USE_ALL: &str = "cd ov; find . -type f | sort | tr '\\n' ' '; find . -exec stat {} + > ../stat; \
    cp -a . ../copy; diff -r . ../copy; rm -r ../copy; tar -cf ../tar .; ls -R > ../ls";
const WANTED: &str = "./alone/new ./merged/kept ./merged/new ./opaque/new ";

/// Runs a script in a mount namespace with the image at `at`.
fn with_mounted(s: &Sandbox, image: &str, unshare: &str, script: &str) -> String {
    s.ok(&format!("image mount -q --allow-other {} {}", s.path(image).display(), s.path("at").display()));
    let mut command = Command::new("unshare");
    command.args(unshare.split_whitespace()).args(["sh", "-ec", script]).current_dir(s.path(""));
    let ran = command.output().unwrap();
    s.ok(&format!("image unmount {}", s.path("at").display()));
    assert!(ran.status.success(), "{image}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn the_kernels_overlay_hides_whiteouts_in_directories_that_it_does_not_merge() {
    let Some(s) = sandbox("the_kernels_overlay_hides_whiteouts_in_directories_that_it_does_not_merge") else {
        return;
    };
    let at = |name: &str| s.path(name).display().to_string();
    let build = |words: &str, out: &str| s.ok(&format!("image build -q {words} {}", at(out)));
    build(&format!("--whiteouts overlay {}", at("layer.tar")), "archive");
    build(&format!("--whiteouts overlay {}", at("layer")), "folder");
    assert!(fs::read(s.path("archive")).unwrap() == fs::read(s.path("folder")).unwrap());
    build(&at("archive"), "rebuilt");
    assert!(fs::read(s.path("archive")).unwrap() == fs::read(s.path("rebuilt")).unwrap());
    // An upper directory whose attributes got lost, as other programs copy it.
    let script = "mkdir upper; cp -a layer/. upper; cd upper; find . -name '.wh.*' -exec rm {} +
        mknod gone c 0 0; for d in opaque merged; do mknod $d/gone c 0 0; done; mknod alone/x c 0 0
        setfattr -n trusted.overlay.opaque -v y opaque";
    let ran = Command::new("sh").args(["-ec", script]).current_dir(s.path("")).status().unwrap();
    assert!(ran.success());
    build(&at("upper"), "of-upper");
    for image in ["archive", "of-upper"] {
        let mount = format!("mount -t overlay -o ro,lowerdir=at:low ov ov; {USE_ALL}");
        assert_eq!(with_mounted(&s, image, "-m", &mount), WANTED, "{image}");
        let upper = "mkdir u w; mount -t overlay -o upperdir=u,workdir=w,lowerdir=at:low ov ov; rm -r ov/*
            test -z \"$(ls -A ov)\"; umount ov; rm -r u w";
        with_mounted(&s, image, "-m", upper);
        // The kernel's own EROFS, where there is one.
        let kernel = format!(
            "mkdir k; mount -t erofs -o loop,ro {image} k || {{ rmdir k; exit 0; }}
            mount -t overlay -o ro,lowerdir=k:low ov ov; ({USE_ALL}) > kernel; umount ov; umount k; rmdir k"
        );
        with_mounted(&s, image, "-m", &kernel);
        if let Ok(found) = fs::read_to_string(s.path("kernel")) {
            assert_eq!(found, WANTED, "{image}");
        }
    }
}

#[test]
fn overlay_mounts_with_user_attributes_see_what_a_layer_removed() {
    let Some(s) = sandbox("overlay_mounts_with_user_attributes_see_what_a_layer_removed") else { return };
    let at = |name: &str| s.path(name).display().to_string();
    s.ok(&format!("image build -q --whiteouts overlay-user {} {}", at("layer.tar"), at("user")));
    s.ok(&format!("image build -q --whiteouts overlay {} {}", at("layer.tar"), at("root")));
    s.ok(&format!("image build -q --whiteouts overlay-user {} {}", at("root"), at("converted")));
    assert!(fs::read(s.path("user")).unwrap() == fs::read(s.path("converted")).unwrap());
    s.ok(&format!("image build -q {} {}", at("user"), at("rebuilt")));
    assert!(fs::read(s.path("user")).unwrap() == fs::read(s.path("rebuilt")).unwrap());
    let mount = format!("mount -t overlay -o ro,userxattr,lowerdir=at:low ov ov; {USE_ALL}");
    assert_eq!(with_mounted(&s, "user", "-m", &mount), WANTED);
    // A user namespace, as rootless containers have.
    if Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        assert_eq!(with_mounted(&s, "user", "-rm", &mount), WANTED);
    }
}

#[test]
fn layers_are_merged_to_the_files_that_the_kernels_overlay_shows() {
    let Some(s) = sandbox("layers_are_merged_to_the_files_that_the_kernels_overlay_shows") else { return };
    let at = |name: &str| s.path(name).display().to_string();
    let archive = "tar --format=pax --xattrs -cf low.tar -C low .";
    assert!(Command::new("sh").args(["-ec", archive]).current_dir(s.path("")).status().unwrap().success());
    s.ok(&format!("image build -q --whiteouts overlay {} {}", at("layer.tar"), at("layer.erofs")));
    // Owners, modes and times too: those that the overlay shows are written by tar, in the same order.
    let list = "find . -mindepth 1 -printf '%p %y %m %U %G %s %T@ %n\\n' | grep -v ' d ' | sort";
    let overlay = format!("mount -t overlay -o ro,lowerdir=at:low ov ov; cd ov; {list}");
    let wanted = with_mounted(&s, "layer.erofs", "-m", &overlay);
    assert_eq!(wanted.lines().count(), 4, "{wanted}");
    for upper in ["layer.tar", "layer.erofs"] {
        s.ok(&format!("image build -q {} {} {}", at("low.tar"), at(upper), at("merged")));
        assert_eq!(with_mounted(&s, "merged", "-m", &format!("cd at; {list}")), wanted, "{upper}");
    }
}
