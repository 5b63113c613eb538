//! Random kills: a process with several threads uses a store until it is killed at a random moment; the next one
//! recovers the store, checks each page against the notes, and goes on with it.
//!
//! `PAGEFOLD_KILLS` is the number of rounds, and `PAGEFOLD_KILL_SEED` the seed; `PAGEFOLD_LONG` makes it 1000 rounds.

mod notes;
mod worker;

use crate::child::{self, Shared, file_of};
use crate::image::Image;
use crate::support::Random;
use crate::support::rig::segments;
use crate::verify::{Subject, read_all};
use notes::{Notes, PAGES, contents};
use pagefold_backing::{Direct, FileBacking, FileOptions, Uring};
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pagefold_store::{
    AutoRecompress, CodecSpec, MemLimit, RecompressRule, RecompressThread, Store, StoreConfig,
    WritebackThread,
};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Frames of objects: about half of what all pages need.
const LIMIT_FRAMES: u64 = 160;
/// The reserve of some of the stores.
const RESERVE_BYTES: u64 = 128 << 10;
/// The longest that a child may take to recover and check its store.
const CHECK_MAX: Duration = Duration::from_secs(60);

/// The kinds of stores, by the word that names them to a child.
const KINDS: [(&str, Option<LayoutKind>); 3] =
    [("memory", None), ("log", Some(LayoutKind::Log)), ("blocks", Some(LayoutKind::Blocks))];

fn config() -> StoreConfig {
    StoreConfig {
        mem_limit: MemLimit::Bytes(LIMIT_FRAMES * PAGE_SIZE as u64),
        cpu_count: 2,
        access_times: true,
        further_codecs: [Some(CodecSpec::named("zstd")), None, None],
        ..StoreConfig::new(PAGES * PAGE_SIZE as u64)
    }
}

fn backing(shared: &Shared, uring: Uring) -> Arc<FileBacking> {
    let options = FileOptions { direct: Direct::Off, uring };
    Arc::new(FileBacking::new(shared.medium.try_clone().unwrap(), options).unwrap())
}

/// Not a test by itself: the process that is killed. `words` are the kind, the round, the seed and `last` or `more`.
pub fn run_child(words: &str, shared: Shared) {
    // Also a failure in one of the threads ends the process.
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        std::process::exit(101);
    }));
    let words: Vec<_> = words.split(' ').collect();
    let layout = KINDS.iter().find(|kind| kind.0 == words[0]).unwrap().1;
    let (round, seed): (u64, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let notes = Notes::map(&shared.notes);
    let mut random = Random(seed);
    let uring = if random.below(2) == 0 { Uring::Auto } else { Uring::Off };
    let reserve_bytes = (random.below(3) == 0).then_some(RESERVE_BYTES);
    let config = StoreConfig { reserve_bytes, ..config() };
    let store = match round {
        0 => create(config, &shared, layout, uring),
        _ => {
            let subject = recover(config, &shared, layout, uring, &notes);
            if words[3] == "last" {
                subject.check_use(&(0..PAGES).collect::<Vec<_>>());
                return;
            }
            subject.store
        }
    };
    store.writeback().iter().for_each(|writeback| writeback.settings().promote.store(true));
    notes.checked_round().store(round, SeqCst);
    let store = Arc::new(store);
    let is_automatic = layout.is_some() && random.below(2) == 0;
    let _thread = is_automatic.then(|| WritebackThread::start(store.clone()).unwrap());
    let rules = vec![RecompressRule { age_s: 0, priority: 1 }];
    let automatic = AutoRecompress { rules, cpu_percent: 50 };
    let _recompress_thread =
        (random.below(2) == 0).then(|| RecompressThread::start(store.clone(), automatic).unwrap());
    std::thread::scope(|scope| {
        for writer in 0..worker::WRITERS {
            let (store, notes, random) = (&store, &notes, Random(random.next()));
            scope.spawn(move || worker::write(store, notes, writer, random));
        }
        worker::maintain(&store, Random(random.next()));
    });
}

fn create(config: StoreConfig, shared: &Shared, layout: Option<LayoutKind>, uring: Uring) -> Store {
    let mut store = Store::new_kept(config, shared.memory.try_clone().unwrap()).unwrap();
    if let Some(layout) = layout {
        shared.medium.set_len(segments(9) as u64).unwrap();
        store.attach(WritebackConfig { backing: backing(shared, uring), layout }).unwrap();
    }
    store
}

