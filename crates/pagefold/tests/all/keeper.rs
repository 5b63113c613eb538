//! A keeper that adopts a server which was taken over: it ends no other process, and writes to no other folder.

use crate::support::wait_until;
use pagefold_sys::handover::{recv_message, send_message};
use pagefold_sys::pidfd::{Identity, Process};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

/// A process that stands for a server or for one that a server must not harm. It ends when the test does.
struct Sleeping(Child);

impl Sleeping {
    fn start() -> Self {
        Sleeping(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn process(&self) -> (Identity, Process) {
        let identity = Identity::of(self.0.id() as i32).unwrap();
        let process = Process::open(&identity).unwrap().unwrap();
        (identity, process)
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder, a server, and the server's connection to a keeper that adopts it.
fn adopted() -> (tempfile::TempDir, Sleeping, UnixStream, Child) {
    let (folder, server) = (tempfile::tempdir().unwrap(), Sleeping::start());
    let start = folder.path().join("start");
    fs::write(&start, format!("{{\"dir\": {:?}}}", folder.path())).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (Identity { pid, start_ticks, .. }, _) = server.process();
    let keeper = Command::new(env!("CARGO_BIN_EXE_pagefold"))
        .arg0("pagefold")
        .args(["serve", "x", "adopt", "nbd", &pid.to_string(), &start_ticks.to_string()])
        .stdin(OwnedFd::from(theirs))
        .stdout(File::open(&start).unwrap())
        .spawn()
        .unwrap();
    (folder, server, ours, keeper)
}

fn send(mut stream: &UnixStream, letter: u8, fds: &[BorrowedFd<'_>], payload: &[u8]) {
    let [a, b, c, d] = (payload.len() as u32).to_le_bytes();
    send_message(stream, [letter, 0, 0, 0, a, b, c, d], fds).unwrap();
    stream.write_all(payload).unwrap();
}

#[test]
fn a_server_cannot_let_its_keeper_kill_another_process() {
    let (_folder, mut server, stream, mut keeper) = adopted();
    let victim = Sleeping::start();
    let (identity, process) = victim.process();
    send(&stream, b'S', &[process.as_fd()], &identity.pid.to_le_bytes());
    assert!(!keeper.wait().unwrap().success());
    // The message is malformed, so the server is killed.
    assert!(!server.0.wait().unwrap().success());
    assert!(!process.wait(Duration::ZERO).unwrap());
}

#[test]
fn a_server_cannot_let_its_keeper_write_to_another_folder() {
    let (folder, server, stream, mut keeper) = adopted();
    let other = tempfile::tempdir().unwrap();
    let (lock, named) = (File::open("/dev/null").unwrap(), File::open(other.path()).unwrap());
    for _ in 0..2 {
        let start = format!("{{\"dir\": {:?}}}", other.path());
        send(&stream, b'C', &[], start.as_bytes());
        send(&stream, b'K', &[lock.as_fd(), named.as_fd()], b"{}");
        let accepted = recv_message(&stream, &mut Vec::new()).unwrap().unwrap();
        assert_eq!(accepted[0], b'A');
    }
    wait_until("the keeper has written its file", || folder.path().join("keeper").exists());
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    drop(server);
}
