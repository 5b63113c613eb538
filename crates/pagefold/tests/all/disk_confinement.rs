//! Confinement of the servers of disks: their rights in each phase of a disk's life, and pages that make a decoder with a
//! planted hole do what an attacker wishes.

use crate::confinement::{Wishes, planted, unmount_point};
use crate::support::{Nbd, Sandbox, is_root, kill, no_loop, wait_until};
use pagefold_testkit::skipped;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PAGE: usize = 4096;
const BUSY: i32 = 4;

/// A field of a status file in `/proc`.
fn field(status: &str, name: &str) -> Vec<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let radix = if name.starts_with("Cap") { 16 } else { 10 };
    line.unwrap().split_whitespace().map(|word| u64::from_str_radix(word, radix).unwrap()).collect()
}

/// Expects that no thread of the server of `x` has a right, and that the report says so.
fn assert_confined(s: &Sandbox, when: &str) {
    let shown = s.show("x");
    let confinement = &shown["confinement"];
    let all = ["files", "system_calls"].iter().all(|part| confinement[part] == true);
    assert!(all, "{when}: {confinement}");
    let user = confinement["user"].as_u64().unwrap();
    let threads = format!("/proc/{}/task", s.server_pid("x"));
    let mut count = 0;
    for thread in fs::read_dir(threads).unwrap() {
        let thread = thread.unwrap().path();
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(thread.join("status")) else { continue };
        assert!(user != 0 && field(&status, "Uid") == [user; 4], "{when}: {status}");
        assert_eq!(field(&status, "Gid"), [user; 4], "{when}");
        assert_eq!(field(&status, "Groups"), [0; 0], "{when}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(field(&status, set), [0], "{when}: {set}: {status}");
        }
        assert_eq!((field(&status, "NoNewPrivs"), field(&status, "Seccomp")), (vec![1], vec![2]), "{when}");
        count += 1;
    }
    assert!(count > 1, "{when}");
}

