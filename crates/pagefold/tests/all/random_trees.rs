//! Random trees through the commands: built from a directory, mounted by the server and by the kernel, extracted, archived, and
//! built again. And the same in sandboxes that refuse system calls: the result is right, or the command says what it is not.
//!
//! A failure prints the seed of its tree; `PAGEFOLD_SEED` begins with it. `PAGEFOLD_LONG` draws many more trees.

use crate::image_mount::MountSandbox;
use crate::random_tree::{
    Files, Kinds, REGULAR, Random, assert_same, difference, draw, read, refusal, without_sockets, write,
};
use crate::support::{Ran, Sandbox, have};
use pagefold_sys::rundir;
use pagefold_testkit::{seccomp, skipped};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Trees of a run.
const TREES: u64 = 4;
const TREES_LONG: u64 = 500;

/// Newer system calls, which sandboxes refuse and older kernels do not have.
const NEWER: [(&str, libc::c_long); 17] = [
    ("openat2", libc::SYS_openat2),
    ("statx", libc::SYS_statx),
    ("open_tree", libc::SYS_open_tree),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("copy_file_range", libc::SYS_copy_file_range),
    ("renameat2", libc::SYS_renameat2),
    ("memfd_create", libc::SYS_memfd_create),
    ("close_range", libc::SYS_close_range),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("fsopen", libc::SYS_fsopen),
    ("seccomp", libc::SYS_seccomp),
    ("faccessat2", libc::SYS_faccessat2),
    ("preadv2", libc::SYS_preadv2),
    ("membarrier", libc::SYS_membarrier),
    ("sync_file_range", libc::SYS_sync_file_range),
];

/// A command in a process with fewer system calls: these fail with this error.
fn run_without(s: &Sandbox, calls: &[libc::c_long], errno: i32, words: &str) -> Ran {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            calls.iter().for_each(|call| seccomp::fail(*call, errno));
            s.run(words)
        });
        run.join().unwrap()
    })
}

/// The seeds of this run.
fn seeds() -> std::ops::Range<u64> {
    let first = std::env::var("PAGEFOLD_SEED").map_or(1, |text| text.parse().unwrap());
    let count = if std::env::var_os("PAGEFOLD_LONG").is_some() { TREES_LONG } else { TREES };
    first..first + count
}

/// Whether trees cannot be made here; prints the reason.
fn is_refused(test: &str, s: &Sandbox) -> bool {
    let why = refusal(&s.path(""), rundir::effective_uid() == 0);
    why.as_ref().inspect(|why| skipped!("{test}: {why}")).is_some()
}

/// The tree of a seed, in a directory.
fn made(s: &Sandbox, seed: u64) -> (Files, PathBuf) {
    let random = &mut Random(seed);
    let (root, sockets) = (rundir::effective_uid() == 0, random.once_in(2));
    let files = draw(random, Kinds { root, holes: true, sockets });
    let directory = s.path(&format!("tree-{seed}"));
    fs::create_dir(&directory).unwrap();
    write(&files, &directory);
    assert_same("the directory", &read(&directory), &files);
    (files, directory)
}

