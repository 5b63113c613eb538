//! Start-up lists: `image mount --record` and `--prefetch`, and `image build --sort` with such a list.

use crate::image_mount::MountSandbox;
use crate::image_remote::server::{Object, Server};
use crate::json::Schema;
use crate::support::Sandbox;
use pagefold_sys::{fusedev, rundir};
use pagefold_testkit::noise;
use pagefold_testkit::skipped;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Exit codes of the program.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

/// Files of the tree, and those that a start reads.
const FILES: usize = 300;
const STEP: usize = 11;

/// The name of file `n`: one with a tab and one with a newline are read at the start.
fn name(n: usize) -> String {
    let end = match n {
        STEP => "\tx",
        n if n == 2 * STEP => "\nx",
        _ => "",
    };
    format!("f{n:03}{end}")
}

/// A tree of files in three directories.
fn tree(s: &Sandbox) -> PathBuf {
    let tree = s.path("many");
    for n in 0..FILES {
        let dir = tree.join(format!("d{}", n % 3));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name(n)), noise(n as u64, 40_000)).unwrap();
    }
    fs::write(tree.join("large"), noise(1000, 3 << 20)).unwrap();
    tree
}

/// Reads as a program at its start: files from all over the image, and a part of a large one.
fn start_up(at: &Path) {
    for n in (0..FILES).step_by(STEP) {
        let path = at.join(format!("d{}", n % 3)).join(name(n));
        assert!(fs::read(path).unwrap() == noise(n as u64, 40_000), "{n}");
    }
    let mut part = vec![0; 4096];
    fs::File::open(at.join("large")).unwrap().read_exact_at(&mut part, 2 << 20).unwrap();
    assert!(part == noise(1000, 3 << 20)[2 << 20..(2 << 20) + 4096]);
}

fn sandbox(test: &str) -> Option<MountSandbox> {
    if rundir::effective_uid() != 0 || fusedev::open().is_err() {
        skipped!("{test}: needs root and /dev/fuse");
        return None;
    }
    let inner = Sandbox::new();
    let (image, at) = (inner.path("image"), inner.path("at"));
    fs::create_dir(&at).unwrap();
    Some(MountSandbox { inner, image, at })
}

fn build(s: &MountSandbox, tree: &Path, out: &Path, more: &str) -> String {
    s.ok(&format!("image build {} {} -z lz4 --json {more}", tree.display(), out.display()))
}

/// Mounts an image of a server, waits for the prefetch if there is one, starts, and returns the requests that the start
/// itself sent, and those of all.
fn start_from_server(s: &MountSandbox, image: &Path, more: &str) -> (usize, usize) {
    let server = Server::start();
    server.put("/i", Object::new(fs::read(image).unwrap(), "v0"));
    s.ok(&format!("image mount {} {} --no-readahead {more}", server.url("/i"), s.at.display()));
    let deadline = Instant::now() + Duration::from_secs(60);
    while s.stats()["prefetch"]["has_ended"] == false {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = server.take_log().len();
    start_up(&s.at);
    let during = server.take_log().len();
    s.ok(&s.words("unmount", ""));
    s.assert_nothing_left();
    (during, before + during)
}

#[test]
fn a_start_is_recorded_and_needs_fewer_requests_with_its_list() {
    let Some(s) = sandbox("a_start_is_recorded_and_needs_fewer_requests_with_its_list") else { return };
    let tree = tree(&s.inner);
    let (list, sorted) = (s.inner.path("list"), s.inner.path("sorted"));
    build(&s, &tree, &s.image, "");
    let (plain, _) = start_from_server(&s, &s.image, &format!("--record {}", list.display()));
    let text = fs::read_to_string(&list).unwrap();
    assert_eq!(fs::metadata(&list).unwrap().permissions().mode() & 0o777, 0o600);
    let position = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line} is not in\n{text}"));
    assert!(position("\n/\t0\t") < position("\n/d0/\t0\t"));
    assert!(position("\n/d0/f000\t0\t40000\n") < position("\n/d2/f011\\011x\t0\t40000\n"));
    assert!(position("\n/d1/f022\\012x\t0\t40000\n") < position("\n/large\t"));
    assert!(!text.contains("f001"), "{text}");

    // An image that was built again, in the order of the list.
    let built: serde_json::Value =
        serde_json::from_str(&build(&s, &tree, &sorted, &format!("--sort {}", list.display()))).unwrap();
    assert_eq!(built["listed"]["missing"], 0, "{built}");
    let (_, in_order) = start_from_server(&s, &sorted, "");
    let prefetch = format!("--prefetch {}", list.display());
    let (after_prefetch, prefetched) = start_from_server(&s, &sorted, &prefetch);
    let (after_plain_prefetch, _) = start_from_server(&s, &s.image, &prefetch);
    eprintln!(
        "requests: {plain} plain, {in_order} in order, {prefetched} prefetched, of these {after_prefetch} by readers; \
         {after_plain_prefetch} by readers of the first image"
    );
    assert_eq!((after_prefetch, after_plain_prefetch), (0, 0), "readers wait for nothing");
    assert!(3 * prefetched < plain && 3 * in_order < plain);
}

