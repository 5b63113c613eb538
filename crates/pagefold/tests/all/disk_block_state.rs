//! The states of pages in zram's format, and the size classes of the pool.

use crate::support::writeback::{MIB, PAGE, connect};
use crate::support::{Nbd, Ran, Sandbox, kill, wait_until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

/// Whole seconds since the machine has booted.
fn since_boot_s() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    uptime.split('.').next().unwrap().parse().unwrap()
}

/// A page that no codec compresses.
fn raw_page(seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..PAGE / 8).flat_map(|_| next().to_le_bytes()).collect()
}

/// A page that lz4hc makes no smaller than lz4: each saves the second half, and nothing of the first.
fn mixed_page(seed: u64) -> Vec<u8> {
    let mut page = raw_page(seed);
    page[PAGE / 2..].fill(7);
    page
}

/// A page that lz4hc compresses better than lz4.
fn text_page() -> Vec<u8> {
    let text: String = (0..2000).map(|i| format!("{} pages, ", i * i % 997)).collect();
    text.as_bytes()[..PAGE].to_vec()
}

fn write(client: &mut Nbd, index: u64, page: &[u8]) {
    client.write(index * PAGE as u64, page);
}

/// The lines without their access times, which must lie between `from_s` and now.
fn states(s: &Sandbox, words: &str, from_s: u64) -> Vec<String> {
    let text = s.ok(&format!("disk block-state x {words}"));
    let now_s = since_boot_s();
    let state = |line: &str| {
        assert_eq!(line.len(), 39, "{line:?}");
        let (index, rest) = line.split_at(12);
        let time = rest.strip_prefix(' ').unwrap().split_at(12).0;
        let time_s: u64 = time.trim_start().parse().unwrap();
        // The store's clock has ticks of a quarter of a second, and is advanced a few times a second.
        assert!((from_s.saturating_sub(2)..=now_s).contains(&time_s), "{line:?}: {from_s} to {now_s}");
        let flags = rest.split_at(13).1.strip_prefix(".000000 ").unwrap();
        format!("{index} {flags}")
    };
    text.lines().map(state).collect()
}

#[test]
fn each_state_of_a_page_has_its_flags() {
    let s = Sandbox::new();
    let backing = s.path("backing");
    s.ok(&format!(
        "disk create -q --export nbd --size 64M --name x --recompress-codec lz4hc --backing {}",
        backing.display()
    ));
    assert_eq!(s.ok("disk block-state x"), "");
    let (mut client, from_s) = (connect(&s), since_boot_s());
    write(&mut client, 0, &text_page());
    write(&mut client, 9, &[0xa5; PAGE]);
    write(&mut client, 10, &raw_page(10));
    write(&mut client, 11, &mixed_page(11));
    write(&mut client, 300, &text_page());
    write(&mut client, 301, &raw_page(301));
    write(&mut client, 302, &mixed_page(302));
    let first = ["           0 ......", "           9 s.....", "          10 ..h...", "          11 ......"];
    assert_eq!(states(&s, "", from_s)[..4], first);
    // Compressed again: pages that become smaller, raw ones, and compressed ones that do not become smaller.
    s.ok("disk recompress x");
    let again = [
        "           0 ....r.",
        "           9 s.....",
        "          10 ..h..n",
        "          11 .....n",
        "         300 ....r.",
        "         301 ..h..n",
        "         302 .....n",
    ];
    assert_eq!(states(&s, "", from_s), again);
    // Written back; the others are marked idle, except the same-filled one.
    s.ok("disk writeback x --pages 300-302");
    s.ok("disk set x idle=all");
    write(&mut client, 16_383, &[1; PAGE]);
    let last = [
        "           0 ...ir.",
        "           9 s.....",
        "          10 ..hi.n",
        "          11 ...i.n",
        "         300 .w..r.",
        "         301 .wh...",
        "         302 .w....",
        "       16383 s.....",
    ];
    assert_eq!(states(&s, "", from_s), last);
    // A read ends idleness, and a page that is written again has the flags of its new contents only.
    client.read(0, &mut vec![0; PAGE]);
    write(&mut client, 10, &[3; PAGE]);
    assert_eq!(
        states(&s, "--pages 0-10", from_s),
        ["           0 ....r.", "           9 s.....", "          10 s....."]
    );
    assert_eq!(states(&s, "--pages 16383 --pages 1-8 --pages 301-302", from_s), [last[7], last[5], last[6]]);
    s.run("disk block-state x --pages 16384").fails(2, "page 16384 is outside the disk of 16384 pages");
    s.run("disk block-state x --pages 5-99999999999").fails(2, "ERANGE");
    s.run("disk block-state x --pages 5-4").fails(2, "ends before it starts");
    s.run("disk block-state nosuch").fails(3, "no disk 'nosuch'");
}

/// Creates a disk and writes `mib` MiB of same-filled pages.
fn fill(s: &Sandbox, mib: u64) {
    s.ok("disk create -q --export nbd --size 1G --name x");
    let (mut client, data) = (connect(s), vec![0x41; MIB as usize]);
    (0..mib).for_each(|i| client.write(i * MIB, &data));
}

