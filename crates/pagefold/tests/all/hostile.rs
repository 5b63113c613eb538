//! Runtime folders that attackers may have prepared, and clients that break the protocol of the control socket.

use crate::support::{Sandbox, is_root};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

fn assert_refused(s: &Sandbox, says: &str) {
    for words in ["disk create --export nbd --size 1M", "disk list", "disk show x", "disk remove x"] {
        s.run(words).fails(5, says);
    }
}

fn create_folder(path: &Path, mode: u32) {
    std::fs::create_dir(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_runtime_folder_that_is_a_symbolic_link_is_refused() {
    let s = Sandbox::new();
    create_folder(&s.path("elsewhere"), 0o700);
    symlink(s.path("elsewhere"), s.runtime()).unwrap();
    assert_refused(&s, "symbolic link");
    assert_eq!(std::fs::read_dir(s.path("elsewhere")).unwrap().count(), 0);
}

#[test]
fn a_runtime_folder_that_others_can_enter_is_refused() {
    for mode in [0o755, 0o770, 0o777, 0o1777, 0o701] {
        let s = Sandbox::new();
        create_folder(&s.runtime(), mode);
        assert_refused(&s, "chmod 700");
    }
}

#[test]
fn a_runtime_folder_of_another_user_is_refused() {
    if !is_root() {
        pagefold_testkit::skipped!(
            "a_runtime_folder_of_another_user_is_refused: needs root to change the owner of a folder"
        );
        return;
    }
    let s = Sandbox::new();
    create_folder(&s.runtime(), 0o700);
    std::os::unix::fs::chown(s.runtime(), Some(65534), None).unwrap();
    assert_refused(&s, "belongs to user 65534");
}

#[test]
fn a_runtime_folder_below_a_shared_folder_is_refused() {
    let s = Sandbox::new();
    std::fs::set_permissions(s.path(""), std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert_refused(&s, "writable by other users");
}

#[test]
fn nothing_is_unmounted_while_the_runtime_folder_is_refused() {
    if !is_root() {
        pagefold_testkit::skipped!("nothing_is_unmounted_while_the_runtime_folder_is_refused: needs root");
        return;
    }
    let s = Sandbox::new();
    let (tree, image, at) = (s.path("tree"), s.path("x.erofs"), s.path("mounted"));
    create_folder(&tree, 0o755);
    create_folder(&at, 0o755);
    std::fs::write(tree.join("file"), "contents").unwrap();
    s.ok(&format!("image build {} {}", tree.display(), image.display()));
    s.ok(&format!("image mount {} {}", image.display(), at.display()));
    let set_mode = |mode| {
        std::fs::set_permissions(s.path(""), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(0o777);
    for force in ["", "--force"] {
        let ran = s.run(&format!("image unmount {force} {}", at.display()));
        ran.fails(5, "is refused");
        assert_eq!(std::fs::read_to_string(at.join("file")).unwrap(), "contents", "{force}");
    }
    set_mode(0o755);
    s.ok(&format!("image unmount {}", at.display()));
}

/// A sandbox of a user other than root, who always has /run/pagefold.
fn ordinary_user() -> Sandbox {
    if is_root() { Sandbox::for_user(65534) } else { Sandbox::new() }
}

/// A command of a user without a login session, as with `su`, in a container or from cron.
fn without_session(s: &Sandbox, words: &str, home: &Path) -> crate::support::Ran {
    let mut command = s.command(words);
    command.env_remove("PAGEFOLD_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR").env("HOME", home);
    crate::support::Ran::new(words, command.output().unwrap())
}

/// Whether the folder of a login session of this user exists. Then the test is skipped.
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
fn without_a_runtime_folder_the_error_lists_the_remedies() {
    if has_session("without_a_runtime_folder_the_error_lists_the_remedies") {
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
fn without_a_login_session_the_runtime_folder_is_in_the_home_folder() {
    if has_session("without_a_login_session_the_runtime_folder_is_in_the_home_folder") {
        return;
    }
    let s = ordinary_user();
    let home = s.path("home");
    create_folder(&home, 0o755);
    if is_root() {
        std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    }
    without_session(&s, "disk list", &home);
    let before = std::fs::read_dir(&home).unwrap().count();
    let ran = ["disk create --size 1M --name x", "disk list", "disk remove x", "disk list"]
        .map(|words| without_session(&s, words, &home));
    assert!(ran.iter().all(|ran| ran.code == 0), "{ran:?}");
    assert_eq!(before, 0, "disk list creates nothing");
    let runtime = home.join(".local/state/pagefold");
    assert!(ran[0].out.contains(runtime.to_str().unwrap()), "{:?}", ran[0]);
    assert!(ran[1].out.contains('x') && !ran[3].out.contains('x'), "{ran:?}");
    assert_eq!(std::fs::metadata(runtime).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn other_files_in_the_runtime_folder_are_not_touched() {
    let s = Sandbox::new();
    create_folder(&s.runtime(), 0o700);
    std::fs::write(s.runtime().join("file"), "x").unwrap();
    create_folder(&s.runtime().join(".hidden"), 0o700);
    symlink("/etc", s.runtime().join("link")).unwrap();
    assert_eq!(s.ok("disk list"), "");
    assert_eq!(s.left().len(), 3);
    for name in ["file", ".hidden"] {
        let _ = std::fs::remove_file(s.runtime().join(name));
    }
    std::fs::remove_file(s.runtime().join("link")).unwrap();
}

#[test]
fn clean_up_works_with_a_damaged_state_file() {
    for text in ["", "{}", "nonsense", &"[".repeat(100_000), "{\"name\":\"other\"}"] {
        let s = Sandbox::new();
        create_folder(&s.runtime(), 0o700);
        create_folder(&s.runtime().join("x"), 0o700);
        std::fs::write(s.runtime().join("x/state.json"), text).unwrap();
        let ran = s.run("disk list");
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

/// Sends bytes to the control socket, and returns all responses until the server closes it.
fn responses(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn hostile_bytes_on_the_control_socket_are_refused() {
    let s = Sandbox::new();
    s.ok("disk create --export nbd --size 1M --name x");
    let socket = s.runtime().join("x/control.sock");
    let deep = format!("{}\n", "[".repeat(10_000)).into_bytes();
    let bad: [&[u8]; 14] = [
        b"\n",
        b"{}\n",
        b"\xff\xfe\0\n",
        b"{\"ask\":\"format\"}\n",
        b"{\"ask\":\"show\",\"more\":1}\n",
        b"{\"ask\":\"show\"}",
        b"{\"ask\":\"set\",\"changes\":[\"mem_limit\"]}\n",
        b"{\"ask\":\"writeback\",\"pages\":\"all\"}\n",
        b"{\"ask\":\"writeback\",\"pages\":{\"ranges\":[]}}\n",
        b"{\"ask\":\"writeback\",\"pages\":{\"ranges\":[[0,18446744073709551615]]}}\n",
        b"{\"ask\":\"block_state\"}\n",
        b"{\"ask\":\"block_state\",\"first\":256,\"last\":null}\n",
        b"{\"ask\":\"block_state\",\"first\":9,\"last\":8}\n",
        &deep,
    ];
    for bytes in bad {
        let response = responses(&socket, bytes);
        assert!(response.starts_with("{\"refused\":"), "{response:?} to {bytes:?}");
    }
    let endless = vec![b'x'; 1 << 20];
    let response = responses(&socket, &endless);
    assert!(response.is_empty() || response.contains("more than"), "{response}");
    assert_eq!(responses(&socket, b""), "");
    // Two valid requests in one write get two responses, in order.
    let both = responses(
        &socket,
        b"{\"ask\":\"get\",\"attribute\":\"size\"}\n{\"ask\":\"get\",\"attribute\":\"x\"}\n",
    );
    let lines: Vec<_> = both.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], "{\"value\":\"1048576\"}");
    assert!(lines[1].contains("refused") && lines[1].contains("usage"));
    s.ok("disk show x");
}

#[test]
fn commands_work_again_after_silent_clients_occupied_all_slots() {
    let s = Sandbox::new();
    s.ok("disk create --export nbd --size 1M --name x");
    let socket = s.runtime().join("x/control.sock");
    let silent: Vec<_> = (0..80).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // 64 clients are served, though they send nothing; others get an error, commands too.
    s.run("disk show x").fails(4, "too many");
    drop(silent);
    crate::support::wait_until("a command is served again", || s.run("disk show x").code == 0);
}