/// The size in the state file, which the broker writes.
fn recorded_size(s: &Sandbox) -> Option<u64> {
    let text = fs::read(s.runtime().join("x/state.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).unwrap()["size_bytes"].as_u64()
}

fn kill_server(s: &Sandbox) {
    let former = s.server_pid("x");
    kill(former, "KILL");
    wait_until("another server serves", || {
        let ran = s.run("disk show x --json");
        ran.code == 0 && !ran.out.contains(&format!("\"pid\": {former},"))
    });
}

#[test]
fn the_server_of_a_disk_of_root_has_no_rights_from_beginning_to_end() {
    let test = "the_server_of_a_disk_of_root_has_no_rights_from_beginning_to_end";
    if let Some(why) = no_loop() {
        return skipped!("{test}: {why}");
    }
    for words in
        ["--export nbd", "--export loop", "--export nbd --backing FILE", "--export loop --backing FILE"]
    {
        let s = Sandbox::new();
        let file = format!("{} --backing-size 16M", s.path("backing").display());
        s.ok(&format!("disk create -q --size 16M --name x {}", words.replace("FILE", &file)));
        assert_confined(&s, words);
        let is_kept = s.show("x")["keeper"]["without_keeper"].is_null();
        if is_kept {
            s.ok("disk restart x");
            assert_confined(&s, &format!("{words}, after a restart"));
            kill_server(&s);
            assert_confined(&s, &format!("{words}, after a kill"));
        }
        s.ok("disk set x reset=1");
        assert_confined(&s, &format!("{words}, without a size"));
        s.ok("disk set x disksize=32M");
        assert_confined(&s, &format!("{words}, with another size"));
        assert_eq!((s.show("x")["size_bytes"].as_u64(), recorded_size(&s)), (Some(32 << 20), Some(32 << 20)));
        if words.contains("loop") {
            let device = s.show("x")["device"].as_str().unwrap().to_string();
            let claim = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&device).unwrap();
            s.run("disk set x reset=1").fails(BUSY, "in use");
            drop(claim);
            wait_until("it can be reset", || s.run("disk set x reset=1").code == 0);
            s.ok("disk set x disksize=8M");
        }
        s.ok("disk remove x");
        assert_eq!(s.left(), [""; 0], "{words}");
    }
}

/// A backing and a dictionary that only root may read: the command opens them.
#[test]
fn files_that_changes_name_are_opened_by_the_command() {
    let test = "files_that_changes_name_are_opened_by_the_command";
    if let Some(why) = no_loop() {
        return skipped!("{test}: {why}");
    }
    let s = Sandbox::new();
    let [backing, dictionary] = ["backing", "dictionary"].map(|name| s.path(name));
    File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    fs::write(&dictionary, "some words that pages have").unwrap();
    s.ok("disk create -q --size 16M --name x --export loop");
    s.ok("disk set x reset=1");
    let params = format!("dict={}", dictionary.display());
    let changes = [
        "comp_algorithm=zstd".to_string(),
        format!("algorithm_params={params}"),
        format!("backing_dev={}", backing.display()),
        "disksize=16M".to_string(),
    ];
    let set = |changes: &[String]| {
        let output = s.command("disk set x").args(changes).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let missing = format!("backing_dev={}", s.path("missing").display());
    let (code, says) = set(&[missing]);
    assert!(code != Some(0) && says.contains("does not exist"), "{says}");
    assert_eq!(set(&changes), (Some(0), String::new()));
    let shown = s.show("x");
    assert_eq!(shown["codec"]["dictionary_bytes"], 26);
    assert_eq!(s.ok("disk show x --attribute backing_dev").trim_end(), backing.display().to_string());
    assert_confined(&s, "with a backing and a dictionary");
    if shown["keeper"]["without_keeper"].is_null() {
        kill_server(&s);
        assert_eq!(s.show("x")["codec"]["dictionary_bytes"], 26);
        assert_confined(&s, "with a backing and a dictionary, after a kill");
    }
    s.ok("disk remove x");
}

/// A page that wishes.
fn page_with(wish: &str) -> Vec<u8> {
    let mut page = planted(wish);
    page.resize(PAGE, b'.');
    page
}

fn answer_in(page: &[u8]) -> String {
    String::from_utf8_lossy(page).lines().next().unwrap_or_default().to_string()
}

/// Reads the first page of the loop device by another process: this one would wait for a server that dies.
fn reader_of(device: &str) -> Child {
    let mut dd = Command::new("dd");
    dd.args([&format!("if={device}"), "bs=4096", "count=1", "iflag=direct", "status=none"]);
    dd.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn log_of(s: &Sandbox) -> String {
    fs::read_to_string(s.runtime().join("x/log")).unwrap_or_default()
}

fn is_deadly(wish: &str) -> bool {
    ["signal", "tcp", "unix", "mount"].iter().any(|verb| wish.starts_with(verb))
}

#[test]
fn a_hole_in_a_decoder_of_pages_gives_an_nbd_client_nothing() {
    let test = "a_hole_in_a_decoder_of_pages_gives_an_nbd_client_nothing";
    if !is_root() {
        return skipped!("{test}: needs root");
    }
    let s = Sandbox::new();
    let wishes = Wishes::new(&s);
    let create = "disk create -q --size 16M --name x --export nbd";
    let socket = s.runtime().join("x/nbd.sock");
    let ask = |wish: &str| {
        let mut client = Nbd::connect(&socket);
        client.write(0, &page_with(wish));
        let mut page = vec![0; PAGE];
        client.try_read(0, &mut page).map(|()| answer_in(&page))
    };
    // Without the wall, root's wishes are granted: the hole is one.
    let output = s.command(create).env("PAGEFOLD_CONFINEMENT", "off").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let missing = s.show("x")["confinement"]["missing"][0].to_string();
    assert!(missing.contains("PAGEFOLD_CONFINEMENT=off"), "{missing}");
    for wish in &wishes.list {
        // Capabilities are gone even so: it cannot mount, nor trace a process that has some.
        let needs_capability = wish.starts_with("mount") || wish.starts_with("trace");
        let answer = ask(wish).unwrap();
        assert!(answer == "granted" || needs_capability, "{wish}: {answer}");
    }
    s.ok("disk remove x --force");
    unmount_point(&s);
    let _ = fs::remove_file(s.path("new"));

    for wish in &wishes.list {
        s.ok(create);
        if is_deadly(wish) {
            assert!(ask(wish).is_err(), "{wish}");
            wait_until("the death is logged", || log_of(&s).contains("signal 31"));
            wait_until("another server serves", || s.run("disk show x").code == 0);
            Nbd::connect(&socket).write(0, &[7; PAGE]);
        } else {
            let answer = ask(wish).unwrap();
            assert!(answer.starts_with("refused"), "{wish}: {answer}");
        }
        s.ok("disk remove x --force");
    }
    assert!(!s.path("new").exists());
}

#[test]
fn a_hole_in_a_decoder_of_pages_gives_a_user_of_a_loop_device_nothing() {
    let test = "a_hole_in_a_decoder_of_pages_gives_a_user_of_a_loop_device_nothing";
    if let Some(why) = no_loop() {
        return skipped!("{test}: {why}");
    }
    let s = Sandbox::new();
    let wishes = Wishes::new(&s);
    let mut has_died = false;
    for wish in &wishes.list {
        if is_deadly(wish) && std::mem::replace(&mut has_died, true) {
            continue;
        }
        let device = s.ok("disk create -q --size 16M --name x --export loop").trim_end().to_string();
        write_directly(Path::new(&device), &page_with(wish));
        let mut reader = reader_of(&device);
        if !is_deadly(wish) {
            let page = reader.wait_with_output().unwrap().stdout;
            let answer = answer_in(&page);
            assert!(answer.starts_with("refused"), "{wish}: {answer}");
            s.ok("disk remove x");
            continue;
        }
        // The server is killed each time that the kernel gives the request to the next one, until it is held.
        wait_until("the death is logged", || log_of(&s).contains("signal 31"));
        wait_until("servers die too often", || s.run("disk show x").err.contains("died 4 times"));
        s.ok("disk remove x --force");
        assert!(!reader.wait().unwrap().success(), "{wish}");
        assert_eq!(s.left(), [""; 0]);
    }
    assert!(!s.path("new").exists());
}

fn write_directly(device: &Path, page: &[u8]) {
    let mut memory = vec![0; 2 * PAGE];
    let at = memory.as_ptr().align_offset(PAGE);
    memory[at..at + PAGE].copy_from_slice(page);
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(device).unwrap();
    file.write_all_at(&memory[at..at + PAGE], 0).unwrap();
}
