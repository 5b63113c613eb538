//! Tests of the NBD server: its listeners, who may connect, its limits, and its stop.

use crate::support::nbd::*;
use pagefold_block::nbd::proto::{cmd, opt, rep};
use pagefold_block::nbd::{Export, Limits, NbdError, Server, UnixSocket, uri};
use pagefold_block::{BlockDevice, RamDevice};
use pagefold_testkit::noise;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn export() -> Export {
    Export::new(NAME, "", Arc::new(RamDevice::new(1 << 20))).unwrap()
}

fn set_mode(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes the test below a child process with its own umask. The value is the folder of the socket.
const UMASK_CHILD: &str = "PAGEFOLD_TEST_UMASK_CHILD";

#[test]
fn a_socket_file_is_private_with_any_umask_and_removed_with_the_server() {
    const TEST: &str = "nbd_server::a_socket_file_is_private_with_any_umask_and_removed_with_the_server";
    if let Some(dir) = std::env::var_os(UMASK_CHILD) {
        return check_socket_file(&std::path::Path::new(&dir).join("s"));
    }
    let dir = tempfile::tempdir().unwrap();
    for mask in ["000", "077", "777"] {
        // The threads of a process share the umask, and the folders of other tests would get it too.
        let mut child = std::process::Command::new("sh");
        child.args(["-c", "umask $0; exec \"$@\"", mask]).arg(std::env::current_exe().unwrap());
        let out = child.args(["--exact", TEST]).env(UMASK_CHILD, dir.path()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("1 passed"), "{mask}: {text}");
    }
}

fn check_socket_file(path: &std::path::Path) {
    let server = Server::new(export(), Limits::default());
    server.serve_unix(UnixSocket::bind(path).unwrap()).unwrap();
    assert_eq!(std::fs::symlink_metadata(path).unwrap().mode() & 0o7777, 0o600);
    assert!(UnixSocket::bind(path).is_err());
    assert!(path.exists(), "a failed bind leaves the file of another");
    server.stop();
    assert!(!path.exists());
    assert!(matches!(server.serve_unix(UnixSocket::bind(path).unwrap()), Err(NbdError::Stopped)));
    assert!(!path.exists());
}

#[test]
fn a_file_that_replaced_the_socket_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = Server::new(export(), Limits::default());
    server.serve_unix(UnixSocket::bind(&path).unwrap()).unwrap();
    // Rename the socket instead of removing it, so that its inode number is not reused.
    std::fs::rename(&path, dir.path().join("old")).unwrap();
    std::fs::write(&path, "mine").unwrap();
    drop(server);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn unsafe_folders_and_long_paths_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for mode in [0o770, 0o707, 0o1777] {
        set_mode(dir.path(), mode);
        let refused = UnixSocket::bind(&dir.path().join("s")).err().unwrap();
        assert!(matches!(refused, NbdError::UnsafeFolder { .. }), "{refused}");
    }
    set_mode(dir.path(), 0o755);
    assert!(UnixSocket::bind(&dir.path().join("s")).is_ok());
    let long = dir.path().join("x".repeat(110));
    assert!(matches!(UnixSocket::bind(&long), Err(NbdError::PathTooLong { .. })));
    assert!(matches!(UnixSocket::bind(&dir.path().join("none/s")), Err(NbdError::Sys(_))));
}

#[test]
fn export_names_that_no_client_could_send_are_refused() {
    let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(1));
    for name in ["", "a\0b", &"x".repeat(4097)] {
        assert!(Export::new(name, "", device.clone()).is_err());
    }
    let long = Export::new("n", "é".repeat(4000), device).unwrap();
    assert_eq!(long.description().len(), 4096);
}

#[test]
fn a_listener_of_the_caller_is_served_and_its_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = Server::new(export(), Limits::default());
    server.serve_unix(UnixListener::bind(&path).unwrap()).unwrap();
    let mut c = Client::new(UnixStream::connect(&path).unwrap());
    c.greet(3);
    c.open(true);
    assert_eq!(c.read(0, 1), [0]);
    drop(server);
    assert!(path.exists());
}