#[test]
fn a_recording_ends_after_its_time_and_with_the_mount_of_a_user_too() {
    let test = "a_recording_ends_after_its_time_and_with_the_mount_of_a_user_too";
    let Some(s) = MountSandbox::new(test) else { return };
    let list = s.inner.path("list");
    s.ok(&s.words("mount", &format!("--record {} --record-for 1s", list.display())));
    assert_eq!(s.stats()["record"]["state"], "recording");
    assert!(s.stats()["first_read_ns"].is_null());
    fs::read(s.at.join("folder/short")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !list.exists() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::read(s.at.join("long")).unwrap();
    let stats = s.stats();
    assert_eq!((&stats["record"]["state"], &stats["record"]["lost"]), (&"written".into(), &0.into()));
    assert!(stats["first_read_ns"].as_u64() > Some(0));
    assert!(s.ok(&s.words("stats", "")).contains("entries written"));
    s.ok(&s.words("unmount", ""));
    s.assert_nothing_left();
    let text = fs::read_to_string(&list).unwrap();
    assert!(text.contains("\n/folder/short\t0\t6\n") && !text.contains("/long"), "{text}");

    let fails = |more: &str, code: i32, says: &str| {
        let (found, said) = s.run(&s.words("mount", more));
        assert!(found == code && said.contains(says), "{more}: {found} {said}");
    };
    fails("--record none/list", NOT_FOUND, "--record: writing the list");
    fails("--prefetch none", NOT_FOUND, "--prefetch: reading the list");
    fails("--record /", USAGE, "is no name of a file");
    fails("--record x --record-for 0", USAGE, "--record-for is between");
    s.assert_nothing_left();

    let Some(user) = MountSandbox::for_user(test) else { return };
    let list = user.inner.path("list");
    user.ok(&user.words("mount", &format!("--record {}", list.display())));
    user.ok(&user.words("unmount", ""));
    user.assert_nothing_left();
    assert!(fs::read_to_string(&list).unwrap().starts_with("# pagefold start-up list 1"));
}

#[test]
fn a_hostile_list_is_bounded_counted_and_said_once() {
    let Some(s) = MountSandbox::new("a_hostile_list_is_bounded_counted_and_said_once") else { return };
    let list = s.inner.path("list");
    let lines = "/none\t0\t1\n/long\t99999999999\t5\n/long/x\t0\t1\n/folder\t0\t18446744073709551615\nx\ty\n\
                 /long\t0\t18446744073709551615\n";
    fs::write(&list, lines.to_string() + &"/long\n".repeat(10_000_000)).unwrap();
    let said = s.ok(&s.words("mount", &format!("--prefetch {}", list.display())));
    assert_eq!(said.matches("no entries: 1, and it is too long").count(), 1, "{said}");
    let deadline = Instant::now() + Duration::from_secs(60);
    let prefetch = loop {
        let stats = s.stats();
        if stats["prefetch"]["has_ended"] == true {
            break stats["prefetch"].clone();
        }
        assert!(Instant::now() < deadline, "{stats}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!((&prefetch["malformed"], &prefetch["skipped"]), (&1.into(), &3.into()), "{prefetch}");
    let image_bytes = fs::metadata(&s.image).unwrap().len();
    assert!(prefetch["planned_bytes"].as_u64().unwrap() <= image_bytes, "{prefetch}");
    crate::image_mount::read_all(&s.at);
    assert!(s.ok(&s.words("stats", "")).contains("prefetch "));
    s.ok(&s.words("unmount", ""));
    s.assert_nothing_left();
}

/// The live view of a mount that reads from a server: a line for each sample, until the mount ends.
#[test]
fn the_live_view_has_a_line_for_each_sample_and_ends_with_the_mount() {
    let Some(s) = sandbox("the_live_view_has_a_line_for_each_sample_and_ends_with_the_mount") else { return };
    let tree = tree(&s.inner);
    build(&s, &tree, &s.image, "");
    let server = Server::start();
    server.put("/i", Object::new(fs::read(&s.image).unwrap(), "v0"));
    s.ok(&format!("image mount {} {} --memory 32M", server.url("/i"), s.at.display()));
    let stats = s.stats();
    // Half of the memory is for what the server sends: a 16th of it is on its way.
    assert_eq!(
        (&stats["remote"]["cache_bytes"], &stats["budget"]["limit_bytes"]),
        (&(14 << 20).into(), &(16 << 20).into())
    );
    let watch = |of: &str, more: &str| {
        let mut command = s.inner.command(&format!("image {of} {} --watch {more}", s.at.display()));
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let (text, json, shown) =
        (watch("stats", ""), watch("stats", "--json --interval 1s"), watch("show", "--json"));
    std::thread::sleep(Duration::from_millis(700));
    start_up(&s.at);
    std::thread::sleep(Duration::from_millis(1600));
    s.ok(&s.words("unmount", ""));
    let [text, json, shown] = [text, json, shown].map(|watch| watch.wait_with_output().unwrap());
    assert!([&text, &json, &shown].iter().all(|watch| watch.status.success()));
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown.lines().for_each(|line| Schema::of("image-stats").check(line));
    assert!(
        shown.lines().count() >= 2 && shown.lines().all(|line| line.contains("first_read_ns")),
        "{shown}"
    );
    let text = String::from_utf8(text.stdout).unwrap();
    let last = text.lines().last().unwrap();
    assert!(text.lines().count() >= 2 && !text.contains('\x1b'), "{text}");
    for word in
        ["first read after: ", "; requests: ", "; latency: mean ", "; cache hits: ", "; retries: 0", "/s)"]
    {
        assert!(last.contains(word), "{word} is not in {last}");
    }
    let lines: Vec<serde_json::Value> = String::from_utf8(json.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.len() >= 2 && lines[0]["change"]["interval_ms"].is_null(), "{lines:?}");
    let sum = |field: &str| lines.iter().map(|line| line["change"][field].as_u64().unwrap()).sum::<u64>();
    let end = lines.last().unwrap();
    assert_eq!(Some(sum("requests")), end["remote"]["requests"].as_u64());
    assert_eq!(Some(sum("asked_bytes")), end["reads"]["asked_bytes"].as_u64());
    assert!(lines.iter().any(|line| line["change"]["request_mean_ns"].as_u64() > Some(0)));
    assert!(end["first_read_ns"].as_u64() > Some(0) && end["schema_version"] == 1);
    let (code, said) = s.run(&s.words("stats", "--watch"));
    assert_eq!(code, NOT_FOUND, "{said}");
    let (code, said) = s.run(&s.words("stats", "--watch --interval 0"));
    assert!(code == USAGE || code == NOT_FOUND, "{said}");
}

#[test]
fn an_extraction_shows_bytes_files_rate_and_time_on_a_terminal_only() {
    let s = Sandbox::new();
    let (tree, image) = (tree(&s), s.path("image"));
    s.ok(&format!("-q image build {} {} -z lz4", tree.display(), image.display()));
    let server = Server::start();
    server.put("/i", Object::new(fs::read(&image).unwrap(), "v0"));
    server.fail(|_| crate::image_remote::server::Fault::Late(Duration::from_millis(40)));
    let extract = |out: &str| format!("image extract {} {}", server.url("/i"), s.path(out).display());
    let piped = s.command(&extract("piped")).output().unwrap();
    assert!(piped.status.success() && piped.stderr.is_empty(), "{piped:?}");
    let command = s.command(&extract("shown"));
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut script = std::process::Command::new("script");
    script
        .args(["-qec", &words.join(" "), "/dev/null"])
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::null());
    let Ok(shown) = script.output() else { return skipped!("script(1) is not installed") };
    let said = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{said}");
    for word in ["of 304 files, ", " of 14.4", "/s", " left"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
}
