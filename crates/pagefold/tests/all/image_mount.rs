//! Images mounted by `image mount`: their files, their reports, and cleaning up.

use crate::support::Sandbox;
use pagefold_sys::{fusedev, mounts, rundir};
use pagefold_testkit::skipped;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Exit codes of the program.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const BUSY: i32 = 4;
const DAMAGED: i32 = 6;

/// The id of a user other than root.
const USER: u32 = 1000;

/// A sandbox with an image, and a folder to mount it on, which is unmounted when dropped.
pub struct MountSandbox {
    pub inner: Sandbox,
    pub image: PathBuf,
    pub at: PathBuf,
}

impl MountSandbox {
    /// `None`, after printing the reason, if this machine cannot make or mount images.
    pub fn new(test: &str) -> Option<Self> {
        if rundir::effective_uid() != 0 || fusedev::open().is_err() {
            skipped!("{test}: needs root and /dev/fuse");
            return None;
        }
        if Command::new("mkfs.erofs").arg("-V").output().is_err() {
            skipped!("{test}: mkfs.erofs is not installed");
            return None;
        }
        Some(MountSandbox::within(Sandbox::new()))
    }

    /// The same for a user other than root, for whom `fusermount3` mounts.
    pub fn for_user(test: &str) -> Option<Self> {
        MountSandbox::new(test)?;
        if Command::new("fusermount3").arg("-V").output().is_err() {
            skipped!("{test}: fusermount3 is not installed");
            return None;
        }
        let sandbox = MountSandbox::within(Sandbox::for_user(USER));
        std::os::unix::fs::chown(&sandbox.at, Some(USER), Some(USER)).unwrap();
        let (code, said) = sandbox.run(&sandbox.words("mount", ""));
        if code != 0 && (said.contains("/dev/fuse") || said.contains("Operation not permitted")) {
            skipped!("{test}: users cannot mount here: {said}");
            return None;
        }
        assert_eq!(code, 0, "{said}");
        sandbox.ok(&sandbox.words("unmount", ""));
        Some(sandbox)
    }

    fn within(inner: Sandbox) -> Self {
        let (tree, image, at) = (inner.path("tree"), inner.path("image"), inner.path("at"));
        fs::create_dir(&at).unwrap();
        fs::create_dir_all(tree.join("folder")).unwrap();
        fs::write(tree.join("long"), contents()).unwrap();
        fs::write(tree.join("folder/short"), "short\n").unwrap();
        let made = Command::new("mkfs.erofs").args(["-zlz4hc", "-C65536"]).arg(&image).arg(&tree).output();
        assert!(made.unwrap().status.success());
        MountSandbox { inner, image, at }
    }

    pub fn words(&self, verb: &str, more: &str) -> String {
        match verb {
            "mount" => format!("image mount {} {} {more}", self.image.display(), self.at.display()),
            _ => format!("image {verb} {} {more}", self.at.display()),
        }
    }

    /// Runs a command, and returns its exit code and its output.
    pub fn run(&self, words: &str) -> (i32, String) {
        let output = self.inner.command(words).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
    }

    pub fn ok(&self, words: &str) -> String {
        let (mut code, mut said) = self.run(words);
        // A child that another test forks has the files of this test open, until it runs a program.
        for _ in 0..50 {
            if code != BUSY || !words.starts_with("image unmount") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            (code, said) = self.run(words);
        }
        assert_eq!(code, 0, "{words}: {said}");
        said
    }

    pub fn is_mounted(&self) -> bool {
        mounts::at(&self.at).unwrap().is_some()
    }

    /// The number of mounts in the runtime folder.
    fn folders(&self) -> usize {
        let entries = fs::read_dir(self.inner.runtime().join(".images"));
        entries.map_or(0, |e| e.filter(|e| e.as_ref().unwrap().path().is_dir()).count())
    }