/// Recovers the store, and checks that each page has the version that was last acknowledged or that was being written.
fn recover(
    config: StoreConfig,
    shared: &Shared,
    layout: Option<LayoutKind>,
    uring: Uring,
    notes: &Notes,
) -> Subject {
    let backing = layout.map(|_| backing(shared, uring) as Arc<_>);
    let subject = Subject::recover(config, &shared.memory, backing).unwrap();
    let pages = read_all(&subject.store);
    for (index, page) in (0..).zip(&pages) {
        let (begun, acknowledged) = notes.versions(index);
        let found = [acknowledged, begun].into_iter().find(|version| contents(index, *version).1 == **page);
        match found {
            Some(version) => notes.settle(index, version),
            None => panic!("page {index} reads neither as version {acknowledged} nor as {begun}"),
        }
    }
    subject.check_counters(&pages);
    subject
}

/// Waits until a child has checked its store, at most for `time`. Returns whether it has.
fn wait_for_check(child: &mut Child, notes: &Notes, round: u64, time: Duration) -> Result<bool, String> {
    let began = Instant::now();
    while notes.checked_round().load(SeqCst) != round {
        if let Some(status) = child.try_wait().unwrap() {
            return Err(format!("{status}"));
        }
        if began.elapsed() > time {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(true)
}

/// Kills one process after another. Fails if one finds a fault.
fn kill_often(kind: &str, rounds: u64, seed: u64) {
    let (mut random, shared) = (Random(seed), Shared::new());
    let notes = Notes::map(&shared.notes);
    notes.checked_round().store(u64::MAX, SeqCst);
    let mut checked = 0;
    for round in 0..=rounds {
        let images = [Image::of(&file_of(&shared.memory)), Image::of(&shared.medium)];
        let failed = |what: &str| -> ! {
            let saved = images.iter().zip(["memory", "medium"]);
            let paths = saved.map(|(image, name)| image.save(&format!("kept-{kind}-{seed}-{round}.{name}")));
            panic!("{kind}, seed {seed}, round {round}: {what}; see {:?}", paths.collect::<Vec<_>>());
        };
        let tail = if round == rounds { "last" } else { "more" };
        let child_seed = random.next() | 1;
        let mut child = child::start(&format!("kills {kind} {round} {child_seed} {tail}"), &shared);
        if round == rounds {
            let status = child.wait().unwrap();
            if !status.success() {
                failed(&format!("the last check: {status}"));
            }
            break;
        }
        // Some die while they recover.
        let is_early = round > 0 && random.below(5) == 0;
        let patience = if is_early { Duration::from_micros(3000 + random.below(9000)) } else { CHECK_MAX };
        match wait_for_check(&mut child, &notes, round, patience) {
            Ok(true) => {
                checked += 1;
                std::thread::sleep(Duration::from_micros(random.below(25_000)));
            }
            Ok(false) if is_early => {}
            Ok(false) => failed("the child has not recovered its store in time"),
            Err(status) => failed(&status),
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        if status.signal() != Some(libc::SIGKILL) {
            failed(&format!("the child ended by itself: {status}"));
        }
    }
    let (writes, refused) = (notes.writes().load(SeqCst), notes.refused_writes().load(SeqCst));
    eprintln!("{kind}, seed {seed}: {rounds} kills, {checked} checks, {writes} writes, {refused} refused");
    assert!(writes > 20 * rounds, "the children wrote too little to find a fault");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn kill_kind(kind: &str) {
    let is_full = std::env::var_os("PAGEFOLD_LONG").is_some();
    let rounds = number("PAGEFOLD_KILLS").unwrap_or(if is_full { 1000 } else { 30 }).div_ceil(3);
    let seed = number("PAGEFOLD_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 8 | 1);
    eprintln!("{kind}: PAGEFOLD_KILL_SEED={seed}");
    kill_often(kind, rounds, seed);
}

#[test]
fn kills_of_a_store_in_memory() {
    kill_kind("memory");
}

#[test]
fn kills_of_a_store_with_a_log() {
    kill_kind("log");
}

#[test]
fn kills_of_a_store_with_blocks() {
    kill_kind("blocks");
}
