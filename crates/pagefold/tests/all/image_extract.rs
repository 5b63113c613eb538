//! `image extract` where hard links are refused, and over what an earlier extraction left.

use crate::support::Sandbox;
use pagefold_sys::rundir;
use pagefold_testkit::{seccomp, skipped};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// Makes an image in a sandbox: a file with three names, a link and a pipe with two.
fn image_with_links(s: &Sandbox) -> String {
    let tree = s.path("tree");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("one"), "contents").unwrap();
    symlink("one", tree.join("link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
    for (of, name) in [("one", "d/two"), ("one", "three"), ("link", "d/link2"), ("pipe", "d/pipe2")] {
        fs::hard_link(tree.join(of), tree.join(name)).unwrap();
    }
    fs::set_permissions(tree.join("one"), fs::Permissions::from_mode(0o640)).unwrap();
    let image = s.path("image").display().to_string();
    s.ok(&format!("image build -q {} {image}", tree.display()));
    image
}

#[test]
fn names_are_copies_where_hard_links_are_refused() {
    let s = Sandbox::new();
    let image = image_with_links(&s);
    for errno in [libc::EPERM, libc::EXDEV, libc::EMLINK, libc::EOPNOTSUPP, libc::ENOSYS] {
        let out = s.path("out");
        let run = std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                seccomp::fail(libc::SYS_linkat, errno);
                s.run(&format!("image extract --json {image} {}", out.display()))
            });
            run.join().unwrap()
        });
        assert_eq!(run.code, 0, "{}", run.err);
        let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!((&report["copied_links"], &report["links"]), (&4.into(), &0.into()), "{report}");
        assert!(report["findings"][0]["what"].as_str().unwrap().contains("refuses hard links"), "{report}");
        for name in ["one", "d/two", "three"] {
            let metadata = out.join(name).metadata().unwrap();
            assert_eq!((metadata.nlink(), metadata.mode() & 0o7777), (1, 0o640));
            assert_eq!(fs::read(out.join(name)).unwrap(), b"contents");
        }
        assert_eq!(fs::read_link(out.join("d/link2")).unwrap(), Path::new("one"));
        assert!(out.join("d/pipe2").symlink_metadata().unwrap().mode() & 0o170_000 == 0o010_000);
        fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn overwrite_replaces_what_stands_in_the_way() {
    let s = match rundir::effective_uid() {
        0 => Sandbox::for_user(1000),
        _ => Sandbox::new(),
    };
    if s.run("image --help").code != 0 {
        skipped!("overwrite_replaces_what_stands_in_the_way: other users cannot run the program here");
        return;
    }
    let (tree, out, elsewhere) = (s.path("tree"), s.path("out"), s.path("elsewhere"));
    for directory in ["tree/ro/below", "tree/closed", "elsewhere"] {
        fs::create_dir_all(s.path(directory)).unwrap();
    }
    for name in ["ro/f", "ro/below/g", "closed/h", "file"] {
        fs::write(tree.join(name), name).unwrap();
    }
    fs::write(elsewhere.join("f"), "mine").unwrap();
    for (name, mode) in [("ro/below", 0o555), ("ro", 0o555), ("closed", 0o311), ("", 0o555)] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let image = s.path("image");
    fs::set_permissions(s.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    // As root, which may read the tree.
    let root = Sandbox::new();
    root.ok(&format!("image build -q {} {}", tree.display(), image.display()));
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    let extract = || s.ok(&format!("image extract -q --overwrite {} {}", image.display(), out.display()));
    let check = || {
        for name in ["ro/f", "ro/below/g", "closed/h", "file"] {
            assert_eq!(fs::read_to_string(out.join(name)).unwrap(), name);
        }
        for (name, mode) in [("", 0o555), ("ro", 0o555), ("ro/below", 0o555), ("closed", 0o311)] {
            assert_eq!(out.join(name).metadata().unwrap().mode() & 0o7777, mode, "{name}");
        }
        assert_eq!(fs::read_to_string(elsewhere.join("f")).unwrap(), "mine");
    };
    for _ in 0..2 {
        extract();
        check();
    }
    // The sandbox refuses modes with set-ID bits.
    fs::set_permissions(out.join("ro"), fs::Permissions::from_mode(0o2555)).unwrap();
    extract();
    check();
    let in_the_way: [fn(&Path, &Path); 4] = [
        |at, elsewhere| symlink(elsewhere, at.join("ro")).unwrap(),
        |at, _| fs::write(at.join("ro"), "file").unwrap(),
        |at, _| fs::create_dir_all(at.join("file/x/y")).unwrap(),
        |at, elsewhere| {
            fs::create_dir(at.join("file")).unwrap();
            symlink(elsewhere, at.join("file/link")).unwrap();
            fs::write(at.join("file/x"), "").unwrap();
        },
    ];
    for make in in_the_way {
        fs::remove_dir_all(&out).unwrap();
        fs::create_dir(&out).unwrap();
        make(&out, &elsewhere);
        if rundir::effective_uid() == 0 {
            // The files in the way belong to the user.
            let chown = std::process::Command::new("chown").args(["-hR", "1000:1000"]).arg(&out).status();
            assert!(chown.unwrap().success());
        }
        extract();
        check();
    }
}

#[test]
fn overwrite_enters_no_mounts() {
    let s = Sandbox::new();
    let (tree, out, image) = (s.path("tree"), s.path("out"), s.path("image"));
    for path in [tree.join("on"), out.join("on"), out.join("in/deep")] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(tree.join("on/f"), "new").unwrap();
    fs::write(tree.join("in"), "new").unwrap();
    fs::write(tree.join("other"), "new").unwrap();
    s.ok(&format!("image build -q {} {}", tree.display(), image.display()));
    let mounted = [Mounted::tmpfs(&out.join("on")), Mounted::tmpfs(&out.join("in/deep"))];
    if mounted.iter().any(Option::is_none) {
        skipped!("overwrite_enters_no_mounts: needs the right to mount");
        return;
    }
    fs::write(out.join("in/deep/f"), "mine").unwrap();
    let run = s.run(&format!("image extract --json --overwrite {} {}", image.display(), out.display()));
    assert_ne!(run.code, 0);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    for (path, says) in [("/on", "unmount it, or run"), ("/in", "on which a file system is mounted")] {
        let is_it = |f: &&serde_json::Value| f["path"] == path && f["what"].as_str().unwrap().contains(says);
        assert_eq!(findings.iter().filter(is_it).count(), 1, "{path}: {report}");
    }
    assert_eq!(fs::read_to_string(out.join("in/deep/f")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(out.join("other")).unwrap(), "new");
    assert!(!out.join("on/f").exists());
}

/// A mount that ends with the test.
struct Mounted(std::path::PathBuf);

impl Mounted {
    /// `None` if this machine refuses it.
    fn tmpfs(at: &Path) -> Option<Self> {
        let mut mount = std::process::Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "none"]).arg(at).status();
        done.is_ok_and(|status| status.success()).then(|| Mounted(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}
