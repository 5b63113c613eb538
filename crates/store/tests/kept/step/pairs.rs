//! Death with two threads at work: one stops at a step of its operation and never goes on, while the other runs its
//! operation, to its end or for a random time. Then the process dies.

use super::scenario::{self, Form, TARGET};
use super::{BEFORE_AT, after_setup, file_backing, is_full, report, trace, tracer};
use crate::child::{self, Shared};
use crate::faults::caught;
use crate::image::Image;
use crate::support::Random;
use crate::support::rig::{raw_page, segments, soft_page};
use crate::verify::{Subject, read_all};
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackConfig};
use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use tracer::Stop;

const PAGES: u64 = 512;
/// The offsets in the notes of the word that starts the second operation, and of its result.
const START_AT: u64 = 16;
const RESULT_AT: u64 = 24;
/// The result of an operation that is done, and of one that was refused.
const DONE: u64 = 1;
const REFUSED: u64 = 2;
/// After this time the second operation waits for a lock of the first one.
const PATIENCE: Duration = Duration::from_millis(15);

/// An operation, and the page that it changes.
struct Operation {
    name: &'static str,
    changes: Option<(u64, Page)>,
    run: fn(&Store) -> bool,
}

fn write(store: &Store, index: u64, page: &Page) -> bool {
    store.write(index * PAGE_SIZE as u64, page).is_ok()
}

fn discard(store: &Store, index: u64) -> bool {
    store.discard(index * PAGE_SIZE as u64, PAGE_SIZE as u64).is_ok()
}

/// All operations. Some change the same page.
fn operations() -> [Operation; 10] {
    let changing = |name, index, page, run| Operation { name, changes: Some((index, page)), run };
    let keeping = |name, run| Operation { name, changes: None, run };
    [
        changing("raw", TARGET, raw_page(TARGET, 1), |store| write(store, TARGET, &raw_page(TARGET, 1))),
        changing("folded", TARGET, soft_page(TARGET, 2), |store| write(store, TARGET, &soft_page(TARGET, 2))),
        changing("discard", TARGET, [0; PAGE_SIZE], |store| discard(store, TARGET)),
        changing("folded-21", 21, soft_page(21, 3), |store| write(store, 21, &soft_page(21, 3))),
        changing("raw-22", 22, raw_page(22, 4), |store| write(store, 22, &raw_page(22, 4))),
        changing("discard-13", 13, [0; PAGE_SIZE], |store| discard(store, 13)),
        changing("raw-300", 300, raw_page(300, 5), |store| write(store, 300, &raw_page(300, 5))),
        keeping("compact", |store| {
            store.compact();
            true
        }),
        keeping("write-back", |store| {
            let selection = Selection::of(Which::All);
            store.write_back(&selection, &mut |_| ControlFlow::Continue(())).is_ok()
        }),
        keeping("recompress", |store| {
            store.recompress(&"".parse().unwrap(), &mut |_| ControlFlow::Continue(())).is_ok()
        }),
    ]
}

fn named(name: &str) -> Operation {
    operations().into_iter().find(|operation| operation.name == name).unwrap()
}

fn config() -> StoreConfig {
    StoreConfig {
        mem_limit: MemLimit::Off,
        cpu_count: 2,
        further_codecs: [Some(CodecSpec::named("zstd")), None, None],
        ..StoreConfig::new(PAGES * PAGE_SIZE as u64)
    }
}

/// Not a test by itself: the process that dies. `words` are the operations, and `free` or `full` memory.
pub fn run_child(words: &str, shared: Shared) {
    let words: Vec<_> = words.split(' ').collect();
    let (first, second) = (named(words[0]), named(words[1]));
    let Shared { memory, notes, medium } = shared;
    let mut store = Store::new_kept(config(), memory).unwrap();
    medium.set_len(segments(6) as u64).unwrap();
    let layout = LayoutKind::Log;
    store.attach(WritebackConfig { backing: file_backing(medium), layout }).unwrap();
    store.writeback().unwrap().settings().promote.store(false);
    scenario::around(&store, Form::Raw);
    assert!(write(&store, 21, &soft_page(21, 0)) && write(&store, 22, &raw_page(22, 0)));
    if words[2] == "full" {
        // Without holes, raw pages are overwritten in their places.
        store.compact();
        store.set_mem_limit(MemLimit::Bytes(0));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while word(&notes, START_AT) == 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
            let result = if (second.run)(&store) { DONE } else { REFUSED };
            notes.write_all_at(&result.to_le_bytes(), RESULT_AT).unwrap();
        });
        after_setup(&notes, &read_all(&store));
        (first.run)(&store);
        tracer::end_of_traced();
        notes.write_all_at(&1u64.to_le_bytes(), START_AT).unwrap();
    });
}

