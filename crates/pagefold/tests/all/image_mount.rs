//! Images mounted by the commands: what is there, what is told, and what is left behind.

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

/// A user who is not root.
const USER: u32 = 1000;

/// A sandbox with an image in it, and a folder to mount it on. What is mounted there is taken away in the end.
struct Place {
    sandbox: Sandbox,
    image: PathBuf,
    at: PathBuf,
}

impl Place {
    /// `None`, with the reason, if this machine cannot make or mount images.
    fn new(test: &str) -> Option<Self> {
        if rundir::effective_uid() != 0 || fusedev::open().is_err() {
            skipped!("{test}: needs root and /dev/fuse");
            return None;
        }
        if Command::new("mkfs.erofs").arg("-V").output().is_err() {
            skipped!("{test}: mkfs.erofs is not installed");
            return None;
        }
        Some(Place::within(Sandbox::new()))
    }

    /// The same for a user who is not root, for whom `fusermount3` mounts.
    fn for_user(test: &str) -> Option<Self> {
        Place::new(test)?;
        if Command::new("fusermount3").arg("-V").output().is_err() {
            skipped!("{test}: fusermount3 is not installed");
            return None;
        }
        let place = Place::within(Sandbox::for_user(USER));
        std::os::unix::fs::chown(&place.at, Some(USER), Some(USER)).unwrap();
        let (code, said) = place.run(&place.words("mount", ""));
        if code != 0 && (said.contains("/dev/fuse") || said.contains("Operation not permitted")) {
            skipped!("{test}: users cannot mount here: {said}");
            return None;
        }
        assert_eq!(code, 0, "{said}");
        place.ok(&place.words("unmount", ""));
        Some(place)
    }

    fn within(sandbox: Sandbox) -> Self {
        let (tree, image, at) = (sandbox.path("tree"), sandbox.path("image"), sandbox.path("at"));
        fs::create_dir(&at).unwrap();
        fs::create_dir_all(tree.join("folder")).unwrap();
        fs::write(tree.join("long"), contents()).unwrap();
        fs::write(tree.join("folder/short"), "short\n").unwrap();
        let made = Command::new("mkfs.erofs").args(["-zlz4hc", "-C65536"]).arg(&image).arg(&tree).output();
        assert!(made.unwrap().status.success());
        Place { sandbox, image, at }
    }

    fn words(&self, verb: &str, more: &str) -> String {
        match verb {
            "mount" => format!("image mount {} {} {more}", self.image.display(), self.at.display()),
            _ => format!("image {verb} {} {more}", self.at.display()),
        }
    }

    /// Runs a command; its exit code, and all that it said.
    fn run(&self, words: &str) -> (i32, String) {
        let output = self.sandbox.command(words).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
    }

    fn ok(&self, words: &str) -> String {
        let (code, said) = self.run(words);
        assert_eq!(code, 0, "{words}: {said}");
        said
    }

    fn is_mounted(&self) -> bool {
        mounts::at(&self.at).unwrap().is_some()
    }

    /// Folders of mounts in the runtime folder.
    fn folders(&self) -> usize {
        let entries = fs::read_dir(self.sandbox.runtime().join(".images"));
        entries.map_or(0, |e| e.filter(|e| e.as_ref().unwrap().path().is_dir()).count())
    }

    fn live(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok(&self.words("show", "--live --json"))).unwrap()
    }

    fn assert_nothing_left(&self) {
        wait_until(|| !self.is_mounted() && self.folders() == 0);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fusedev::abort_and_unmount(&self.at);
    }
}

fn contents() -> Vec<u8> {
    (0..200_000u32).flat_map(|n| format!("{} {}\n", n % 1013, n).into_bytes()).collect()
}

fn wait_until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come to hold");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(at: &Path) {
    assert_eq!(fs::read(at.join("long")).unwrap(), contents());
    assert_eq!(fs::read_to_string(at.join("folder/short")).unwrap(), "short\n");
}

#[test]
fn an_image_is_mounted_told_of_and_unmounted() {
    let Some(place) = Place::new("an_image_is_mounted_told_of_and_unmounted") else { return };
    assert_eq!(place.ok(&place.words("mount", "--memory 8M --threads 2")), "");
    read_all(&place.at);
    let live = place.live();
    assert_eq!(live["threads"], 2);
    assert_eq!(live["budget"]["limit_bytes"], 8 << 20);
    assert_eq!(live["reads"]["asked_bytes"], contents().len() as u64 + 6);
    let by_image = place.ok(&format!("image show {} --live", place.image.display()));
    for word in ["read amplification", "decoded in place", "p99 <=", "waited for memory"] {
        assert!(by_image.contains(word), "{word} is not in\n{by_image}");
    }
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
    let (code, said) = place.run(&place.words("show", "--live"));
    assert_eq!(code, NOT_FOUND, "{said}");
}

