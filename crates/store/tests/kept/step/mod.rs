//! Death at each step: an operation runs in a traced process, which stops after each instruction that changes the
//! store's memory and after each system call. At each stop a store is recovered from a copy of the memory, as if the
//! process had died there.
//!
//! `PAGEFOLD_STEP` runs only the scenarios whose names contain it; `PAGEFOLD_LONG` runs all.

pub mod pairs;
mod scenario;
pub mod toy;
mod tracer;

use crate::child::{self, Shared};
use crate::faults::caught;
use crate::image::Image;
use crate::verify::{Contents, Subject, read_all};
use pagefold_backing::{Direct, FileBacking, FileOptions, Uring};
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use pagefold_store::writeback::WritebackConfig;
use scenario::Scenario;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use tracer::{Stop, Tracer};

/// The offset of the contents before the operation in the notes, behind the number of the thread.
const BEFORE_AT: u64 = 4096;

/// Not a test by itself: the process that runs a scenario.
pub fn run_child(name: &str, shared: Shared) {
    let scenario = scenario::named(name);
    let Shared { memory, notes, medium } = shared;
    let mut store = Store::new_kept(scenario.config(), memory).unwrap();
    if let Some((layout, len_bytes)) = scenario.backing {
        medium.set_len(len_bytes as u64).unwrap();
        store.attach(WritebackConfig { backing: file_backing(medium), layout }).unwrap();
    }
    scenario.set_up(&store);
    after_setup(&notes, &read_all(&store));
    scenario.run(&store);
    tracer::end_of_traced();
    store.writeback().iter().for_each(|writeback| writeback.settings().promote.store(false));
    note_contents(&notes, after_at(&scenario), &read_all(&store));
}

/// Notes the contents before an operation, and stops to be traced.
fn after_setup(notes: &File, contents: &Contents) {
    note_contents(notes, BEFORE_AT, contents);
    note_thread(notes);
    tracer::stop_to_be_traced();
}

/// Not a test by itself: the process that recovers a store.
pub fn run_recovery(name: &str, shared: Shared) {
    let scenario = scenario::named(name);
    let Shared { memory, notes, medium } = shared;
    let backing = scenario.backing.map(|_| file_backing(medium) as Arc<_>);
    note_thread(&notes);
    tracer::stop_to_be_traced();
    let (store, _) = Store::recover(scenario.config(), memory, backing).unwrap();
    tracer::end_of_traced();
    store.writeback().iter().for_each(|writeback| writeback.settings().promote.store(false));
    let contents = read_all(&store);
    note_contents(&notes, BEFORE_AT, &contents);
    note_contents(&notes, after_at(&scenario), &contents);
}

fn file_backing(medium: File) -> Arc<FileBacking> {
    let options = FileOptions { direct: Direct::Off, uring: Uring::Off };
    Arc::new(FileBacking::new(medium, options).unwrap())
}

fn after_at(scenario: &Scenario) -> u64 {
    BEFORE_AT + scenario.page_count * PAGE_SIZE as u64
}

fn note_thread(notes: &File) {
    // SAFETY: the call takes nothing.
    let tid = unsafe { libc::gettid() };
    notes.write_all_at(&tid.to_le_bytes(), 0).unwrap();
}

fn note_contents(notes: &File, at: u64, contents: &Contents) {
    (0..).zip(contents).for_each(|(index, page)| {
        notes.write_all_at(&page[..], at + index * PAGE_SIZE as u64).unwrap();
    });
}

fn noted_contents(notes: &File, at: u64, page_count: u64) -> Contents {
    let page = |index| {
        let mut page = Box::new([0; PAGE_SIZE]);
        notes.read_exact_at(&mut page[..], at + index * PAGE_SIZE as u64).unwrap();
        page
    };
    (0..page_count).map(page).collect()
}

