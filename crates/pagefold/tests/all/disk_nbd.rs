//! Disks with the NBD export, which need no privileges and no tools.

use crate::support::{Nbd, Ran, Sandbox, is_root, is_running, kill, no_loop, wait_until};
use std::os::unix::fs::PermissionsExt;

fn create(sandbox: &Sandbox, words: &str) -> String {
    sandbox.ok(&format!("disk create --export nbd {words}"))
}

#[test]
fn a_disk_is_created_used_shown_changed_and_removed() {
    let s = Sandbox::new();
    let out = create(&s, "--size 64M --name one --memory 16M");
    let socket = s.runtime().join("one/nbd.sock");
    assert_eq!(out, format!("nbd+unix:///one?socket={}\n", socket.display()));

    let mut client = Nbd::connect(&socket);
    client.write(4096, &[7; 8192]);
    client.write(65536, b"hello ");
    let mut back = [0; 6];
    client.read(65536, &mut back);
    assert_eq!(&back, b"hello ");

    let shown = s.show("one");
    assert_eq!(shown["size_bytes"], 64 << 20);
    assert_eq!(shown["export"], "nbd");
    assert_eq!(shown["volatile"], true);
    assert_eq!(shown["codec"]["name"], "lz4");
    assert_eq!(shown["memory"]["limit_bytes"], 16 << 20);
    assert_eq!(shown["original_bytes"], 3 * 4096);
    assert_eq!((&shown["pages"]["same_filled"], &shown["pages"]["compressed"]), (&2.into(), &1.into()));
    assert_eq!(shown["io"]["write"]["requests"], 2);
    assert_eq!(shown["io"]["write"]["bytes"], 8198);
    assert_eq!(shown["io"]["read"]["latency"]["buckets"][0]["requests"], 1);
    assert_eq!(shown["io"]["read"]["reply_latency"]["buckets"][0]["requests"], 1);
    assert!(shown["server"]["rss_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(shown["used_by"][0], "1 NBD client");
    let text = s.ok("disk show one");
    for word in
        ["volatile", "one  64 MiB", "Latency of writes", "same-filled", "server RSS", "write replies", "#"]
    {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'));

    s.ok("disk set one mem_limit=1M same_filled_pages_enabled=0 latency=0 compact=1 mem_used_max=0");
    assert_eq!(s.ok("disk show one --attribute mem_limit"), "1048576\n");
    assert_eq!(s.show("one")["attributes"]["same_filled_pages_enabled"], "0");
    assert!(s.show("one")["io"]["write"]["latency"]["max_ns"].is_null());

    s.run("disk remove one").fails(4, "1 NBD client");
    assert!(s.ok("disk list").contains("one"));
    let pid = s.server_pid("one");
    s.ok("disk remove one --force");
    assert!(!is_running(pid));
    assert_eq!(s.left(), Vec::<String>::new());
    s.run("disk remove one").fails(3, "no disk 'one'");
}

#[test]
fn refused_clients_are_logged_and_counted() {
    let s = Sandbox::new();
    create(&s, "--size 1M --name x");
    let socket = s.runtime().join("x/nbd.sock");
    let most = s.show("x")["clients"]["most_open"].as_u64().unwrap();
    let mut clients: Vec<_> = (0..most).map(|_| Nbd::connect(&socket)).collect();
    clients.iter_mut().for_each(|c| c.read(0, &mut [0]));
    assert!(!Nbd::is_served(&socket));
    let shown = s.show("x")["clients"].clone();
    assert_eq!((&shown["open"], &shown["refused_full"]), (&most.into(), &1.into()), "{shown}");
    let text = s.ok("disk show x");
    assert!(text.contains(&format!("{most} of at most {most}; 1 refused: too many clients")), "{text}");
    let log = std::fs::read_to_string(s.runtime().join("x/log")).unwrap();
    assert!(log.contains("refused an NBD client: "), "{log}");
    drop(clients);
    crate::support::wait_until("a client is served again", || Nbd::is_served(&socket));
}

#[test]
fn disks_without_a_name_are_numbered_and_names_are_unique() {
    let s = Sandbox::new();
    for n in 0..2 {
        assert!(create(&s, "--size 1M").contains(&format!("nbd+unix:///disk{n}?")));
    }
    s.run("disk create --export nbd --size 1M --name disk1").fails(4, "already");
    s.ok("disk remove disk1");
    // No other disk gets the name of a removed one, unless a user chooses it.
    create(&s, "--size 1M --codec zstd --level 3");
    let list: serde_json::Value = serde_json::from_str(&s.ok("disk list --json")).unwrap();
    let names: Vec<_> = list["disks"].as_array().unwrap().iter().map(|d| d["name"].clone()).collect();
    assert_eq!(names, ["disk0", "disk2"]);
    assert_eq!(
        list["disks"][1]["codec"],
        serde_json::json!({"name": "zstd", "level": 3, "dictionary_bytes": 0})
    );
    assert_eq!(s.ok("disk list").lines().count(), 3);
}

#[test]
fn wrong_arguments_change_nothing_and_the_error_says_what_is_right() {
    let s = Sandbox::new();
    for (words, code, says) in [
        ("disk create --size 4X", 2, "such as 4G"),
        ("disk create --size 0", 2, "--size"),
        ("disk create", 2, "--size"),
        ("disk create --size 1M --name .x", 2, "not a valid disk name"),
        ("disk create --size 1M --name a/b", 2, "not a valid disk name"),
        ("disk create --size 1M --codec nosuch", 2, "lz4, lz4hc"),
        ("disk create --size 1M --codec zstd --level 99", 2, "levels are"),
        ("disk create --size 1M --memory lots", 2, "--memory"),
        ("disk create --size 1M --listen 0.0.0.0:1", 2, "--tls-cert"),
        ("disk create --size 1M --listen nowhere", 2, "--listen"),
        ("disk create --size 1M --export sea", 2, "loop"),
        ("disk show nosuch", 3, "no disk 'nosuch'"),
        ("disk show nosuch --json", 3, "disk list"),
        ("disk set nosuch mem_limit=1M", 3, "no disk"),
        ("disk set nosuch mem_limit", 2, "ATTRIBUTE=VALUE"),
        ("disk set nosuch colour=1", 2, "mem_limit"),
        ("disk set nosuch size=1", 2, "cannot be set"),
        ("disk remove nosuch", 3, "no disk"),
        ("disk remove ..", 2, "not a valid disk name"),
        ("dance", 2, "dance"),
        ("serve", 2, "disk create"),
    ] {
        s.run(words).fails(code, says);
    }
    assert_eq!(s.ok("disk list"), "");
    assert!(!s.runtime().exists());
}

#[test]
fn the_next_command_cleans_up_after_a_killed_server() {
    for command in
        ["disk list", "disk remove x", "disk create --export nbd --size 1M --name x", "disk show x"]
    {
        let s = Sandbox::new();
        create(&s, "--size 1M --name x");
        s.kill_disk("x");
        let ran = s.run(command);
        assert!(ran.err.contains("has died and its contents are lost; cleaned up"), "{ran:?}");
        assert_eq!(ran.code, if command.contains("show") { 3 } else { 0 }, "{ran:?}");
        let left = if command.contains("create") { vec!["x"] } else { vec![] };
        assert_eq!(s.left(), left, "{command}");
    }
}

#[test]
fn a_server_that_receives_sigterm_leaves_nothing() {
    let s = Sandbox::new();
    create(&s, "--size 1M --name x");
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has exited", || !is_running(pid));
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_stopped_server_is_said_to_be_stopped_and_ends_with_remove_force() {
    let loop_device = no_loop().is_none().then_some("loop");
    for export in std::iter::once("nbd").chain(loop_device) {
        let s = Sandbox::new();
        s.ok(&format!("disk create -q --export {export} --size 1M --name x"));
        let pid = s.server_pid("x");
        kill(pid, "STOP");
        // The signal reaches the threads one after the other.
        let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).unwrap();
        wait_until("all threads are stopped", || {
            let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            tasks.all(|task| status(task.unwrap()).contains("State:\tT"))
        });
        let says = format!("(process {pid}) is stopped");
        let list = s.run("disk list");
        assert!(list.err.contains(&says) && list.err.contains("'kill -CONT"), "{list:?}");
        assert!(list.out.contains("1 MiB") && list.out.contains("does not respond"), "{list:?}");
        kill(pid, "CONT");
        // One that is continued soon answers.
        kill(pid, "STOP");
        let mut show = s.quietly("disk show x").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        kill(pid, "CONT");
        assert!(show.wait().unwrap().success());
        kill(pid, "STOP");
        s.ok("disk remove x --force");
        assert!(!is_running(pid));
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

#[test]
fn a_disk_in_the_foreground_ends_with_its_command() {
    for (signal, code) in [("INT", Some(0)), ("TERM", Some(0)), ("KILL", None)] {
        let s = Sandbox::new();
        let mut child =
            s.quietly("disk create --export nbd --size 1M --name fg --foreground").spawn().unwrap();
        wait_until("the disk exists", || s.run("disk show fg").code == 0);
        let server = s.server_pid("fg");
        kill(child.id() as i32, signal);
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        wait_until("the server has exited", || !is_running(server));
        assert_eq!(s.left(), Vec::<String>::new(), "{signal}");
    }
}

#[test]
fn an_interrupted_create_leaves_nothing() {
    // Signals after different delays interrupt different steps.
    for (signal, step_us) in [("INT", 700), ("KILL", 900)] {
        for moment in 0..25u64 {
            let s = Sandbox::new();
            let mut child = s.quietly("disk create --export nbd --size 1M --name x -q").spawn().unwrap();
            // A sleep, because the delay itself is the parameter of the test.
            std::thread::sleep(std::time::Duration::from_micros(moment * step_us));
            kill(child.id() as i32, signal);
            let status = child.wait().unwrap();
            if status.success() {
                continue;
            }
            let is_clean = || match signal {
                "INT" => s.left().is_empty(),
                // If it was killed before it started the server, the next command cleans up. If it was killed after
                // it confirmed the start and before it exited, the disk is whole.
                _ => {
                    s.run("disk list").out.is_empty() && s.left().is_empty()
                        || s.run("disk remove x").code == 0
                }
            };
            wait_until("nothing is left", is_clean);
            assert_eq!(s.left(), [""; 0]);
        }
    }
}

#[test]
fn files_are_private_and_the_server_has_no_privileges() {
    let s = Sandbox::new();
    create(&s, "--size 1M --name x");
    let mode = |p: std::path::PathBuf| std::fs::metadata(p).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(s.runtime()), 0o700);
    assert_eq!(mode(s.runtime().join("x")), 0o700);
    for file in ["lock", "state.json", "log", "control.sock", "nbd.sock"] {
        assert_eq!(mode(s.runtime().join("x").join(file)), 0o600, "{file}");
    }
    let pid = s.server_pid("x");
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
            assert!(status.contains(line), "{line} is not in\n{status}");
        }
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|l| l.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"]);
    // A process that is not dumpable has files in /proc that belong to root.
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).ok(), is_root().then(|| "/".into()));
}

#[test]
fn the_server_inherits_no_descriptors_of_the_command() {
    let s = Sandbox::new();
    let (reader, writer) = std::io::pipe().unwrap();
    // The shell leaves descriptor 9 open to what it runs.
    let script = "exec 9<&0; exec \"$0\" disk create --export nbd --size 1M --name x -q";
    let status = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_pagefold")])
        .env("PAGEFOLD_RUNTIME_DIR", s.runtime())
        .stdin(reader)
        .status()
        .unwrap();
    assert!(status.success());
    // The command has exited, so the pipe has no reader unless the server inherited it. A process that another test has
    // just forked has one, too, until it runs its program.
    use std::io::Write;
    wait_until("the pipe has no reader", || (&writer).write(b"x").is_err());
    assert_eq!((&writer).write(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn a_user_without_privileges_gets_nbd_and_a_note_with_the_reason() {
    if !is_root() {
        pagefold_testkit::skipped!(
            "a_user_without_privileges_gets_nbd_and_a_note_with_the_reason: needs root to become another user"
        );
        return;
    }
    let s = Sandbox::for_user(65534);
    let ran = s.run("disk create --size 1M --name x");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.starts_with("nbd+unix:"), "{ran:?}");
    assert!(ran.err.contains("using the NBD export") && ran.err.contains("root"), "{ran:?}");
    assert!(ran.err.contains("volatile"), "{ran:?}");
    s.run("disk create --size 1M --export loop").fails(5, "root");
    assert_eq!(s.left(), ["x"]);
    assert_eq!(s.ok("disk show x -a size"), "1048576\n");
    s.ok("disk remove x");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_uri_of_tcp_on_loopback_contains_the_port() {
    let s = Sandbox::new();
    let uri = s.ok("disk create --size 1M --name t --listen 127.0.0.1:0");
    let port: u16 =
        uri.trim().strip_prefix("nbd://127.0.0.1:").unwrap().strip_suffix("/t").unwrap().parse().unwrap();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let taken = s.run(&format!("disk create --size 1M --name u --listen 127.0.0.1:{port}"));
    taken.fails(1, "listening on");
    assert_eq!(s.left(), ["t"]);
}

#[test]
fn a_closed_pipe_is_success() {
    let s = Sandbox::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = s.command("man").stdout(writer).output().unwrap();
    let ran = Ran::new("man", output);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}
