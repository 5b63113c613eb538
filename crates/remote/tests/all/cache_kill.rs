//! Processes that are killed while they write to a cache: it is never wrong.
//!
//! This program runs itself as the processes. `PAGEFOLD_CACHE_KILLS` is the number of rounds; `PAGEFOLD_FULL` makes it 200.

use super::cache_checker::check;
use super::*;
use pagefold_remote::cache::{CacheUse, Key};
use server::Fault;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The variable that makes a process of this program one that reads until it is killed: URL, folder and seed.
const CHILD: &str = "PAGEFOLD_TEST_CACHE_CHILD";
/// More than the cache may have, so that it is evicted from, too.
const LONG_BYTES: u64 = 20 * (1 << 20) + 4321;

fn long_contents() -> Vec<u8> {
    (0..LONG_BYTES).map(|at| ((at / 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 8 * 7)) as u8).collect()
}

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Not a test by itself: the process that is killed. It reads runs of blocks at random, by a source that knows nothing of
/// what it read before.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let words: Vec<_> = text.split(' ').collect();
    let mut seed = words[2].parse().unwrap();
    let url = Url::parse(words[0]).unwrap();
    let cache = super::cache::cache(words[1].as_ref());
    loop {
        // By a key that is known, opening needs no request.
        let content = Some(key());
        let options = Options {
            cache_bytes: 1 << 20,
            cache: Some(CacheUse { cache: cache.clone(), content }),
            is_verified: true,
            ..options(10_000)
        };
        let source = RemoteSource::open(&url, options).unwrap();
        let mut buf = vec![0; (next(&mut seed) % (20 * BLOCK) + 1) as usize];
        source.read_at(next(&mut seed) % (LONG_BYTES - buf.len() as u64), &mut buf).unwrap();
        if next(&mut seed).is_multiple_of(8) {
            let from = next(&mut seed) % LONG_BYTES;
            source.discard_cached(from, BLOCK);
        }
    }
}

/// The key under which the processes have the object.
fn key() -> Key {
    Key::of_digest("image", "sha256:00", "")
}

fn start(url: &str, folder: &std::path::Path, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cache_kill::child", "--nocapture"]);
    command.env(CHILD, format!("{url} {} {seed}", folder.display()));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn rounds() -> u64 {
    let full = if std::env::var_os("PAGEFOLD_FULL").is_some() { 200 } else { 15 };
    std::env::var("PAGEFOLD_CACHE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(full)
}

/// Reads all that the cache has, as another process does, and compares it with the source. Returns the number of blocks.
fn blocks_read(folder: &std::path::Path, source: &[u8]) -> usize {
    let Some(object) = super::cache::cache(folder).find(&key()) else { return 0 };
    let mut found = 0;
    for (block, right) in (0..).zip(source.chunks(BLOCK as usize)) {
        for bytes in object.read(&(block..block + 1)) {
            assert!(bytes == right, "block {block}");
            found += 1;
        }
    }
    found
}

/// A stopped process has claims that it does not give up.
#[test]
fn nobody_waits_long_for_a_stopped_process() {
    use rustix::process::{Pid, Signal, kill_process};
    let server = Server::start();
    let source = long_contents();
    server.put(PATH, Object::new(source.clone(), "v0"));
    let folder = tempfile::tempdir().unwrap();
    let url = server.url(PATH);
    let open = || {
        let cache = Some(CacheUse { cache: super::cache::cache(folder.path()), content: Some(key()) });
        let url = Url::parse(&url).unwrap();
        RemoteSource::open(&url, Options { cache, is_verified: true, ..options(2000) }).unwrap()
    };
    let reader = open();
    server.take_log();
    server.fail(|_| Fault::Late(Duration::from_millis(200)));
    let mut child = start(&url, folder.path(), 5);
    let asked = loop {
        if let Some(request) = server.take_log().first() {
            break request.range().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    server.fail(|_| Fault::None);
    let start = Instant::now();
    let mut buf = vec![0; (asked.1 - asked.0 + 1) as usize];
    reader.read_at(asked.0, &mut buf).unwrap();
    // A quarter of the time that a read has, and the requests.
    let took = start.elapsed();
    assert!(buf == source[asked.0 as usize..=asked.1 as usize]);
    assert!((400..1500).contains(&took.as_millis()), "{took:?}");
    kill_process(pid, Signal::CONT).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    check(folder.path(), &source);
}

#[test]
fn what_killed_processes_leave_is_never_wrong() {
    let server = Server::start();
    let source = long_contents();
    server.put(PATH, Object::new(source.clone(), "v0"));
    let folder = tempfile::tempdir().unwrap();
    let (mut believed, mut kills) = (0, 0);
    for round in 0..rounds() {
        let mut seed = round + 1;
        let url = server.url(PATH);
        let mut children: Vec<_> = (0..2).map(|n| start(&url, folder.path(), 2 * round + n + 1)).collect();
        // From the first request of this round on, they write.
        server.take_log();
        while server.take_log().is_empty() {
            assert!(
                children.iter_mut().all(|child| child.try_wait().unwrap().is_none()),
                "a child has failed"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(next(&mut seed) % 60_000));
        for child in &mut children {
            assert_eq!(child.try_wait().unwrap(), None, "a child has failed");
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        let found = check(folder.path(), &source);
        assert!(blocks_read(folder.path(), &source) == found, "the cache and the checker differ");
        believed += found;
    }
    assert!(believed as u64 > kills, "{believed} blocks after {kills} kills");
}
