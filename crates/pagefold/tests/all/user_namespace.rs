//! Commands of an ordinary user in user namespaces: those of `unshare`, of rootless containers, and of bwrap.

use crate::support::{Ran, Sandbox, have, is_root, wait_until};
use pagefold_testkit::skipped;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The user outside.
const USER: u32 = 1000;

/// A folder of an ordinary user with an image, `app.erofs`, of files of several owners, and `home`, which is empty.
struct Namespace {
    sandbox: Sandbox,
}

impl Namespace {
    /// `None`, and a message, if the test cannot run.
    fn new(test: &str) -> Option<Self> {
        let opens = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        let is_open = || fs::metadata("/dev/fuse").is_ok_and(|meta| meta.permissions().mode() & 0o6 == 0o6);
        if !is_root() || !have("unshare") || !opens || !is_open() {
            skipped!("{test}: needs root, unshare, and /dev/fuse for all users");
            return None;
        }
        let sandbox = Sandbox::for_user(USER);
        let namespace = Namespace { sandbox };
        let unshared = namespace.command("unshare", &["-rm", "true"]).output().unwrap();
        if !unshared.status.success() {
            skipped!("{test}: this user cannot make user namespaces");
            return None;
        }
        let tree = namespace.sandbox.path("tree");
        fs::create_dir(&tree).unwrap();
        for (name, owner) in [("root", 0), ("five", 5)] {
            fs::write(tree.join(name), format!("of {name}\n")).unwrap();
            chown(tree.join(name), Some(owner), Some(owner)).unwrap();
        }
        let image = namespace.sandbox.path("app.erofs");
        let built = Command::new(env!("CARGO_BIN_EXE_pagefold"))
            .args(["image", "build", "-q"])
            .args([&tree, &image])
            .status();
        assert!(built.unwrap().success());
        fs::create_dir(namespace.sandbox.path("home")).unwrap();
        for path in [image, namespace.sandbox.path("home")] {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
        Some(namespace)
    }

    /// A program of the user, in the folder, with `P` for pagefold and no folders but `HOME`.
    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.sandbox.path("")).uid(USER).gid(USER).stdin(Stdio::null());
        command.env("P", self.sandbox.path("pagefold")).env("HOME", self.sandbox.path("home"));
        for name in ["PAGEFOLD_RUNTIME_DIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a script in a namespace that `unshare` makes with these options.
    fn run(&self, unshare: &str, script: &str) -> Ran {
        let args: Vec<&str> = unshare.split_whitespace().chain(["sh", "-ec", script]).collect();
        Ran::new(script, self.command("unshare", &args).output().unwrap())
    }

    /// Runs a script that succeeds, and returns its output.
    fn ok(&self, unshare: &str, script: &str) -> String {
        let ran = self.run(unshare, script);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out
    }
}

/// All that users do with a mount.
const LIFE_OF_A_MOUNT: &str = r#"
mkdir -p m; $P image mount app.erofs m; cat m/root m/five
$P image mounts | grep -q app.erofs; $P image stats m >stats
$P image restart m; cat m/root
exec 3<m/five; if $P image unmount m 2>busy; then exit 1; fi; grep -q 'in use' busy
$P image unmount m --force; exec 3<&-; test -z "$(ls m)"
$P image mounts >list; if grep app.erofs list; then exit 1; fi"#;

#[test]
fn an_image_is_mounted_by_root_of_a_namespace_in_each_runtime_folder() {
    let test = "an_image_is_mounted_by_root_of_a_namespace_in_each_runtime_folder";
    let Some(namespace) = Namespace::new(test) else { return };
    let home = namespace.sandbox.path("home");
    for (set, folder) in [
        ("", "home/.local/state/pagefold"),
        ("mkdir -m 700 x; export XDG_RUNTIME_DIR=$PWD/x", "x/pagefold"),
        ("export PAGEFOLD_RUNTIME_DIR=$PWD/r", "r"),
    ] {
        let said = namespace.ok("-rm", &format!("{set}\n{LIFE_OF_A_MOUNT}\ncat stats"));
        assert!(said.starts_with("of root\nof five\nof root\n"), "{said}");
        assert!(said.contains("no unassigned users"), "the confinement says what is missing: {said}");
        assert!(namespace.sandbox.path(folder).join(".images").is_dir(), "{folder}");
    }
    assert!(home.is_dir());
}

#[test]
fn a_rootless_container_confines_the_server_to_another_user() {
    let test = "a_rootless_container_confines_the_server_to_another_user";
    let Some(namespace) = Namespace::new(test) else { return };
    // The shell waits until this process, which may map several users, has done so.
    let script = format!("read go; exec sh -ec '{}'", LIFE_OF_A_MOUNT.replace('\'', "\"") + "\ncat stats");
    let mut command = namespace.command("unshare", &["-Um", "sh", "-c", &script]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let proc = Path::new("/proc").join(child.id().to_string());
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    wait_until("it is in its namespace", || fs::read_link(proc.join("ns/user")).is_ok_and(|its| its != own));
    for table in ["uid_map", "gid_map"] {
        fs::write(proc.join(table), format!("0 {USER} 1\n1 100000 65536\n")).unwrap();
    }
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
    let ran = Ran::new(test, child.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("user 6") && !ran.out.contains("stays root"), "{ran:?}");
}

#[test]
fn a_runtime_folder_in_a_folder_of_unknown_users_is_refused() {
    let test = "a_runtime_folder_in_a_folder_of_unknown_users_is_refused";
    let Some(namespace) = Namespace::new(test) else { return };
    let own = |path: &Path, mode| {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let shared = tempfile::tempdir().unwrap();
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    chown(shared.path(), Some(USER), Some(USER)).unwrap();
    // Anybody could have made it.
    let unknown = shared.path().join("unknown");
    own(&unknown, 0o755);
    // Anybody may make something in it.
    let writable = shared.path().join("own/writable");
    own(writable.parent().unwrap(), 0o755);
    chown(writable.parent().unwrap(), Some(USER), Some(USER)).unwrap();
    own(&writable, 0o777);
    let script = "PAGEFOLD_RUNTIME_DIR=$DIR $P disk list";
    for (parent, why) in [(unknown, "may be anybody"), (writable, "writable by other users")] {
        let mine = parent.join("mine");
        own(&mine, 0o700);
        chown(&mine, Some(USER), Some(USER)).unwrap();
        for dir in [mine.join("run"), mine] {
            namespace.run("-rm", &format!("DIR={}\n{script}", dir.display())).fails(5, why);
        }
    }
}

#[test]
fn a_disk_is_served_by_nbd_and_has_no_loop_device() {
    let Some(namespace) = Namespace::new("a_disk_is_served_by_nbd_and_has_no_loop_device") else { return };
    let said = namespace.ok(
        "-rm",
        "$P disk create --size 16M --export nbd --name d; $P disk list; $P disk show d; $P disk remove d; $P disk list",
    );
    assert!(said.contains("nbd+unix://") && said.contains("no unassigned users"), "{said}");
    let refused = namespace.run("-rm", "$P disk create --size 16M --export loop");
    refused.fails(5, "user namespaces");
    assert!(refused.err.contains("--export nbd"), "{refused:?}");
}

#[test]
fn what_a_namespace_denies_has_advice() {
    let Some(namespace) = Namespace::new("what_a_namespace_denies_has_advice") else { return };
    let mount = "mkdir -p m; $P image mount app.erofs m";
    // Its mounts belong to the system's root.
    namespace.run("-r", mount).fails(5, "--map-root-user --mount");
    // fusermount3 has no rights.
    namespace.run("-m -c", mount).fails(5, "mount outside of it");
    let no_device = "mkdir -p dev; touch dev/null; mount --bind /dev/null dev/null; mount --rbind dev /dev\n";
    namespace.run("-rm", &format!("{no_device}{mount}")).fails(5, "--device /dev/fuse");
    namespace.run("-rm", "mkdir -p m; $P image mount app.erofs m --dev").fails(2, "user namespace");
    assert!(!namespace.sandbox.path("home/.local/state/pagefold/.images/app").exists());
}

#[test]
fn extraction_sets_the_owners_that_the_namespace_has() {
    let Some(namespace) = Namespace::new("extraction_sets_the_owners_that_the_namespace_has") else { return };
    let failed = namespace.run("-rm", "$P image extract app.erofs all");
    failed.fails(1, "1 file could not be extracted completely");
    assert!(
        failed.err.contains("five: setting the owner 5:5") && failed.err.contains("--no-owner"),
        "{failed:?}"
    );
    let files = namespace.ok("-rm", "$P image extract --no-owner app.erofs t; cat t/five; stat -c %u t/five");
    assert!(files.ends_with("of five\n0\n"), "{files}");
    let json = namespace.ok("-rm", "$P image extract --no-owner --json app.erofs j");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["files"], 2, "{json}");
}

#[test]
fn another_user_than_root_mounts_with_the_capability() {
    let Some(namespace) = Namespace::new("another_user_than_root_mounts_with_the_capability") else { return };
    let said = namespace.ok("-mc --keep-caps", LIFE_OF_A_MOUNT);
    assert_eq!(said, "of root\nof five\nof root\n");
}

#[test]
fn a_sandbox_of_bwrap_mounts_if_it_has_the_right() {
    let test = "a_sandbox_of_bwrap_mounts_if_it_has_the_right";
    let Some(namespace) = Namespace::new(test) else { return };
    if !have("bwrap") {
        return skipped!("{test}: needs bwrap");
    }
    let top = namespace.sandbox.path("");
    let top = top.to_str().unwrap();
    let run = |more: &[&str], script: &str| {
        let always = [
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--dev-bind",
            "/dev/fuse",
            "/dev/fuse",
            "--proc",
            "/proc",
        ];
        let args = [
            &always[..],
            &["--bind", top, top, "--unshare-all", "--die-with-parent"],
            more,
            &["sh", "-ec", script],
        ]
        .concat();
        Ran::new(script, namespace.command("bwrap", &args).output().unwrap())
    };
    let rights = ["--uid", "0", "--gid", "0", "--cap-add", "CAP_SYS_ADMIN"];
    let ran = run(
        &rights,
        "mkdir -p m; $P image mount app.erofs m; cat m/root; $P image restart m; $P image unmount m",
    );
    assert!(ran.code == 0 && ran.out == "of root\n", "{ran:?}");
    run(&[], "mkdir -p m; $P image mount app.erofs m").fails(5, "mount outside");
    let _ = unmount(namespace.sandbox.path("m"), UnmountFlags::DETACH);
}
