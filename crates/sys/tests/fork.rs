//! Tests of `fork`, in a program with one thread: test harnesses have more.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_sys::fork::{die_with_parent, fork, fork_with};
use pagefold_sys::forkshared::ForkShared;
use pagefold_sys::respawn::End;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn main() {
    // A panic of a child is expected; one of this process fails in any case.
    let tests: [(&str, fn()); 5] = [
        ("a_child_runs_a_function_and_returns_its_code", a_child_runs_a_function_and_returns_its_code),
        ("a_child_dies_with_its_parent", a_child_dies_with_its_parent),
        ("children_are_known_where_pidfd_open_is_refused", children_are_known_where_pidfd_open_is_refused),
        ("memory_is_shared_with_a_child", memory_is_shared_with_a_child),
        ("a_process_with_threads_is_not_forked", a_process_with_threads_is_not_forked),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    // As other test programs, for programs that read their output.
    println!("\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out", tests.len());
}

fn a_child_runs_a_function_and_returns_its_code() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let child = fork(move || {
        let answer = format!("{}\n", std::process::id());
        theirs.write_all(answer.as_bytes()).map_or(1, |()| 7)
    });
    let child = child.unwrap();
    let mut text = String::new();
    // The parent's copy of the child's end was dropped, so the text ends.
    ours.read_to_string(&mut text).unwrap();
    assert_eq!(text.trim().parse::<i32>().unwrap(), child.pid);
    assert_eq!(child.wait(), End::Code(7));
    let panics = || {
        std::panic::set_hook(Box::new(|_| {}));
        panic!("a panic of this test")
    };
    assert_eq!(fork(panics).unwrap().wait(), End::Code(101));
}

fn a_child_dies_with_its_parent() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let parent = fork(move || {
        let this = rustix::process::getpid();
        let child = fork(move || {
            die_with_parent(this).unwrap();
            (&theirs).write_all(b"a").unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
            0
        });
        child.unwrap();
        std::thread::sleep(std::time::Duration::from_secs(60));
        1
    });
    let parent = parent.unwrap();
    ours.read_exact(&mut [0]).unwrap();
    parent.process.kill().unwrap();
    assert_eq!(parent.wait(), End::Signal(9));
    // The end of the child has closed its end of the socket.
    assert_eq!(ours.read(&mut [0]).unwrap(), 0);
}

/// In a child, which has the filter of system calls.
fn children_are_known_where_pidfd_open_is_refused() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let sandboxed = fork(|| {
            pagefold_testkit::seccomp::fail(libc::SYS_pidfd_open, errno);
            a_child_runs_a_function_and_returns_its_code();
            a_child_dies_with_its_parent();
            a_child_ends_when_it_is_asked_to();
            0
        });
        assert_eq!(sandboxed.unwrap().wait(), End::Code(0), "{errno}");
    }
    a_child_ends_when_it_is_asked_to();
}

fn a_child_ends_when_it_is_asked_to() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let child = fork_with(vec![theirs.into()], |fds| {
        let mut socket = UnixStream::from(fds.into_iter().next().unwrap());
        u8::from(socket.read_exact(&mut [0]).is_err()) + 2
    });
    let child = child.unwrap();
    assert!(!child.process.wait(Duration::from_millis(20)).unwrap());
    ours.write_all(b"a").unwrap();
    assert!(child.process.wait(Duration::from_secs(60)).unwrap());
    assert_eq!(child.wait(), End::Code(2));
}

fn memory_is_shared_with_a_child() {
    let shared = ForkShared::new(4096).unwrap();
    assert!(shared.write(100, b"of the parent"));
    let child = fork(|| {
        let mut text = [0; 13];
        let is_there = shared.read(100, &mut text) && text == *b"of the parent";
        u8::from(!is_there || !shared.write(100, b"of the child"))
    });
    assert_eq!(child.unwrap().wait(), End::Code(0));
    let mut text = [0; 12];
    assert!(shared.read(100, &mut text) && text == *b"of the child");
}

fn a_process_with_threads_is_not_forked() {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || stopped.recv());
    assert_eq!(fork(|| 0).err().unwrap().errno, libc::EBUSY);
    drop(stop);
    thread.join().unwrap().unwrap_err();
    // One that has ended is none, however short ago.
    for _ in 0..100 {
        std::thread::spawn(|| {}).join().unwrap();
        assert_eq!(fork(|| 0).unwrap().wait(), End::Code(0));
    }
}