fn listing(s: &Sandbox) -> Child {
    let mut command = s.command("disk block-state x");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Whether a server has a thread for the connection of a command.
fn serves_a_command(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    threads.map(name).any(|name| name.is_ok_and(|name| name.starts_with("control-client")))
}

/// A reader, such as a pager, that takes longer than the server waits for the next request.
#[test]
fn a_reader_that_pauses_gets_the_whole_list() {
    let s = Sandbox::new();
    fill(&s, 160);
    let pid = s.server_pid("x");
    let mut child = listing(&s);
    let mut out = child.stdout.take().unwrap();
    let mut text = vec![0; 50];
    out.read_exact(&mut text).unwrap();
    wait_until("the server has closed the connection", || !serves_a_command(pid));
    out.read_to_end(&mut text).unwrap();
    drop(out);
    let ran = Ran::new("block-state", child.wait_with_output().unwrap());
    assert!(ran.code == 0 && ran.err.is_empty(), "{ran:?}");
    let text = String::from_utf8(text).unwrap();
    let indices = text.lines().map(|line| line[..12].trim_start().parse::<u64>().unwrap());
    assert!(indices.eq(0..160 * 256), "{} lines", text.lines().count());
}

#[test]
fn a_closed_pipe_and_a_signal_end_the_list_quietly_and_a_removed_disk_with_an_error() {
    if let Some(why) = crate::support::no_interrupts() {
        pagefold_testkit::skipped!(
            "a_closed_pipe_and_a_signal_end_the_list_quietly_and_a_removed_disk_with_an_error: {why}"
        );
        return;
    }
    let s = Sandbox::new();
    fill(&s, 160);
    for end in ["pipe", "INT", "remove"] {
        let mut child = listing(&s);
        let mut out = child.stdout.take().unwrap();
        // The program has begun to print, and cannot go on.
        out.read_exact(&mut [0; 50]).unwrap();
        match end {
            "pipe" => {}
            "INT" => kill(child.id() as i32, "INT"),
            _ => {
                s.ok("disk remove x");
                let _ = out.read_to_end(&mut Vec::new());
            }
        }
        if end != "INT" {
            drop(out);
        }
        let ran = Ran::new(end, child.wait_with_output().unwrap());
        match end {
            "pipe" => assert!(ran.code == 0 && ran.err.is_empty(), "{ran:?}"),
            "INT" => assert!(ran.code == -1 && ran.err.is_empty(), "{ran:?}"),
            _ => ran.fails(3, "disk 'x' is gone"),
        }
    }
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn clients_that_read_no_response_delay_neither_commands_nor_requests() {
    let s = Sandbox::new();
    fill(&s, 160);
    let socket = s.runtime().join("x/control.sock");
    let request = b"{\"ask\":\"block_state\",\"first\":0}\n".repeat(20);
    let silent: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(&request).unwrap();
            stream
        })
        .collect();
    let mut client = connect(&s);
    write(&mut client, 7, &text_page());
    assert_eq!(s.ok("disk block-state x --pages 7").len(), 40);
    let resident = |field: &str| s.show("x")["server"][field].as_u64().unwrap();
    // Each of them occupies one response and its line.
    assert!(resident("rss_bytes") < 128 << 20, "{}", resident("rss_bytes"));
    drop(silent);
    let pid = s.server_pid("x");
    wait_until("the threads of the clients have ended", || !serves_a_command(pid));
}

#[test]
fn the_size_classes_are_those_of_the_stored_objects() {
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --size 64M --name x");
    let before = s.show("x");
    assert_eq!(before.get("classes"), None);
    let classes = |s: &Sandbox| -> serde_json::Value {
        let all: serde_json::Value = serde_json::from_str(&s.ok("disk show x --classes --json")).unwrap();
        assert_eq!((&all["schema_version"], &all["name"]), (&1.into(), &"x".into()));
        all["classes"].clone()
    };
    assert_eq!(classes(&s), serde_json::json!([]));
    let mut client = connect(&s);
    (0..100).for_each(|i| write(&mut client, i, &raw_page(i)));
    (100..110).for_each(|i| write(&mut client, i, &[0x41; PAGE]));
    // 100 raw pages of 4096 bytes with an owner word of 8 bytes need 101 pages of memory: 413 696 bytes.
    let raw = serde_json::json!({ "size_bytes": 4104, "objects": 100, "pages": 101, "unused_bytes": 3296 });
    assert_eq!(classes(&s), serde_json::json!([raw]));
    (0..50).for_each(|i| write(&mut client, 200 + i, &mixed_page(i)));
    let all = classes(&s);
    let sum = |field: &str| all.as_array().unwrap().iter().map(|c| c[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("objects"), 150);
    assert_eq!(sum("pages") * PAGE as u64, s.show("x")["memory"]["pool_bytes"].as_u64().unwrap());
    let text = s.ok("disk show x --classes");
    assert!(text.starts_with("x  64 MiB") && text.contains("\nSize classes\n"), "{text}");
    assert!(text.contains("\n    4104            100            101     3.22 KiB\n"), "{text}");
    assert!(!s.ok("disk show x").contains("Size classes"));
    s.run("disk show x --classes --attribute size").fails(2, "--classes");
}