fn word(notes: &std::fs::File, at: u64) -> u64 {
    let mut word = [0; 8];
    let _ = notes.read_exact_at(&mut word, at);
    u64::from_le_bytes(word)
}

/// Lets the first operation stop at a step, and the second one run for a time. Returns false if the first one has fewer
/// steps.
fn die(names: [&str; 2], memory: &str, step: u64, time: Option<Duration>) -> bool {
    let shared = Shared::new();
    let mut child = child::start(&format!("pair {} {} {memory}", names[0], names[1]), &shared);
    let mut tracer = trace(&mut child, &shared);
    for _ in 0..step {
        if tracer.next() == Stop::End {
            child.wait().unwrap();
            return false;
        }
    }
    tracer.release_memory();
    shared.notes.write_all_at(&1u64.to_le_bytes(), START_AT).unwrap();
    let began = Instant::now();
    while word(&shared.notes, RESULT_AT) == 0 && began.elapsed() < time.unwrap_or(PATIENCE) {
        std::thread::sleep(Duration::from_micros(5));
    }
    child.kill().unwrap();
    tracer.reap();
    child.wait().unwrap();
    check(names, &shared, word(&shared.notes, RESULT_AT));
    true
}

fn check(names: [&str; 2], shared: &Shared, result: u64) {
    let backing = Image::of(&shared.medium).to_backing();
    let subject = Subject::recover(config(), &shared.memory, backing).unwrap();
    let contents = read_all(&subject.store);
    let before = super::noted_contents(&shared.notes, BEFORE_AT, PAGES);
    let [first, second] = names.map(|name| named(name).changes);
    for (index, page) in (0..).zip(&contents) {
        let of =
            |change: &Option<(u64, Page)>| change.filter(|change| change.0 == index).map(|change| change.1);
        let (first, second) = (of(&first), of(&second));
        if result == DONE && second.is_some() {
            assert!(Some(**page) == second, "page {index} does not have what was acknowledged");
        } else {
            let second = second.filter(|_| result != REFUSED);
            let is_right =
                **page == *before[index as usize] || Some(**page) == first || Some(**page) == second;
            assert!(is_right, "page {index} reads as other bytes");
        }
    }
    subject.check_counters(&contents);
    subject.check_write_back(&contents);
    subject.check_use(&[0, 1, 13, 19, 20, 21, 22, 23, 300]);
}

/// All pairs of operations, each at some steps of the first one.
#[test]
fn death_of_two_threads() {
    let operations = operations();
    let mut random = Random(u64::from(std::process::id()) << 8 | 1);
    let (mut faults, mut deaths) = (Vec::new(), 0);
    for memory in ["free", "full"] {
        for (first, second) in
            operations.iter().flat_map(|first| operations.iter().map(move |second| (first, second)))
        {
            let stride = |random: &mut Random| 1 + random.below(if is_full() { 12 } else { 300 });
            let mut step = stride(&mut random);
            loop {
                let time = (random.below(2) == 0).then(|| Duration::from_micros(random.below(300)));
                let names = [first.name, second.name];
                let died = caught(|| die(names, memory, step, time));
                match died {
                    Ok(false) => break,
                    Ok(true) => deaths += 1,
                    Err(fault) => faults.push(format!("{names:?}, {memory}, step {step}, {time:?}: {fault}")),
                }
                step += stride(&mut random);
            }
        }
    }
    eprintln!("pairs of operations: {deaths} deaths");
    report(faults);
}
