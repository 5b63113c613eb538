//! `disk create` for scripts: `--run`, `--json`, and the notes.

use crate::support::{Ran, Sandbox, is_running, kill, no_loop, sh, wait_until};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The command `disk create --run SCRIPT`, for a disk of 8 MiB.
fn command(s: &Sandbox, options: &str, script: &str) -> Command {
    let mut command = s.command(&format!("disk create --size 8M {options} --run"));
    command.arg(script);
    command
}

fn run(s: &Sandbox, options: &str, script: &str) -> Ran {
    Ran::new(script, command(s, options, script).output().unwrap())
}

#[test]
fn a_disk_exists_while_a_command_runs() {
    let s = Sandbox::new();
    let program = env!("CARGO_BIN_EXE_pagefold");
    let script = format!(
        "echo $PAGEFOLD_NAME; {program} disk show \"$PAGEFOLD_DEVICE\" -a size; {program} disk list -q"
    );
    let ran = run(&s, "--export nbd", &script);
    assert_eq!(ran.code, 0, "{ran:?}");
    // Nothing but the output of the command.
    assert!(ran.out.starts_with("disk0\n8388608\nNAME "), "{ran:?}");
    assert!(ran.err.starts_with("pagefold: note: created disk 'disk0'; "), "{ran:?}");
    assert!(!ran.err.contains("serving"), "the log of the server does not mix with the output: {ran:?}");
    assert_eq!(s.left(), Vec::<String>::new());
    let quiet = run(&s, "--export nbd -q", "true");
    assert!(quiet.code == 0 && quiet.out.is_empty() && quiet.err.is_empty(), "{quiet:?}");
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let s = Sandbox::new();
    for (script, code) in [("exit 7", 7), ("exit 255", 255), ("nosuchprogram 2>&-", 127), ("kill -9 $$", 137)]
    {
        let ran = run(&s, "-q --export nbd", script);
        assert!(ran.code == code && ran.err.is_empty(), "{ran:?}");
        assert_eq!(s.left(), Vec::<String>::new(), "{script}");
    }
    for other in ["--foreground", "--json"] {
        run(&s, other, "true").fails(2, "cannot be used with");
    }
    // Without sh there is no command to run, and no disk stays.
    let ran =
        Ran::new("", command(&s, "-q --export nbd", "true").env("PATH", "/nonexistent").output().unwrap());
    ran.fails(125, "running 'sh'");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_command_that_removes_the_disk_or_kills_its_server_is_no_hang() {
    let s = Sandbox::new();
    let program = env!("CARGO_BIN_EXE_pagefold");
    let ran = run(&s, "-q --export nbd", &format!("{program} disk remove $PAGEFOLD_NAME; exit 3"));
    assert!(ran.code == 3 && ran.err.is_empty(), "{ran:?}");
    assert_eq!(s.left(), Vec::<String>::new());
    let pid = "sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p'";
    let keeper = s.runtime().join("x/keeper");
    // A server that is stopped starts no other keeper.
    let kill = format!(
        "p=$({program} disk show x --json | {pid}); kill -STOP $p; kill -9 $({pid} {}) $p",
        keeper.display()
    );
    run(&s, "-q --export nbd --name x", &kill).fails(125, "the server died");
    let ran = run(&s, "-q --export nbd --name x", &format!("{kill}; exit 9"));
    ran.fails(9, "the server died");
    assert_eq!(s.left(), Vec::<String>::new());
}

/// A command `disk create --run` in a process group that is killed when this is dropped.
struct Running(Child);

impl Running {
    /// Starts it, and waits until its script, which has a disk `x`, waits for a signal.
    fn start(s: &Sandbox, script: &str) -> Self {
        let script = format!("{script}; echo ready >{}; sleep 1000 & wait", s.path("ready").display());
        let mut command = command(s, "-q --export nbd --name x", &script);
        let child = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let running = Running(child.unwrap());
        wait_until("the command runs", || s.path("ready").exists());
        std::fs::remove_file(s.path("ready")).unwrap();
        running
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    /// Sends a signal to the whole group, as a terminal does.
    fn signal_group(&self, signal: rustix::process::Signal) {
        let group = rustix::process::Pid::from_raw(self.pid()).unwrap();
        // The last process of the group may have ended.
        let _ = rustix::process::kill_process_group(group, signal);
    }

    /// Waits until it ends, and returns its exit code.
    fn end(mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the command ends", || {
            code = self.0.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal_group(rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn ctrl_c_and_sigterm_end_the_command_and_then_the_disk() {
    if let Some(why) = crate::support::no_interrupts() {
        pagefold_testkit::skipped!("ctrl_c_and_sigterm_end_the_command_and_then_the_disk: {why}");
        return;
    }
    let s = Sandbox::new();
    for (script, code) in [("trap 'exit 4' INT", 4), ("true", 130)] {
        let running = Running::start(&s, script);
        running.signal_group(rustix::process::Signal::INT);
        assert_eq!(running.end(), Some(code), "{script}");
        assert_eq!(s.left(), Vec::<String>::new());
    }
    // Other processes than the terminal send a signal to this process alone.
    for (signal, code) in [("TERM", 5), ("INT", 6), ("HUP", 7)] {
        let running = Running::start(&s, "trap 'exit 5' TERM; trap 'exit 6' INT; trap 'exit 7' HUP");
        kill(running.pid(), signal);
        assert_eq!(running.end(), Some(code), "{signal}");
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

#[test]
fn own_failures_have_an_exit_code_that_no_command_has() {
    let s = Sandbox::new();
    for options in ["--name a/b --export nbd", "--codec nosuch", "--export nbd --backing /nonexistent/file"] {
        run(&s, options, "exit 2").fails(125, "");
    }
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_disk_does_not_outlive_a_killed_command() {
    let s = Sandbox::new();
    let running = Running::start(&s, "true");
    let server = s.server_pid("x");
    kill(running.pid(), "KILL");
    wait_until("the server has exited", || !is_running(server));
    s.ok("disk list");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_disk_that_the_command_left_in_use_stays() {
    let test = "a_disk_that_the_command_left_in_use_stays";
    if let Some(why) = no_loop() {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    // A disk that stays is no success, even if the command was one.
    for (exit, code) in [(6, 6), (0, 125)] {
        stays(&s, &mount, exit, code);
    }
}

fn stays(s: &Sandbox, mount: &std::path::Path, exit: i32, code: i32) {
    let script =
        format!("mkfs.ext4 -q $PAGEFOLD_DEVICE && mount $PAGEFOLD_DEVICE {}; exit {exit}", mount.display());
    let mut command = s.command("disk create --size 64M -q --name x --export loop --run");
    let path = format!("{}:/sbin:/usr/sbin", std::env::var("PATH").unwrap());
    let ran = Ran::new(&script, command.arg(&script).env("PATH", path).output().unwrap());
    ran.fails(code, &format!("mounted at {}", mount.display()));
    assert!(ran.err.contains("the disk stays, and 'pagefold disk remove x' removes it"), "{ran:?}");
    std::fs::write(mount.join("file"), "text").unwrap();
    sh("umount", &[mount.to_str().unwrap()]);
    s.ok("disk remove x");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn create_prints_the_device_or_json_and_notes_the_name() {
    let s = Sandbox::new();
    let ran = s.run("disk create --size 8M --export nbd --name x --json");
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let socket = s.runtime().join("x/nbd.sock");
    let uri = format!("nbd+unix:///x?socket={}", socket.display());
    let wanted = serde_json::json!({
        "schema_version": 1, "name": "x", "device": uri, "export": "nbd", "size_bytes": 8 << 20
    });
    assert_eq!(json, wanted);
    assert!(ran.out.starts_with("{\n  \"schema_version\": 1,"), "{ran:?}");
    // One line, which says how to use and how to end the disk; the device is on standard output alone.
    assert!(
        ran.err.starts_with("pagefold: note: created disk 'x'; ") && ran.err.lines().count() == 1,
        "{ran:?}"
    );
    assert!(
        ran.err.contains("'pagefold disk remove x'") && ran.err.contains("'nbdcopy FILE URI'"),
        "{ran:?}"
    );
    assert!(!ran.err.contains(&uri), "{ran:?}");
    let more = s.run("disk create --size 8M --export nbd --name y --memory 1P");
    assert!(more.code == 0 && more.err.contains("--memory 1 PiB is more than this machine has"), "{more:?}");
    assert!(Path::new(&socket).exists());
}

#[test]
fn listening_without_tls_is_noted_and_host_names_are_resolved() {
    let s = Sandbox::new();
    let says = "every user of this machine can read and write the disk";
    let unix = s.run("disk create --size 8M --export nbd");
    assert!(unix.code == 0 && !unix.err.contains(says), "{unix:?}");
    let tcp = s.run("disk create --size 8M --listen localhost:0");
    assert!(tcp.code == 0 && tcp.err.contains(says) && tcp.out.starts_with("nbd://"), "{tcp:?}");
    let uri = tcp.out.trim_end();
    assert_eq!(s.show(uri)["device"], uri);
    s.run("disk create --size 8M --listen 0.0.0.0:0").fails(2, "other machines can reach 0.0.0.0");
    s.run("disk create --size 8M --listen nosuch.invalid:1").fails(2, "resolving 'nosuch.invalid:1'");
    s.run("disk create --size 8M --listen localhost").fails(2, "localhost:10809");
}