#[test]
fn random_trees_come_back_from_mounts_archives_and_extractions() {
    let test = "random_trees_come_back_from_mounts_archives_and_extractions";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let s = &sandbox.inner;
    if is_refused(test, s) {
        return;
    }
    let mut without_kernel = None;
    for seed in seeds() {
        let what = |step: &str| format!("PAGEFOLD_SEED={seed}, {step}");
        let (files, directory) = made(s, seed);
        let [image, tar, to] = ["a.erofs", "a.tar", "to"].map(|name| s.path(name));
        s.ok(&format!("image build -q {} {}", directory.display(), image.display()));
        s.ok(&format!("image check -q --strict {}", image.display()));
        for kind in ["--dev --suid", "--kernel --dev --suid"] {
            let words = format!("image mount -q {} {} {kind}", image.display(), sandbox.at.display());
            let ran = s.run(&words);
            if ran.code != 0 && kind.starts_with("--kernel") {
                without_kernel = Some(ran.err);
                continue;
            }
            assert_eq!(ran.code, 0, "{}: {ran:?}", what(kind));
            assert_same(&what(kind), &read(&sandbox.at), &files);
            sandbox.ok(&sandbox.words("unmount", ""));
        }
        s.ok(&format!("image extract -q --privileged {} {}", image.display(), to.display()));
        assert_same(&what("extract"), &read(&to), &files);
        s.ok(&format!("image tar {} -o {}", image.display(), tar.display()));
        for (source, wanted) in
            [(&to, files.clone()), (&tar, without_sockets(files.clone())), (&image, files)]
        {
            let (again, back) = (s.path("again.erofs"), s.path("back"));
            s.ok(&format!("image build -q {} {}", source.display(), again.display()));
            s.ok(&format!("image extract -q --privileged {} {}", again.display(), back.display()));
            assert_same(&what(&source.display().to_string()), &read(&back), &wanted);
            fs::remove_dir_all(back).unwrap();
        }
        for folder in [directory, to] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
    if let Some(why) = without_kernel {
        skipped!("{test}: the kernel did not mount all of these images: {why}");
    }
}

/// The tree as it is where all hard links became copies.
fn without_links(mut files: Files) -> Files {
    files.iter_mut().for_each(|(path, file)| file.first.clone_from(path));
    files
}

#[test]
fn trees_are_right_or_named_where_calls_that_make_files_are_refused() {
    let test = "trees_are_right_or_named_where_calls_that_make_files_are_refused";
    if rundir::effective_uid() != 0 {
        return skipped!("{test}: needs root");
    }
    let s = Sandbox::new();
    if is_refused(test, &s) {
        return;
    }
    let xattrs = [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr];
    let refused: [(&str, &[libc::c_long]); 5] = [
        ("openat2", &[libc::SYS_openat2]),
        ("link", &[libc::SYS_linkat, libc::SYS_link]),
        ("setxattr", &xattrs),
        ("mknod", &[libc::SYS_mknodat, libc::SYS_mknod]),
        ("chown", &[libc::SYS_fchownat, libc::SYS_fchown, libc::SYS_chown, libc::SYS_lchown]),
    ];
    for seed in seeds() {
        let (files, directory) = made(&s, seed);
        let [image, to] = ["a.erofs", "to"].map(|name| s.path(name));
        let build = format!("image build -q {} {}", directory.display(), image.display());
        s.ok(&build);
        let wanted = fs::read(&image).unwrap();
        for (name, calls) in refused {
            for errno in [libc::EPERM, libc::ENOSYS, libc::EOPNOTSUPP] {
                let what = format!("PAGEFOLD_SEED={seed}, {name} fails with {errno}");
                let ran = run_without(&s, calls, errno, &build);
                assert_eq!(ran.code, 0, "{what}: {ran:?}");
                assert!(fs::read(&image).unwrap() == wanted, "{what}: another image");
                for mode in ["--privileged", ""] {
                    let words = format!("image extract {mode} {} {}", image.display(), to.display());
                    let ran = run_without(&s, calls, errno, &words);
                    assert_right_or_named(&what, mode, &ran, &files, &to);
                    fs::remove_dir_all(&to).unwrap();
                }
            }
        }
        fs::remove_dir_all(directory).unwrap();
    }
}

/// Asserts that what was extracted is the tree, or that the command has said that something is missing.
fn assert_right_or_named(what: &str, mode: &str, ran: &Ran, files: &Files, to: &Path) {
    let found = read(to);
    let Some(lost) = difference(&found, files) else {
        return assert_eq!(ran.code, 0, "{what}: {ran:?}");
    };
    let said = ran.err.len() + ran.out.len() > 0;
    assert!(said, "{what}, {mode}: nothing is said of this: {lost}");
    let is_openat2 = what.contains("openat2");
    assert!(!(is_openat2 && mode == "--privileged"), "{what}: {ran:?}: {lost}");
    if mode.is_empty() || ran.code != 0 {
        return;
    }
    // With all rights, success with a difference is that of links and of attributes that a file system does not have.
    let is_only = match () {
        () if what.contains("link") => {
            difference(&without_links(found), &without_links(files.clone())).is_none()
        }
        () if what.contains("setxattr") => ran.err.contains("left out"),
        () => false,
    };
    assert!(is_only, "{what}: success, and {lost}: {ran:?}");
    // Nothing but metadata differs.
    for (path, file) in files.iter().filter(|(_, file)| file.kind() == REGULAR) {
        let name = OsStr::from_bytes(path);
        assert!(fs::read(to.join(name)).unwrap() == file.data, "{what}: {name:?}");
    }
}

#[test]
fn commands_work_or_name_the_call_where_newer_calls_are_refused() {
    let test = "commands_work_or_name_the_call_where_newer_calls_are_refused";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let s = &sandbox.inner;
    if is_refused(test, s) {
        return;
    }
    let (files, directory) = made(s, 7);
    let [image, tar, to] = ["a.erofs", "a.tar", "to"].map(|name| s.path(name));
    let build = format!("image build -q {} {}", directory.display(), image.display());
    let archive = format!("image tar {} -o {}", image.display(), tar.display());
    s.ok(&build);
    s.ok(&archive);
    let (built, archived) = (fs::read(&image).unwrap(), fs::read(&tar).unwrap());
    for (name, call) in NEWER {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let what = format!("{name} fails with {errno}");
            let run = |words: &str| {
                let ran = run_without(s, &[call], errno, words);
                assert_eq!(ran.code, 0, "{what}: {ran:?}");
            };
            run(&build);
            assert!(fs::read(&image).unwrap() == built, "{what}");
            run(&format!("image extract -q --privileged {} {}", image.display(), to.display()));
            assert_same(&what, &read(&to), &files);
            fs::remove_dir_all(&to).unwrap();
            run(&format!("image build -q {} {}", tar.display(), s.path("b.erofs").display()));
            run(&archive);
            assert!(fs::read(&tar).unwrap() == archived, "{what}");
            run(&format!("image check -q {}", image.display()));
            run(&format!("image ls -R --json {}", image.display()));
            // A mount needs more of the system. It may fail, with the name of the call.
            let ran = run_without(
                s,
                &[call],
                errno,
                &sandbox
                    .words("mount", "")
                    .replace(&sandbox.image.display().to_string(), &image.display().to_string()),
            );
            match ran.code {
                0 => {
                    assert_same(&what, &read(&sandbox.at), &files);
                    sandbox.ok(&sandbox.words("unmount", ""));
                }
                _ => assert!(ran.err.contains(name), "{what}: {ran:?}"),
            }
            sandbox.assert_nothing_left();
        }
    }
}