#[test]
fn tcp_without_tls_is_served_on_loopback_only() {
    let server = Server::new(export(), Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    server.serve_tcp(listener, None).unwrap();
    let mut c = Client::new(TcpStream::connect(addr).unwrap());
    c.greet(3);
    c.open(false);
    c.write(0, &noise(1, 500_000));
    assert_eq!(c.read(0, 500_000), noise(1, 500_000));
    let refused = server.serve_tcp(TcpListener::bind("0.0.0.0:0").unwrap(), None);
    assert!(matches!(refused, Err(NbdError::NeedsTls { .. })));
    assert_eq!(uri::tcp(NAME, addr, false), format!("nbd://{addr}/disk"));
}

/// A server with these limits, and the reports of its log.
fn logged(limits: Limits) -> (Arc<Mutex<Vec<String>>>, Served) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = log.clone();
    let server = Server::with_log(export(), limits, move |line| lines.lock().unwrap().push(line.to_string()));
    (log, Served::of(server))
}

#[test]
fn a_client_above_the_limit_is_refused_and_a_disconnect_makes_room() {
    let (log, served) = logged(Limits { max_connections: 3, ..Limits::default() });
    let mut clients: Vec<_> = (0..3).map(|_| served.open(true)).collect();
    assert_eq!(served.server.connections(), 3);
    // The client gets the reason and may retry.
    let mut refused = served.client();
    for _ in 0..2 {
        refused.send_option(opt::GO, &info_data(NAME, &[3]));
        let (kind, why) = refused.option_reply(opt::GO);
        assert_eq!(
            (kind, String::from_utf8(why).unwrap().contains("too many clients")),
            (rep::ERR_POLICY, true)
        );
    }
    // EXPORT_NAME has no error reply, so the server disconnects.
    let mut by_export_name = served.client();
    by_export_name.send_option(opt::EXPORT_NAME, NAME.as_bytes());
    assert!(by_export_name.is_disconnected());
    assert_eq!(served.server.counters().refused_full, 3);
    let reports = log.lock().unwrap().clone();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("3 have the disk open"), "{reports:?}");
    let mut first = clients.remove(0);
    first.send(0, cmd::DISC, 0, 0, b"");
    assert!(first.is_disconnected());
    // The socket closes just before the client is removed from the table.
    while served.server.connections() > 2 {
        std::thread::yield_now();
    }
    assert_eq!(served.open(false).read(0, 1), [0]);
    for mut c in clients {
        assert_eq!(c.read(0, 1), [0]);
    }
}

#[test]
fn silent_clients_do_not_keep_others_from_opening_the_export() {
    let limits = Limits {
        max_connections: 3,
        max_handshakes: 4,
        handshake_time: Duration::from_secs(3600),
        handshake_grace: Duration::from_millis(50),
        ..Limits::default()
    };
    let (log, served) = logged(limits);
    let mut busy = served.open(true);
    // More clients than both limits allow; some of them wait in the listener's queue.
    let silent: Vec<_> = (0..20).map(|_| served.silent_client()).collect();
    let mut late = served.open(true);
    assert_eq!((late.read(0, 1), busy.read(0, 1)), (vec![0], vec![0]));
    assert!(served.server.handshakes() <= 4);
    assert!(served.server.counters().slow_handshakes >= 16, "{:?}", served.server.counters());
    assert_eq!((served.server.counters().failed, served.server.counters().refused_full), (0, 0));
    // One report of many, because further ones of the kind follow a minute later.
    let reports = log.lock().unwrap().clone();
    assert!(reports.len() == 1 && reports[0].contains("as 4 are in their handshake"), "{reports:?}");
    // A server at its limit of handshakes can be stopped while others wait to be accepted.
    let more: Vec<_> = (0..8).map(|_| served.silent_client()).collect();
    served.server.stop();
    drop((silent, more));
}

