//! Runtime folders prepared by others, and peers that do not play by the rules.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
use common::{Sandbox, is_root};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

fn refused(s: &Sandbox, says: &str) {
    for words in ["disk create --door nbd --size 1M", "disk list", "disk show x", "disk remove x"] {
        s.run(words).fails(5, says);
    }
}

fn folder(path: &Path, mode: u32) {
    std::fs::create_dir(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_link_in_place_of_the_folder_is_refused() {
    let s = Sandbox::new();
    folder(&s.path("elsewhere"), 0o700);
    symlink(s.path("elsewhere"), s.runtime()).unwrap();
    refused(&s, "symbolic link");
    assert_eq!(std::fs::read_dir(s.path("elsewhere")).unwrap().count(), 0);
}

#[test]
fn a_folder_that_others_can_enter_is_refused() {
    for mode in [0o755, 0o770, 0o777, 0o1777, 0o701] {
        let s = Sandbox::new();
        folder(&s.runtime(), mode);
        refused(&s, "chmod 700");
    }
}

#[test]
fn a_folder_of_another_user_is_refused() {
    if !is_root() {
        pagefold_testkit::skipped!("a_folder_of_another_user_is_refused: needs root to give a folder away");
        return;
    }
    let s = Sandbox::new();
    folder(&s.runtime(), 0o700);
    std::os::unix::fs::chown(s.runtime(), Some(65534), None).unwrap();
    refused(&s, "belongs to user 65534");
}

#[test]
fn a_shared_folder_above_is_refused() {
    let s = Sandbox::new();
    std::fs::set_permissions(s.path(""), std::fs::Permissions::from_mode(0o1777)).unwrap();
    refused(&s, "writable by other users");
}

#[test]
fn without_a_place_for_it_there_is_a_clear_error() {
    // Root always has /run/pagefold.
    let s = if is_root() { Sandbox::for_user(65534) } else { Sandbox::new() };
    let mut command = s.command("disk list");
    command.env_remove("PAGEFOLD_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR");
    common::Ran::new("disk list", command.output().unwrap()).fails(5, "XDG_RUNTIME_DIR");
}

#[test]
fn files_in_the_folder_that_are_no_disks_are_left_alone() {
    let s = Sandbox::new();
    folder(&s.runtime(), 0o700);
    std::fs::write(s.runtime().join("file"), "x").unwrap();
    folder(&s.runtime().join(".hidden"), 0o700);
    symlink("/etc", s.runtime().join("link")).unwrap();
    assert_eq!(s.ok("disk list"), "");
    assert_eq!(s.left().len(), 3);
    for name in ["file", ".hidden"] {
        let _ = std::fs::remove_file(s.runtime().join(name));
    }
    std::fs::remove_file(s.runtime().join("link")).unwrap();
}

#[test]
fn a_state_file_of_nonsense_does_not_stop_the_clean_up() {
    for text in ["", "{}", "nonsense", &"[".repeat(100_000), "{\"name\":\"other\"}"] {
        let s = Sandbox::new();
        folder(&s.runtime(), 0o700);
        folder(&s.runtime().join("x"), 0o700);
        std::fs::write(s.runtime().join("x/state.json"), text).unwrap();
        let ran = s.run("disk list");
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

/// Sends bytes to the control socket and returns what comes back until it is closed.
fn answer(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The server may hang up before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn hostile_bytes_on_the_control_socket_are_refused() {
    let s = Sandbox::new();
    s.ok("disk create --door nbd --size 1M --name x");
    let socket = s.runtime().join("x/control.sock");
    let deep = format!("{}\n", "[".repeat(10_000)).into_bytes();
    let bad: [&[u8]; 11] = [
        b"\n",
        b"{}\n",
        b"\xff\xfe\0\n",
        b"{\"ask\":\"format\"}\n",
        b"{\"ask\":\"show\",\"more\":1}\n",
        b"{\"ask\":\"show\"}",
        b"{\"ask\":\"set\",\"changes\":[\"mem_limit\"]}\n",
        b"{\"ask\":\"park\",\"pages\":\"all\"}\n",
        b"{\"ask\":\"park\",\"pages\":{\"ranges\":[]}}\n",
        b"{\"ask\":\"park\",\"pages\":{\"ranges\":[[0,18446744073709551615]]}}\n",
        &deep,
    ];
    for bytes in bad {
        let said = answer(&socket, bytes);
        assert!(said.starts_with("{\"refused\":"), "{said:?} to {bytes:?}");
    }
    let endless = vec![b'x'; 1 << 20];
    let said = answer(&socket, &endless);
    assert!(said.is_empty() || said.contains("more than"), "{said}");
    assert_eq!(answer(&socket, b""), "");
    // Two good ones in one breath are both answered, in order.
    let both =
        answer(&socket, b"{\"ask\":\"get\",\"attribute\":\"size\"}\n{\"ask\":\"get\",\"attribute\":\"x\"}\n");
    let lines: Vec<_> = both.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], "{\"value\":\"1048576\"}");
    assert!(lines[1].contains("refused") && lines[1].contains("usage"));
    s.ok("disk show x");
}

#[test]
fn silent_clients_do_not_shut_others_out_for_good() {
    let s = Sandbox::new();
    s.ok("disk create --door nbd --size 1M --name x");
    let socket = s.runtime().join("x/control.sock");
    let silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // Eight are heard and say nothing, the rest is turned away; commands are told so.
    s.run("disk show x").fails(4, "too many");
    drop(silent);
    common::wait_until("a command is heard again", || s.run("disk show x").code == 0);
}