#[test]
fn an_archive_made_under_fakeroot_has_the_owners_that_it_shows() {
    let test = "an_archive_made_under_fakeroot_has_the_owners_that_it_shows";
    if !have("fakeroot-tcp") {
        return skipped!("{test}: fakeroot is not installed");
    }
    let s = Sandbox::new();
    let [tree, image] = ["tree", "image"].map(|name| s.path(name).display().to_string());
    fs::create_dir(&tree).unwrap();
    let program = env!("CARGO_BIN_EXE_pagefold");
    let script = format!(
        "cd {tree} && echo one >one && ln one two && chown 5:6 one && chmod 4711 one && mknod null c 1 3 && \
         chown 7:8 . && tar --xattrs -C {tree} -c . | {program} image build -q - {image}"
    );
    let ran = Command::new("fakeroot-tcp").args(["sh", "-c", &script]).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let listed: serde_json::Value =
        serde_json::from_str(&s.ok(&format!("image ls -R --json {image}"))).unwrap();
    let of = |path: &str| {
        let entries = listed["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["path"] == path).unwrap();
        (
            entry["mode"].as_str().unwrap().to_string(),
            entry["uid"].clone(),
            entry["gid"].clone(),
            entry["nlink"].clone(),
        )
    };
    assert_eq!(of("/one"), ("104711".into(), 5.into(), 6.into(), 2.into()));
    assert_eq!(of("/one"), of("/two"));
    assert!(of("/null").0.starts_with("020"), "{listed}");
}

/// Commands of a user who is root in a namespace: of all ids there is one.
#[test]
fn random_trees_come_back_in_a_user_namespace() {
    let test = "random_trees_come_back_in_a_user_namespace";
    let wrapper = ["unshare", "-rm"];
    if !Command::new(wrapper[0]).args([wrapper[1], "true"]).status().is_ok_and(|status| status.success()) {
        return skipped!("{test}: user namespaces cannot be made here");
    }
    let s = Sandbox::new();
    if is_refused(test, &s) {
        return;
    }
    for seed in seeds() {
        // A tree of one user, as the namespace has one id, and without devices and access lists of others.
        let random = &mut Random(seed);
        let mut files = draw(random, Kinds { root: false, holes: true, sockets: false });
        for file in files.values_mut() {
            file.xattrs.retain(|name, _| !name.starts_with(b"system."));
        }
        let directory = s.path(&format!("tree-{seed}"));
        fs::create_dir(&directory).unwrap();
        write(&files, &directory);
        let [image, to, at, copy] =
            ["a.erofs", "to", "at", "copy"].map(|name| s.path(name).display().to_string());
        fs::create_dir(&at).unwrap();
        let program = env!("CARGO_BIN_EXE_pagefold");
        let mut scripts = vec![
            format!("{program} image build -q {} {image}", directory.display()),
            format!("{program} image extract -q {image} {to}"),
        ];
        let mounts = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        if mounts {
            // The mount is in this namespace only, and so is the server.
            scripts.push(format!(
                "{program} image mount -q {image} {at} && cp -a {at} {copy} && {program} image unmount {at}"
            ));
        }
        for script in scripts {
            let mut wrapped = Command::new(wrapper[0]);
            wrapped.args([wrapper[1], "sh", "-ec", &script]).env("PAGEFOLD_RUNTIME_DIR", s.runtime());
            let ran = Ran::new(&script, wrapped.output().unwrap());
            assert_eq!(ran.code, 0, "PAGEFOLD_SEED={seed}: {ran:?}");
        }
        assert_same(&format!("PAGEFOLD_SEED={seed}, extract"), &read(Path::new(&to)), &files);
        if mounts {
            assert_same(&format!("PAGEFOLD_SEED={seed}, mount"), &read(Path::new(&copy)), &files);
            fs::remove_dir_all(copy).unwrap();
        }
        for folder in [directory, to.into(), at.into()] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}
