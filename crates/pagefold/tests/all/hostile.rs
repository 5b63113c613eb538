//! Runtime folders prepared by others, and peers that do not play by the rules.

use crate::support::{Sandbox, is_root};
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

/// A sandbox of a user who is not root, as root always has /run/pagefold.
fn ordinary_user() -> Sandbox {
    if is_root() { Sandbox::for_user(65534) } else { Sandbox::new() }
}

/// A command of a user without a login session, as with `su`, in a container or from cron.
fn without_session(s: &Sandbox, words: &str, home: &Path) -> crate::support::Ran {
    let mut command = s.command(words);
    command.env_remove("PAGEFOLD_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR").env("HOME", home);
    crate::support::Ran::new(words, command.output().unwrap())
}

/// Whether this user's session is there even if no variable says so.
fn has_session(test: &str) -> bool {
    let session = Path::new("/run/user").join(effective_uid().to_string());
    let has = session.exists() && !is_root();
    if has {
        pagefold_testkit::skipped!("{test}: needs a user without a login session; {session:?} exists");
    }
    has
}

fn effective_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap())
}

#[test]
fn without_a_place_for_it_there_is_a_clear_error() {
    if has_session("without_a_place_for_it_there_is_a_clear_error") {
        return;
    }
    let s = ordinary_user();
    for words in ["disk list", "disk create --size 1M", "image mount /etc/passwd /tmp"] {
        let ran = without_session(&s, words, Path::new("/nonexistent"));
        for says in ["XDG_RUNTIME_DIR", "PAGEFOLD_RUNTIME_DIR", "HOME", "private folder"] {
            ran.fails(5, says);
        }
    }
}

#[test]
fn without_a_login_session_the_home_folder_serves() {
    if has_session("without_a_login_session_the_home_folder_serves") {
        return;
    }
    let s = ordinary_user();
    let home = s.path("home");
    folder(&home, 0o755);
    if is_root() {
        std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    }
    without_session(&s, "disk list", &home);
    let before = std::fs::read_dir(&home).unwrap().count();
    let ran = ["disk create --size 1M --name x", "disk list", "disk remove x", "disk list"]
        .map(|words| without_session(&s, words, &home));
    assert!(ran.iter().all(|ran| ran.code == 0), "{ran:?}");
    assert_eq!(before, 0, "a command that only looks makes nothing");
    let kept = home.join(".local/state/pagefold");
    assert!(ran[0].out.contains(kept.to_str().unwrap()), "{:?}", ran[0]);
    assert!(ran[1].out.contains('x') && !ran[3].out.contains('x'), "{ran:?}");
    assert_eq!(std::fs::metadata(kept).unwrap().permissions().mode() & 0o777, 0o700);
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
    let silent: Vec<_> = (0..80).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // 64 are heard and say nothing, the rest is turned away; commands are told so.
    s.run("disk show x").fails(4, "too many");
    drop(silent);
    crate::support::wait_until("a command is heard again", || s.run("disk show x").code == 0);
}