#[test]
fn disks_and_mounts_are_kept_apart() {
    let Some(place) = Place::new("disks_and_mounts_are_kept_apart") else { return };
    place.ok(&place.words("mount", ""));
    assert!(!place.ok("disk list").contains("mount0"));
    read_all(&place.at);
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
}

/// Whether a user without rights can do this.
fn other_user(words: &[&str]) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups", "--"]).args(words);
    command.output().unwrap().status.success()
}

#[test]
fn other_users_get_in_when_asked_for_and_modes_and_lists_are_kept() {
    let test = "other_users_get_in_when_asked_for_and_modes_and_lists_are_kept";
    let Some(place) = Place::new(test) else { return };
    if Command::new("setfacl").arg("-v").output().is_err() || !other_user(&["true"]) {
        return skipped!("{test}: setfacl and setpriv are needed");
    }
    let tree = place.sandbox.path("others");
    fs::create_dir(&tree).unwrap();
    for (name, mode) in [("all", 0o644), ("owner", 0o600), ("listed", 0o600)] {
        fs::write(tree.join(name), name).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let listed = Command::new("setfacl").args(["-m", "u:1000:r"]).arg(tree.join("listed")).status().unwrap();
    let made = Command::new("mkfs.erofs").arg("--quiet").arg(&place.image).arg(&tree).status().unwrap();
    if !listed.success() || !made.success() {
        return skipped!("{test}: no access lists here");
    }
    // So that only the mount decides.
    fs::set_permissions(place.at.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| place.at.join(name).to_str().unwrap().to_string();
    let reads = |name: &str| other_user(&["cat", &path(name)]);
    place.ok(&place.words("mount", "--allow-other"));
    assert_eq!(["all", "owner", "listed"].map(reads), [true, false, true]);
    assert!(!other_user(&["test", "-x", &path("all")]) && !Path::new(&path("none")).exists());
    place.ok(&place.words("unmount", ""));
    place.ok(&place.words("mount", ""));
    assert_eq!(["all", "owner", "listed"].map(reads), [false, false, false]);
    let executable = Command::new("test").args(["-x", &path("all")]).status().unwrap();
    assert!(!executable.success(), "access(2) goes by the mode");
    place.ok(&place.words("unmount", ""));
}

#[test]
fn umount_ends_the_server() {
    let Some(place) = Place::new("umount_ends_the_server") else { return };
    place.ok(&place.words("mount", "--allow-other --no-readahead"));
    read_all(&place.at);
    rustix::mount::unmount(&place.at, rustix::mount::UnmountFlags::empty()).unwrap();
    place.assert_nothing_left();
}

#[test]
fn one_in_use_is_unmounted_by_force_alone() {
    let Some(place) = Place::new("one_in_use_is_unmounted_by_force_alone") else { return };
    place.ok(&place.words("mount", ""));
    let open = fs::File::open(place.at.join("long")).unwrap();
    let (code, said) = place.run(&place.words("unmount", ""));
    assert_eq!(code, BUSY, "{said}");
    read_all(&place.at);
    place.ok(&place.words("unmount", "--force"));
    place.assert_nothing_left();
    drop(open);
}

/// The server of the one mount.
fn server(place: &Place) -> rustix::process::Pid {
    let pid = i32::try_from(place.live()["pid"].as_i64().unwrap()).unwrap();
    rustix::process::Pid::from_raw(pid).unwrap()
}

/// Kills the server of the one mount, and waits until the kernel has noticed.
fn kill(place: &Place) {
    let pid = server(place);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // Root is told only of its own mounts whether they are served; a zombie has closed all that it had.
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    wait_until(|| fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn what_a_killed_server_leaves_is_cleared_by_unmount() {
    let Some(place) = Place::new("what_a_killed_server_leaves_is_cleared_by_unmount") else { return };
    place.ok(&place.words("mount", ""));
    kill(&place);
    assert!(place.is_mounted() && place.folders() == 1);
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
}

#[test]
fn what_a_killed_server_leaves_is_cleared_by_the_next_mount() {
    let Some(place) = Place::new("what_a_killed_server_leaves_is_cleared_by_the_next_mount") else { return };
    place.ok(&place.words("mount", ""));
    kill(&place);
    let said = place.ok(&place.words("mount", ""));
    assert!(said.contains("has died; cleaned up"), "{said}");
    read_all(&place.at);
    assert_eq!(place.folders(), 1);
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
}

/// Stops the server of the one mount, so that it answers nothing. A descriptor of a file keeps the mount in use.
fn stop(place: &Place) -> (rustix::process::Pid, fs::File) {
    let open = fs::File::open(place.at.join("long")).unwrap();
    let pid = i32::try_from(place.live()["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    (pid, open)
}

/// Runs a command that is not to hang; its exit code, and all that it said.
fn run_soon(place: &Place, words: &str) -> (i32, String) {
    let mut command = place.sandbox.quietly(words);
    let pipes = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(25);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = fusedev::abort_and_unmount(&place.at);
            panic!("{words}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_server_that_does_not_answer_holds_no_command_up() {
    let Some(place) = Place::new("a_server_that_does_not_answer_holds_no_command_up") else { return };
    place.ok(&place.words("mount", ""));
    // What the kernel keeps of the mount point runs out; then a look at it needs the server.
    let (pid, open) = stop(&place);
    std::thread::sleep(Duration::from_millis(1100));
    let link = place.sandbox.path("link");
    std::os::unix::fs::symlink(&place.at, &link).unwrap();
    for target in [&place.at, &link, &place.image] {
        let (code, said) = run_soon(&place, &format!("image show --live {}", target.display()));
        assert!(code == 1 && said.contains("'image unmount --force'"), "{code}, {said}");
    }
    let (code, said) = run_soon(&place, &place.words("unmount", ""));
    assert!(code == BUSY && said.contains("in use"), "{code}, {said}");
    let (code, said) = run_soon(&place, &place.words("mount", ""));
    assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    let (code, said) = run_soon(&place, &place.words("unmount", "--force"));
    assert!(code == 0 && said.contains("ending it"), "{code}, {said}");
    place.assert_nothing_left();
    drop(open);
    // Nobody may have waited for it yet.
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    wait_until(|| fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn a_server_that_hangs_behind_an_unmounted_image_is_ended_by_force() {
    const TEST: &str = "a_server_that_hangs_behind_an_unmounted_image_is_ended_by_force";
    let Some(place) = Place::new(TEST) else { return };
    place.ok(&place.words("mount", ""));
    let (_, open) = stop(&place);
    rustix::mount::unmount(&place.at, rustix::mount::UnmountFlags::DETACH).unwrap();
    let (code, said) = run_soon(&place, &place.words("unmount", ""));
    assert!(code == NOT_FOUND && place.folders() == 1, "{code}, {said}");
    let (code, said) = run_soon(&place, &place.words("unmount", "--force"));
    assert!(code == 0 && said.contains("ending it"), "{code}, {said}");
    place.assert_nothing_left();
    drop(open);
}

#[test]
fn signals_end_it_in_order() {
    let Some(place) = Place::new("signals_end_it_in_order") else { return };
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        place.ok(&place.words("mount", ""));
        let pid = i32::try_from(place.live()["pid"].as_i64().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        place.assert_nothing_left();
    }
}

#[test]
fn in_the_foreground_it_ends_with_the_command() {
    let Some(place) = Place::new("in_the_foreground_it_ends_with_the_command") else { return };
    for unmounts in [false, true] {
        let mut command = place.sandbox.quietly(&place.words("mount", "--foreground")).spawn().unwrap();
        wait_until(|| place.is_mounted() && place.at.join("long").exists());
        read_all(&place.at);
        if unmounts {
            place.ok(&place.words("unmount", ""));
        } else {
            let pid = rustix::process::Pid::from_child(&command);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        assert!(command.wait().unwrap().success());
        place.assert_nothing_left();
    }
}

#[test]
fn mistakes_are_named_and_leave_nothing() {
    let Some(place) = Place::new("mistakes_are_named_and_leave_nothing") else { return };
    let no_image = place.sandbox.path("tree/long");
    let (image, at) = (place.image.display().to_string(), place.at.display().to_string());
    let cases = [
        (format!("image mount {} {at}", no_image.display()), 1, "not an EROFS image"),
        (format!("image mount {image}.missing {at}"), NOT_FOUND, "No such file"),
        (format!("image mount {image} {at}.missing"), NOT_FOUND, "No such file"),
        (format!("image mount {image} {image}"), USAGE, "is not a directory"),
        (format!("image mount {image} {at} --memory 4K"), USAGE, "raise it with --memory"),
        (format!("image mount {image} {at} --memory much"), USAGE, "--memory"),
        (format!("image mount {image} {at} --trusted"), USAGE, "--kernel"),
        (format!("image unmount {at}"), NOT_FOUND, "no image is mounted"),
        ("image unmount /proc".to_string(), NOT_FOUND, "no image is mounted"),
        (format!("image show --live {at}"), NOT_FOUND, "neither"),
    ];
    for (words, code, message) in cases {
        let (found, said) = place.run(&words);
        assert!(found == code && said.contains(message), "{words}: {found}, {said}");
    }
    place.assert_nothing_left();
    place.ok(&place.words("mount", ""));
    let (code, said) = place.run(&place.words("mount", ""));
    assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    assert_eq!(place.folders(), 1);
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
}

#[test]
fn the_kernel_mounts_what_was_checked() {
    const TEST: &str = "the_kernel_mounts_what_was_checked";
    let Some(place) = Place::new(TEST) else { return };
    let (code, said) = place.run(&place.words("mount", "--kernel"));
    if code != 0 && said.contains("no EROFS") {
        skipped!("{TEST}: {said}");
        return;
    }
    assert_eq!(code, 0, "{said}");
    let mount = mounts::at(&place.at).unwrap().unwrap();
    assert_eq!(mount.fs_type, "erofs");
    read_all(&place.at);
    // Not one on top of the other, of neither kind.
    for more in ["--kernel", ""] {
        let (code, said) = place.run(&place.words("mount", more));
        assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    }
    place.ok(&place.words("unmount", ""));
    assert!(!place.is_mounted());
    place.ok(&place.words("mount", ""));
    let (code, said) = place.run(&place.words("mount", "--kernel"));
    assert!(code == BUSY && said.contains("already"), "{code}, {said}");
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
    // Zeroes where clusters are: the kernel would find out much later.
    let mut bytes = fs::read(&place.image).unwrap();
    let end = bytes.len();
    bytes[end / 2..].fill(0xff);
    fs::write(&place.image, bytes).unwrap();
    let (code, said) = place.run(&place.words("mount", "--kernel"));
    assert!(code == 1 && said.contains("wrong with the image") && !place.is_mounted(), "{code}, {said}");
}

/// Makes `image` of a folder with one file, which says `word` and is long enough for a check to take a while.
fn make_long_image(place: &Place, image: &Path, word: &str) {
    let tree = place.sandbox.path(&format!("tree of {word}"));
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
fn the_kernel_mounts_the_file_that_was_checked_though_its_path_leads_elsewhere() {
    const TEST: &str = "the_kernel_mounts_the_file_that_was_checked_though_its_path_leads_elsewhere";
    let Some(place) = Place::new(TEST) else { return };
    make_long_image(&place, &place.image, "checked");
    let other = place.sandbox.path("other");
    make_long_image(&place, &other, "exchanged");
    let mut command = place.sandbox.command(&place.words("mount", "--kernel"));
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Exchanged as soon as the command has the image open; the check takes much longer.
    wait_until(|| has_open(child.id(), &place.image));
    fs::rename(&other, &place.image).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("no EROFS") || said.contains("mounts no files") {
        return skipped!("{TEST}: {said}");
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(fs::read_to_string(place.at.join("word")).unwrap(), "checked");
    place.ok(&place.words("unmount", ""));
}

#[test]
fn the_kernel_is_given_nothing_that_others_can_change() {
    const TEST: &str = "the_kernel_is_given_nothing_that_others_can_change";
    let Some(place) = Place::new(TEST) else { return };
    let refused = |what: &str| {
        let (code, said) = place.run(&place.words("mount", "--kernel"));
        if code == 0 {
            place.ok(&place.words("unmount", ""));
        }
        assert!(code == 1 && said.contains(what), "{what}: {code}, {said}");
    };
    let mode = |mode| fs::set_permissions(&place.image, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o646);
    refused("everybody may write");
    mode(0o664);
    refused("group 0");
    mode(0o644);
    // Opened while that was allowed, and still open.
    let writer = fs::File::options().write(true).open(&place.image).unwrap();
    refused("has it open for writing");
    drop(writer);
    std::os::unix::fs::chown(&place.image, Some(1000), None).unwrap();
    refused("user 1000 owns it");
    // A loop device is root's, and the file that it stands on is not.
    let attached =
        Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(&place.image).output();
    if let Ok(attached) = attached.map(|output| String::from_utf8(output.stdout).unwrap())
        && attached.starts_with("/dev/")
    {
        let device = attached.trim();
        let (code, said) = place.run(&format!("image mount {device} {} --kernel", place.at.display()));
        let on_loop = format!("is a loop device on '{}', and user 1000 owns it", place.image.display());
        let detached = Command::new("losetup").args(["--detach", device]).status().unwrap();
        assert!(detached.success() && code == 1 && said.contains(&on_loop), "{code}, {said}");
    }
    let (code, said) = place.run(&place.words("mount", "--kernel --trusted"));
    if said.contains("no EROFS") {
        return skipped!("{TEST}: {said}");
    }
    assert_eq!(code, 0, "{said}");
    read_all(&place.at);
    place.ok(&place.words("unmount", ""));
}

/// Of a directory that was listed the kernel keeps the names, and goes on answering from them.
#[test]
fn a_dead_mount_is_recognised_though_the_kernel_still_answers() {
    let Some(place) = Place::new("a_dead_mount_is_recognised_though_the_kernel_still_answers") else {
        return;
    };
    place.ok(&place.words("mount", ""));
    let list = || fs::read_dir(&place.at).map(|entries| entries.count());
    assert_eq!(list().unwrap(), 2);
    kill(&place);
    let said = place.ok(&place.words("mount", ""));
    assert!(said.contains("has died; cleaned up"), "{said}, and listing it says {:?}", list());
    read_all(&place.at);
    list().unwrap();
    kill(&place);
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
}

#[test]
fn what_a_killed_server_leaves_does_not_keep_a_user_from_mounting() {
    const TEST: &str = "what_a_killed_server_leaves_does_not_keep_a_user_from_mounting";
    let Some(place) = Place::for_user(TEST) else { return };
    place.ok(&place.words("mount", ""));
    kill(&place);
    let other = place.sandbox.path("other");
    fs::create_dir(&other).unwrap();
    std::os::unix::fs::chown(&other, Some(USER), Some(USER)).unwrap();
    let (image, at) = (place.image.display(), other.display());
    let said = place.ok(&format!("image mount {image} {at}"));
    assert!(said.contains("has died; cleaned up") && !place.is_mounted(), "{said}");
    place.ok(&format!("image unmount {at}"));
    place.ok(&place.words("mount", ""));
    kill(&place);
    place.ok(&place.words("mount", ""));
    kill(&place);
    place.ok(&place.words("unmount", ""));
    place.assert_nothing_left();
}

#[test]
fn a_user_is_told_why_there_is_no_mount_and_that_one_is_in_use() {
    const TEST: &str = "a_user_is_told_why_there_is_no_mount_and_that_one_is_in_use";
    let Some(place) = Place::for_user(TEST) else { return };
    std::os::unix::fs::chown(&place.at, Some(0), Some(0)).unwrap();
    let (code, said) = place.run(&place.words("mount", ""));
    assert!(code == 5 && said.contains("no write access to mountpoint"), "{code}, {said}");
    assert!(!said.contains("install"), "{said}");
    place.assert_nothing_left();
    std::os::unix::fs::chown(&place.at, Some(USER), Some(USER)).unwrap();
    place.ok(&place.words("mount", ""));
    let mut user = as_user(&place);
    let (code, said) = place.run(&place.words("unmount", ""));
    assert!(code == BUSY && said.contains("fuser -vm") && said.contains("--force"), "{code}, {said}");
    place.ok(&place.words("unmount", "--force"));
    user.kill().unwrap();
    user.wait().unwrap();
    place.assert_nothing_left();
}

/// A process of the user's that holds a file of the mount open; nobody else gets in.
fn as_user(place: &Place) -> std::process::Child {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<\"$0\"; echo; exec sleep 60"]).arg(place.at.join("long"));
    command.uid(USER).gid(USER).current_dir("/").stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    child
}

/// Whether users can break the connections of their mounts.
fn has_fusectl() -> bool {
    fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(" fusectl "))
}

/// A server that is told to end does, although files are open: nobody else could end its threads.
#[test]
fn a_users_server_ends_though_its_mount_is_in_use() {
    let test = "a_users_server_ends_though_its_mount_is_in_use";
    if !has_fusectl() {
        pagefold_testkit::skipped!("{test}: fusectl is not mounted on /sys/fs/fuse/connections");
        return;
    }
    let Some(place) = Place::for_user(test) else { return };
    place.ok(&place.words("mount", ""));
    let mut user = as_user(&place);
    let pid = server(&place);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    place.assert_nothing_left();
    user.kill().unwrap();
    user.wait().unwrap();
}

#[test]
fn the_least_memory_that_is_named_is_enough() {
    let Some(place) = Place::new("the_least_memory_that_is_named_is_enough") else { return };
    let (code, said) = place.run(&place.words("mount", "--memory 4K"));
    let before = said.split(" bytes of memory are needed").next().unwrap();
    let least = before.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
    let Some(least) = least.filter(|_| code == USAGE) else { panic!("{code}, {said}") };
    place.ok(&place.words("mount", &format!("--memory {least}")));
    read_all(&place.at);
    place.ok(&place.words("unmount", ""));
}