    pub fn stats(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok(&self.words("stats", "--json"))).unwrap()
    }

    pub fn assert_nothing_left(&self) {
        wait_until(|| !self.is_mounted() && self.folders() == 0);
    }
}

impl Drop for MountSandbox {
    fn drop(&mut self) {
        let _ = fusedev::abort_and_unmount(&self.at);
    }
}

pub fn contents() -> Vec<u8> {
    (0..200_000u32).flat_map(|n| format!("{} {}\n", n % 1013, n).into_bytes()).collect()
}

pub fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "timeout");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn read_all(at: &Path) {
    assert_eq!(fs::read(at.join("long")).unwrap(), contents());
    assert_eq!(fs::read_to_string(at.join("folder/short")).unwrap(), "short\n");
}

#[test]
fn an_image_is_mounted_shown_and_unmounted() {
    let Some(sandbox) = MountSandbox::new("an_image_is_mounted_shown_and_unmounted") else { return };
    let said = sandbox.ok(&sandbox.words("mount", "--memory 8M --threads 2"));
    assert!(said.contains("note: only root can access the files"), "{said}");
    read_all(&sandbox.at);
    let stats = sandbox.stats();
    assert_eq!(stats["threads"], 2);
    assert_eq!(stats["budget"]["limit_bytes"], 8 << 20);
    assert_eq!(stats["reads"]["asked_bytes"], contents().len() as u64 + 6);
    let by_image = sandbox.ok(&format!("image stats {}", sandbox.image.display()));
    for word in ["read amplification", "decoded in place", "p99 <=", "waited for memory"] {
        assert!(by_image.contains(word), "{word} is not in\n{by_image}");
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
    let (code, said) = sandbox.run(&sandbox.words("stats", ""));
    assert_eq!(code, NOT_FOUND, "{said}");
}

#[test]
fn disk_list_does_not_list_mounts() {
    let Some(sandbox) = MountSandbox::new("disk_list_does_not_list_mounts") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    assert!(!sandbox.ok("disk list").contains("mount0"));
    read_all(&sandbox.at);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

/// Whether a user without privileges can run a command successfully.
fn other_user(words: &[&str]) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups", "--"]).args(words);
    command.output().unwrap().status.success()
}

#[test]
fn allow_other_lets_users_read_what_modes_and_access_lists_permit() {
    let test = "allow_other_lets_users_read_what_modes_and_access_lists_permit";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    if Command::new("setfacl").arg("-v").output().is_err() || !other_user(&["true"]) {
        return skipped!("{test}: setfacl and setpriv are needed");
    }
    let tree = sandbox.inner.path("others");
    fs::create_dir(&tree).unwrap();
    for (name, mode) in [("all", 0o644), ("owner", 0o600), ("listed", 0o600)] {
        fs::write(tree.join(name), name).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let listed = Command::new("setfacl").args(["-m", "u:1000:r"]).arg(tree.join("listed")).status().unwrap();
    let made = Command::new("mkfs.erofs").arg("--quiet").arg(&sandbox.image).arg(&tree).status().unwrap();
    if !listed.success() || !made.success() {
        return skipped!("{test}: no access lists here");
    }
    // The folder around the mount is open to all users, so that only the mount decides.
    fs::set_permissions(sandbox.at.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| sandbox.at.join(name).to_str().unwrap().to_string();
    let reads = |name: &str| other_user(&["cat", &path(name)]);
    sandbox.ok(&sandbox.words("mount", "--allow-other"));
    assert_eq!(["all", "owner", "listed"].map(reads), [true, false, true]);
    assert!(!other_user(&["test", "-x", &path("all")]) && !Path::new(&path("none")).exists());
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.ok(&sandbox.words("mount", ""));
    assert_eq!(["all", "owner", "listed"].map(reads), [false, false, false]);
    let executable = Command::new("test").args(["-x", &path("all")]).status().unwrap();
    assert!(!executable.success(), "access(2) goes by the mode");
    sandbox.ok(&sandbox.words("unmount", ""));
}

#[test]
fn umount_ends_the_server() {
    let Some(sandbox) = MountSandbox::new("umount_ends_the_server") else { return };
    sandbox.ok(&sandbox.words("mount", "--allow-other --no-readahead"));
    read_all(&sandbox.at);
    rustix::mount::unmount(&sandbox.at, rustix::mount::UnmountFlags::empty()).unwrap();
    sandbox.assert_nothing_left();
}

#[test]
fn a_mount_in_use_is_unmounted_only_with_force() {
    let Some(sandbox) = MountSandbox::new("a_mount_in_use_is_unmounted_only_with_force") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    let open = fs::File::open(sandbox.at.join("long")).unwrap();
    let (code, said) = sandbox.run(&sandbox.words("unmount", ""));
    assert_eq!(code, BUSY, "{said}");
    read_all(&sandbox.at);
    sandbox.ok(&sandbox.words("unmount", "--force"));
    sandbox.assert_nothing_left();
    drop(open);
}

/// The server process of the only mount.
pub fn server(sandbox: &MountSandbox) -> rustix::process::Pid {
    let pid = i32::try_from(sandbox.stats()["server"]["pid"].as_i64().unwrap()).unwrap();
    rustix::process::Pid::from_raw(pid).unwrap()
}

/// The process that asks servers for the server of the only mount.
pub fn fetcher(sandbox: &MountSandbox) -> rustix::process::Pid {
    let children = format!("/proc/{0}/task/{0}/children", server(sandbox).as_raw_nonzero());
    let children = fs::read_to_string(children).unwrap();
    let is_fetcher = |pid: &&str| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "pagefold-fetch")
    };
    let pid = children.split_ascii_whitespace().find(is_fetcher).unwrap();
    rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap()
}

/// Kills the keeper and the server of the only mount together, and waits until the kernel has closed their files.
pub fn kill(sandbox: &MountSandbox) {
    let pid = server(sandbox);
    // Stopped first, so that it starts no other server.
    let keeper = keeper(sandbox);
    for signal in [rustix::process::Signal::STOP, rustix::process::Signal::KILL] {
        rustix::process::kill_process(keeper, signal).unwrap();
        // A process that dies with its keeper is no zombie of it.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    wait_until_gone(keeper);
    wait_until_gone(pid);
}

/// The keeper of the only mount.
pub fn keeper(sandbox: &MountSandbox) -> rustix::process::Pid {
    let images = sandbox.inner.runtime().join(".images");
    let states = fs::read_dir(images).unwrap().map(|entry| entry.unwrap().path().join("keeper"));
    let state = states.filter_map(|path| fs::read(path).ok()).next().unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    rustix::process::Pid::from_raw(state["keeper"]["pid"].as_i64().unwrap() as i32).unwrap()
}

/// Waits until the kernel has closed the files of a process that was killed.
pub fn wait_until_gone(pid: rustix::process::Pid) {
    // Probing the mount would not work as root for a mount of another user. A zombie whose other threads have exited
    // has closed all its files.
    let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    wait_until(|| {
        let is_zombie = fs::read_to_string(proc.join("stat")).map_or(true, |stat| stat.contains(") Z "));
        is_zombie && fs::read_dir(proc.join("task")).map_or(true, |threads| threads.count() <= 1)
    });
}

#[test]
fn unmount_cleans_up_after_a_killed_server() {
    let Some(sandbox) = MountSandbox::new("unmount_cleans_up_after_a_killed_server") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    kill(&sandbox);
    assert!(sandbox.is_mounted() && sandbox.folders() == 1);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn the_next_mount_cleans_up_after_a_killed_server() {
    let Some(sandbox) = MountSandbox::new("the_next_mount_cleans_up_after_a_killed_server") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    kill(&sandbox);
    let said = sandbox.ok(&sandbox.words("mount", ""));
    assert!(said.contains("has died; cleaned up"), "{said}");
    read_all(&sandbox.at);
    assert_eq!(sandbox.folders(), 1);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

/// Stops the server of the only mount, so that it does not respond. The returned open file keeps the mount in use.
fn stop(sandbox: &MountSandbox) -> (rustix::process::Pid, fs::File) {
    let open = fs::File::open(sandbox.at.join("long")).unwrap();
    let pid = i32::try_from(sandbox.stats()["server"]["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    (pid, open)
}

/// Runs a command, and returns its exit code and its output. Fails if the command hangs.
fn run_soon(sandbox: &MountSandbox, words: &str) -> (i32, String) {
    let mut command = sandbox.inner.quietly(words);
    let pipes = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = fusedev::abort_and_unmount(&sandbox.at);
            panic!("{words} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn no_command_hangs_if_a_server_does_not_respond() {
    let Some(sandbox) = MountSandbox::new("no_command_hangs_if_a_server_does_not_respond") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    // After a second, the attributes that the kernel caches have expired, and a stat(2) would need the server.
    let (pid, open) = stop(&sandbox);
    std::thread::sleep(Duration::from_millis(1100));
    let link = sandbox.inner.path("link");
    std::os::unix::fs::symlink(&sandbox.at, &link).unwrap();
    for target in [&sandbox.at, &link, &sandbox.image] {
        let (code, said) = run_soon(&sandbox, &format!("image stats {}", target.display()));
        assert!(code == 1 && said.contains("'image unmount --force'"), "{code}, {said}");
    }
    let (code, said) = run_soon(&sandbox, &sandbox.words("unmount", ""));
    assert!(code == BUSY && said.contains("in use"), "{code}, {said}");
    let (code, said) = run_soon(&sandbox, &sandbox.words("mount", ""));
    assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    let (code, said) = run_soon(&sandbox, &sandbox.words("unmount", "--force"));
    assert!(code == 0 && said.contains("killing it"), "{code}, {said}");
    sandbox.assert_nothing_left();
    drop(open);
    // It may still be a zombie.
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    wait_until(|| fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn unmount_force_kills_a_server_that_hangs_after_unmounting() {
    const TEST: &str = "unmount_force_kills_a_server_that_hangs_after_unmounting";
    let Some(sandbox) = MountSandbox::new(TEST) else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    let (_, open) = stop(&sandbox);
    rustix::mount::unmount(&sandbox.at, rustix::mount::UnmountFlags::DETACH).unwrap();
    let (code, said) = run_soon(&sandbox, &sandbox.words("unmount", ""));
    assert!(code == BUSY && said.contains("--force") && sandbox.folders() == 1, "{code}, {said}");
    assert!(sandbox.ok("image mounts --noheadings --output STATE").contains("does not respond"));
    let (code, said) = run_soon(&sandbox, &sandbox.words("unmount", "--force"));
    assert!(code == 0 && said.contains("killing it"), "{code}, {said}");
    sandbox.assert_nothing_left();
    drop(open);
}

#[test]
fn sigterm_and_sigint_unmount_and_end_the_server() {
    let Some(sandbox) = MountSandbox::new("sigterm_and_sigint_unmount_and_end_the_server") else { return };
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        sandbox.ok(&sandbox.words("mount", ""));
        let pid = i32::try_from(sandbox.stats()["server"]["pid"].as_i64().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        sandbox.assert_nothing_left();
    }
}

#[test]
fn a_foreground_mount_ends_with_its_command() {
    let Some(sandbox) = MountSandbox::new("a_foreground_mount_ends_with_its_command") else { return };
    for unmounts in [false, true] {
        let mut command = sandbox.inner.quietly(&sandbox.words("mount", "--foreground")).spawn().unwrap();
        wait_until(|| sandbox.is_mounted() && sandbox.at.join("long").exists());
        read_all(&sandbox.at);
        if unmounts {
            sandbox.ok(&sandbox.words("unmount", ""));
        } else {
            let pid = rustix::process::Pid::from_child(&command);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        assert!(command.wait().unwrap().success());
        sandbox.assert_nothing_left();
    }
}

#[test]
fn errors_of_mount_and_unmount_leave_nothing() {
    let Some(sandbox) = MountSandbox::new("errors_of_mount_and_unmount_leave_nothing") else { return };
    let no_image = sandbox.inner.path("tree/long");
    let (image, at) = (sandbox.image.display().to_string(), sandbox.at.display().to_string());
    let cases = [
        (format!("image mount {} {at}", no_image.display()), DAMAGED, "not an EROFS image"),
        (format!("image mount {image}.missing {at}"), NOT_FOUND, "No such file"),
        (format!("image mount {image} {at}.missing"), NOT_FOUND, "No such file"),
        (format!("image mount {image} {image}"), USAGE, "is not a directory"),
        (format!("image mount {image} {at} --memory 4K"), USAGE, "raise it with --memory"),
        (format!("image mount {image} {at} --memory much"), USAGE, "--memory"),
        (format!("image mount {image} {at} --trusted"), USAGE, "--kernel"),
        (format!("image unmount {at}"), NOT_FOUND, "no image is mounted"),
        ("image unmount /proc".to_string(), NOT_FOUND, "no image is mounted"),
        (format!("image stats {at}"), NOT_FOUND, "no image is mounted"),
    ];
    for (words, code, message) in cases {
        let (found, said) = sandbox.run(&words);
        assert!(found == code && said.contains(message), "{words}: {found}, {said}");
    }
    sandbox.assert_nothing_left();
    sandbox.ok(&sandbox.words("mount", ""));
    let (code, said) = sandbox.run(&sandbox.words("mount", ""));
    assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    assert_eq!(sandbox.folders(), 1);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn rings_are_refused_with_the_kernels_erofs() {
    let s = Sandbox::new();
    s.run("image mount an-image a-folder --kernel --fuse-uring on").fails(2, "cannot be used with");
}

#[test]
fn mount_kernel_checks_the_image_and_mounts_erofs() {
    const TEST: &str = "mount_kernel_checks_the_image_and_mounts_erofs";
    let Some(sandbox) = MountSandbox::new(TEST) else { return };
    let (code, said) = sandbox.run(&sandbox.words("mount", "--kernel"));
    if code != 0 && said.contains("no EROFS") {
        skipped!("{TEST}: {said}");
        return;
    }
    assert_eq!(code, 0, "{said}");
    let mount = mounts::at(&sandbox.at).unwrap().unwrap();
    assert_eq!(mount.fs_type, "erofs");
    read_all(&sandbox.at);
    // No second mount of either kind on top of it.
    for more in ["--kernel", ""] {
        let (code, said) = sandbox.run(&sandbox.words("mount", more));
        assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    assert!(!sandbox.is_mounted());
    sandbox.ok(&sandbox.words("mount", ""));
    let (code, said) = sandbox.run(&sandbox.words("mount", "--kernel"));
    assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
    // Overwrite clusters: the kernel would find these errors only when the files are read.
    let mut bytes = fs::read(&sandbox.image).unwrap();
    let end = bytes.len();
    bytes[end / 2..].fill(0xff);
    fs::write(&sandbox.image, bytes).unwrap();
    let (code, said) = sandbox.run(&sandbox.words("mount", "--kernel"));
    assert!(
        code == DAMAGED && said.contains("wrong with the image") && !sandbox.is_mounted(),
        "{code}, {said}"
    );
}

/// Makes an image with a file that contains `word`, and a file so long that a check takes a while.
fn make_long_image(sandbox: &MountSandbox, image: &Path, word: &str) {
    let tree = sandbox.inner.path(&format!("tree of {word}"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("word"), word).unwrap();
    let lines = (0..8_000_000u32).flat_map(|n| [b'a' + (n % 23) as u8, b'0' + (n % 7) as u8, b' ', b'\n']);
    fs::write(tree.join("long"), lines.collect::<Vec<_>>()).unwrap();
    let made = Command::new("mkfs.erofs").args(["--quiet", "-zlz4"]).arg(image).arg(&tree).status();
    assert!(made.unwrap().success());
}

/// Whether a process has this file open.
fn has_open(pid: u32, path: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == path))
}

#[test]
fn mount_kernel_mounts_the_checked_file_even_if_its_path_is_replaced() {
    const TEST: &str = "mount_kernel_mounts_the_checked_file_even_if_its_path_is_replaced";
    let Some(sandbox) = MountSandbox::new(TEST) else { return };
    make_long_image(&sandbox, &sandbox.image, "checked");
    let other = sandbox.inner.path("other");
    make_long_image(&sandbox, &other, "exchanged");
    let mut command = sandbox.inner.command(&sandbox.words("mount", "--kernel"));
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Replace the image as soon as the command has opened it; the check takes much longer.
    wait_until(|| has_open(child.id(), &sandbox.image));
    fs::rename(&other, &sandbox.image).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("no EROFS") || said.contains("cannot mount files") {
        return skipped!("{TEST}: {said}");
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(fs::read_to_string(sandbox.at.join("word")).unwrap(), "checked");
    sandbox.ok(&sandbox.words("unmount", ""));
}

#[test]
fn mount_kernel_refuses_an_image_that_others_can_change() {
    const TEST: &str = "mount_kernel_refuses_an_image_that_others_can_change";
    let Some(sandbox) = MountSandbox::new(TEST) else { return };
    let refused = |what: &str| {
        let (code, said) = sandbox.run(&sandbox.words("mount", "--kernel"));
        if code == 0 {
            sandbox.ok(&sandbox.words("unmount", ""));
        }
        assert!(code == 1 && said.contains(what), "{what}: {code}, {said}");
    };
    let mode = |mode| fs::set_permissions(&sandbox.image, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o646);
    refused("everybody may write");
    mode(0o664);
    refused("group 0");
    mode(0o644);
    // A file that is open for writing.
    let writer = fs::File::options().write(true).open(&sandbox.image).unwrap();
    refused("has it open for writing");
    drop(writer);
    std::os::unix::fs::chown(&sandbox.image, Some(1000), None).unwrap();
    refused("user 1000 owns it");
    // A loop device belongs to root, but its file does not.
    let attached =
        Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(&sandbox.image).output();
    if let Ok(attached) = attached.map(|output| String::from_utf8(output.stdout).unwrap())
        && attached.starts_with("/dev/")
    {
        let device = attached.trim();
        let (code, said) = sandbox.run(&format!("image mount {device} {} --kernel", sandbox.at.display()));
        let on_loop = format!("is a loop device on '{}', and user 1000 owns it", sandbox.image.display());
        let detached = Command::new("losetup").args(["--detach", device]).status().unwrap();
        assert!(detached.success() && code == 1 && said.contains(&on_loop), "{code}, {said}");
    }
    let (code, said) = sandbox.run(&sandbox.words("mount", "--kernel --trusted"));
    if said.contains("no EROFS") {
        return skipped!("{TEST}: {said}");
    }
    assert_eq!(code, 0, "{said}");
    read_all(&sandbox.at);
    sandbox.ok(&sandbox.words("unmount", ""));
}

/// The kernel caches the names in a directory that was listed, and can list it without the server.
#[test]
fn a_dead_mount_is_detected_despite_the_kernels_cache() {
    let Some(sandbox) = MountSandbox::new("a_dead_mount_is_detected_despite_the_kernels_cache") else {
        return;
    };
    sandbox.ok(&sandbox.words("mount", ""));
    let list = || fs::read_dir(&sandbox.at).map(|entries| entries.count());
    assert_eq!(list().unwrap(), 2);
    kill(&sandbox);
    let said = sandbox.ok(&sandbox.words("mount", ""));
    assert!(said.contains("has died; cleaned up"), "{said}, and listing it says {:?}", list());
    read_all(&sandbox.at);
    list().unwrap();
    kill(&sandbox);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn a_user_can_mount_after_a_killed_server() {
    const TEST: &str = "a_user_can_mount_after_a_killed_server";
    let Some(sandbox) = MountSandbox::for_user(TEST) else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    kill(&sandbox);
    let other = sandbox.inner.path("other");
    fs::create_dir(&other).unwrap();
    std::os::unix::fs::chown(&other, Some(USER), Some(USER)).unwrap();
    let (image, at) = (sandbox.image.display(), other.display());
    let said = sandbox.ok(&format!("image mount {image} {at}"));
    assert!(said.contains("has died; cleaned up") && !sandbox.is_mounted(), "{said}");
    sandbox.ok(&format!("image unmount {at}"));
    sandbox.ok(&sandbox.words("mount", ""));
    kill(&sandbox);
    sandbox.ok(&sandbox.words("mount", ""));
    kill(&sandbox);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn errors_of_fusermount_reach_the_user() {
    const TEST: &str = "errors_of_fusermount_reach_the_user";
    let Some(sandbox) = MountSandbox::for_user(TEST) else { return };
    std::os::unix::fs::chown(&sandbox.at, Some(0), Some(0)).unwrap();
    let (code, said) = sandbox.run(&sandbox.words("mount", ""));
    assert!(code == 5 && said.contains("no write access to mountpoint"), "{code}, {said}");
    assert!(!said.contains("install"), "{said}");
    sandbox.assert_nothing_left();
    std::os::unix::fs::chown(&sandbox.at, Some(USER), Some(USER)).unwrap();
    sandbox.ok(&sandbox.words("mount", ""));
    let mut user = as_user(&sandbox);
    let (code, said) = sandbox.run(&sandbox.words("unmount", ""));
    assert!(code == BUSY && said.contains("fuser -vm") && said.contains("--force"), "{code}, {said}");
    sandbox.ok(&sandbox.words("unmount", "--force"));
    user.kill().unwrap();
    user.wait().unwrap();
    sandbox.assert_nothing_left();
}

/// Starts a process of the user that has a file of the mount open. Other users cannot access the mount.
fn as_user(sandbox: &MountSandbox) -> std::process::Child {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<\"$0\"; echo; exec sleep 60"]).arg(sandbox.at.join("long"));
    command.uid(USER).gid(USER).current_dir("/").stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    child
}

/// Whether users can abort the FUSE connections of their mounts.
fn has_fusectl() -> bool {
    fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(" fusectl "))
}

/// After SIGTERM the server of a user exits though files are open, because nobody else could end its threads.
#[test]
fn a_users_server_ends_though_its_mount_is_in_use() {
    let test = "a_users_server_ends_though_its_mount_is_in_use";
    if !has_fusectl() {
        pagefold_testkit::skipped!("{test}: fusectl is not mounted on /sys/fs/fuse/connections");
        return;
    }
    let Some(sandbox) = MountSandbox::for_user(test) else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    let mut user = as_user(&sandbox);
    let pid = server(&sandbox);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    sandbox.assert_nothing_left();
    user.kill().unwrap();
    user.wait().unwrap();
}

#[test]
fn the_smallest_memory_in_the_error_message_is_enough() {
    let Some(sandbox) = MountSandbox::new("the_smallest_memory_in_the_error_message_is_enough") else {
        return;
    };
    let (code, said) = sandbox.run(&sandbox.words("mount", "--memory 4K"));
    let before = said.split(" bytes of memory are needed").next().unwrap();
    let least = before.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
    let Some(least) = least.filter(|_| code == USAGE) else { panic!("{code}, {said}") };
    sandbox.ok(&sandbox.words("mount", &format!("--memory {least}")));
    read_all(&sandbox.at);
    sandbox.ok(&sandbox.words("unmount", ""));
}