#[test]
fn at_the_limit_unused_clients_are_disconnected_and_idle_ones_are_not() {
    let (log, served) =
        logged(Limits { max_connections: 2, unused_grace: Duration::ZERO, ..Limits::default() });
    let mut idle = served.open(true);
    assert_eq!(idle.read(0, 1), [0]);
    for round in 1..=3 {
        let mut unused = served.open(true);
        let mut newcomer = served.open(round % 2 == 0);
        assert!(unused.is_disconnected());
        assert_eq!(newcomer.read(0, 1), [0]);
        assert_eq!(served.server.counters().unused, round);
        newcomer.send(0, cmd::DISC, 0, 0, b"");
        assert!(newcomer.is_disconnected());
        while served.server.connections() > 1 {
            std::thread::yield_now();
        }
    }
    assert_eq!(idle.read(0, 1), [0]);
    assert_eq!(served.server.counters().failed, 0);
    let reports = log.lock().unwrap().clone();
    assert!(reports.len() == 1 && reports[0].contains("had sent no request"), "{reports:?}");
}

/// The timer that the kernel runs for an established connection from `port`, by its number in `/proc/net/tcp`.
fn tcp_timer(port: u16) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut established =
        rows.filter(|row| row.len() > 5 && row[1].ends_with(&format!(":{port:04X}")) && row[3] == "01");
    established.next().and_then(|row| row[5].split(':').next().map(str::to_string))
}

#[test]
fn tcp_connections_have_keepalive() {
    let server = Server::new(export(), Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    server.serve_tcp(listener, None).unwrap();
    let mut c = Client::new(TcpStream::connect(addr).unwrap());
    c.greet(3);
    c.open(true);
    assert_eq!(c.read(0, 1), [0]);
    // Timer 01 is retransmission, until the last reply is acknowledged; 02 is keep-alive; 00 is none.
    loop {
        match tcp_timer(addr.port()).as_deref() {
            Some("01") => std::thread::yield_now(),
            Some(timer) => break assert_eq!(timer, "02"),
            None => {
                break pagefold_testkit::skipped!("tcp_connections_have_keepalive: no /proc/net/tcp");
            }
        }
    }
}

#[test]
fn a_client_in_its_handshake_does_not_count_as_using_the_export() {
    let served = Served::ram();
    let _handshaking = served.client();
    let open = served.open(false);
    assert_eq!(served.server.connections(), 1);
    drop(open);
    while served.server.connections() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn stop_ends_busy_clients_and_drops_the_device() {
    let device = Arc::new(RamDevice::new(32 << 20));
    let served = Served::new(device.clone());
    let _idle = served.open(true);
    let _silent = served.silent_client();
    let mut stuck = served.open(true);
    for _ in 0..100 {
        stuck.send(0, cmd::READ, 0, 32 << 20, b"");
    }
    let busy: Vec<_> = (0..3)
        .map(|i| {
            let mut stream = served.open(false).stream;
            let mut reader = stream.try_clone().unwrap();
            std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            std::thread::spawn(move || {
                let mut bytes = request_bytes(0, cmd::WRITE, 1, i * 4096, 4096);
                bytes.extend_from_slice(&[7; 4096]);
                while std::io::Write::write_all(&mut stream, &bytes).is_ok() {}
            })
        })
        .collect();
    let mut probe = [0];
    while probe != [7] {
        device.read_at(2 * 4096, &mut probe).unwrap();
    }
    served.server.stop();
    busy.into_iter().for_each(|b| b.join().unwrap());
    assert_eq!(served.server.connections(), 0);
    let path = served.path.clone();
    assert!(UnixStream::connect(&path).is_err());
    drop(served);
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn a_client_of_another_user_is_refused() {
    let name = "a_client_of_another_user_is_refused";
    if !rustix::process::geteuid().is_root() {
        return pagefold_testkit::skipped!("{name}: needs root to become another user");
    }
    if !have("setpriv", name) || !have("nbdinfo", name) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let path = dir.path().join("s");
    let server = Server::new(export(), Limits::default());
    let listener = UnixListener::bind(&path).unwrap();
    set_mode(&path, 0o777);
    server.serve_unix(listener).unwrap();
    let uri = uri::unix(NAME, &path);
    run("nbdinfo", &[&uri]);
    let other = output("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups", "nbdinfo", &uri]);
    assert!(!other.status.success());
    assert_eq!(server.counters().refused_peer, 1);
}