/// Waits until the child has noted its thread, and traces it.
fn trace(child: &mut std::process::Child, shared: &Shared) -> Tracer {
    loop {
        let mut tid = [0; 4];
        let is_noted = shared.notes.read_exact_at(&mut tid, 0).is_ok() && tid != [0; 4];
        if is_noted {
            return Tracer::start(i32::from_le_bytes(tid), &child::file_of(&shared.memory));
        }
        if let Some(status) = child.try_wait().unwrap() {
            panic!("the child ended before its operation: {status}");
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A state at which the process may die.
struct Moment {
    /// The number of stops before.
    step: u64,
    /// The instruction or the call.
    place: String,
    memory: Image,
    medium: Arc<Image>,
}

/// The states of a run, and the contents before and after the operation.
struct Run {
    moments: Vec<Moment>,
    stores: u64,
    calls: u64,
    before: Contents,
    after: Contents,
}

/// Runs a scenario in a traced child, and records each state that it has not been in before. With a moment, the operation
/// is the recovery of the store that is left if the process dies at that moment.
fn record(scenario: &Scenario, death: Option<&Moment>) -> Run {
    let mut shared = Shared::new();
    if let Some(death) = death {
        shared.memory = death.memory.to_memory();
        death.medium.write_to(&shared.medium);
    }
    let part = if death.is_some() { "recovery" } else { "step" };
    let mut child = child::start(&format!("{part} {}", scenario.name), &shared);
    let mut tracer = trace(&mut child, &shared);
    let file = child::file_of(&shared.memory);
    let mut medium = Arc::new(Image::of(&shared.medium));
    let first = Moment {
        step: 0,
        place: "before the operation".into(),
        memory: Image::of(&file),
        medium: medium.clone(),
    };
    let mut present = first.memory.clone();
    let mut seen = HashSet::from([(first.memory.hash_value(), medium.hash_value())]);
    let (mut moments, mut stores, mut calls) = (vec![first], 0, 0);
    for step in 1.. {
        let stop = tracer.next();
        let mut is_changed = false;
        let place = match stop {
            Stop::End => break,
            Stop::Store { at } => {
                stores += 1;
                at
            }
            Stop::Call { number } => {
                calls += 1;
                let now = medium.next(&shared.medium);
                is_changed = !now.is_unchanged_since(&medium);
                medium = Arc::new(now);
                number
            }
        };
        let memory = present.next(&file);
        is_changed |= !memory.is_unchanged_since(&present);
        present = memory.clone();
        if is_changed && seen.insert((memory.hash_value(), medium.hash_value())) {
            let place = match stop {
                Stop::Store { .. } => format!("after the instruction at {}", tracer.describe(place)),
                _ => format!("after system call {place}"),
            };
            moments.push(Moment { step, place, memory, medium: medium.clone() });
        }
    }
    assert!(child.wait().unwrap().success(), "{}: the child failed after its operation", scenario.name);
    let before = noted_contents(&shared.notes, BEFORE_AT, scenario.page_count);
    let after = noted_contents(&shared.notes, after_at(scenario), scenario.page_count);
    Run { moments, stores, calls, before, after }
}

/// Recovers a store from a state, and checks it. `is_new` says which touched pages had their new contents before.
fn check(scenario: &Scenario, run: &Run, moment: &Moment, is_new: &mut [bool]) {
    let memory = moment.memory.with_notes_moved(moment.step as usize).to_memory();
    let subject = Subject::recover(scenario.config(), &memory, moment.medium.to_backing()).unwrap();
    let contents = read_all(&subject.store);
    for (index, page) in (0..).zip(&contents) {
        let (old, new) = (&run.before[index as usize], &run.after[index as usize]);
        if !scenario.touched.contains(&index) {
            assert!(page == old, "page {index}, which the operation does not change, reads as other bytes");
        } else if old != new {
            let is_new = &mut is_new[index as usize];
            assert!(page == old || page == new, "page {index} reads neither as before nor as after");
            assert!(page == new || !*is_new, "page {index} reads as before again");
            *is_new = page == new;
        } else {
            assert!(page == old, "page {index} reads wrong");
        }
    }
    subject.check_counters(&contents);
    subject.check_write_back(&contents);
    let stored = (0..scenario.page_count).filter(|index| contents[*index as usize].iter().any(|b| *b != 0));
    let mut indexes: Vec<_> = stored.chain([scenario.page_count - 1]).collect();
    indexes.dedup();
    subject.check_use(&indexes);
}

/// Runs a scenario, and returns what is wrong with it.
fn faults(scenario: &Scenario) -> Vec<String> {
    let run = match caught(|| record(scenario, None)) {
        Ok(run) => run,
        Err(fault) => return vec![format!("{}: {fault}", scenario.name)],
    };
    let (mut faults, is_new) = faults_of(scenario, &run, 1);
    let is_acknowledged = scenario
        .touched
        .clone()
        .all(|index| run.before[index as usize] == run.after[index as usize] || is_new[index as usize]);
    if faults.is_empty() && !is_acknowledged {
        faults.push(format!("{}: the store has the old contents after the operation", scenario.name));
    }
    eprintln!("{}: {} stores, {} calls, {} states", scenario.name, run.stores, run.calls, run.moments.len());
    faults
}

/// Checks one of `step` states of a run, the last one in any case. Returns the faults, and which touched pages have their
/// new contents at the end.
fn faults_of(scenario: &Scenario, run: &Run, step: usize) -> (Vec<String>, Vec<bool>) {
    let mut is_new = vec![false; scenario.page_count as usize];
    let mut faults = Vec::new();
    for (at, moment) in run.moments.iter().enumerate() {
        if at % step != 0 && at + 1 != run.moments.len() {
            continue;
        }
        if let Err(fault) = caught(|| check(scenario, run, moment, &mut is_new)) {
            let before = &run.moments[at.saturating_sub(1)].memory;
            faults.push(format!(
                "{}: step {} {}: {fault}\n{}",
                scenario.name,
                moment.step,
                moment.place,
                moment.memory.changes_since(before),
            ));
        }
    }
    (faults, is_new)
}

/// Lets a process die while it recovers the store of another one that died during an operation: at about `deaths` moments
/// of the operation, and at about `checks` moments of each recovery.
fn recovery_faults(scenario: &Scenario, deaths: usize, checks: usize) -> Vec<String> {
    let run = match caught(|| record(scenario, None)) {
        Ok(run) => run,
        Err(fault) => return vec![format!("{}: {fault}", scenario.name)],
    };
    let mut faults = Vec::new();
    let every = (run.moments.len() / deaths).max(1);
    // Also the middle of a part.
    for death in run.moments.iter().skip(every / 2).step_by(every) {
        match caught(|| record(scenario, Some(death))) {
            Err(fault) => faults.push(format!("{}: recovery at step {}: {fault}", scenario.name, death.step)),
            Ok(recovery) => {
                let untouched = scenario::named(&scenario.name).touching(0..0);
                let step = (recovery.moments.len() / checks).max(1);
                let (found, _) = faults_of(&untouched, &recovery, step);
                faults.extend(
                    found.into_iter().map(|fault| format!("recovery at step {}: {fault}", death.step)),
                );
                let states = recovery.moments.len();
                eprintln!("{}: recovery at step {}: {states} states", scenario.name, death.step);
            }
        }
    }
    faults
}

fn is_full() -> bool {
    std::env::var_os("PAGEFOLD_LONG").is_some()
}

/// Runs the scenarios of a group, a part of them in the short tier.
fn run_group(scenarios: Vec<Scenario>) {
    let only = std::env::var("PAGEFOLD_STEP").ok();
    let is_full = is_full();
    let selected = scenarios.into_iter().filter(|scenario| match &only {
        Some(part) => scenario.name.contains(part.as_str()),
        None => is_full || !scenario.is_long,
    });
    report(selected.flat_map(|scenario| faults(&scenario)).collect());
}

fn report(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
}

/// A process dies while it recovers the store of another one.
#[test]
fn death_in_a_recovery() {
    let is_full = is_full();
    let short = [
        "write Folded over Raw",
        "write Raw over InLog",
        "folded over raw at the limit",
        "raw over raw at the limit",
        "compact",
        "clean",
        "promote in Blocks",
    ];
    let scenarios = scenario::groups().into_iter().flatten();
    let selected = scenarios.filter(|scenario| is_full || short.contains(&scenario.name.as_str()));
    let (deaths, checks) = if is_full { (4, 25) } else { (4, 10) };
    report(selected.flat_map(|scenario| recovery_faults(&scenario, deaths, checks)).collect());
}

#[test]
fn death_while_one_page_changes() {
    let [changes, _, _] = scenario::groups();
    run_group(changes);
}

#[test]
fn death_while_an_object_is_overwritten() {
    let [_, overwrites, _] = scenario::groups();
    run_group(overwrites);
}

#[test]
fn death_in_passes() {
    let [_, _, passes] = scenario::groups();
    run_group(passes);
}
