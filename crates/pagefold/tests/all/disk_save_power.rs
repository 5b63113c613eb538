//! Power cuts in saves, simulated: whenever the power fails, the last complete save or the one after it is there.
//!
//! strace records what a command does with names and what it syncs; the data are those that its files have in the end, and were
//! not changed after their sync. The
//! model of the file system is a hostile one: of all that was not synced, any part is on the medium, and a name need not be
//! there because an earlier one is. Each cut is read by a reader of chains that shares nothing with that of the program but
//! the format of one file.

use crate::support::writeback::{connect, pages};
use crate::support::{Sandbox, have};
use pagefold_saved::{PageForm, Reader};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

/// Cuts of each save; with `PAGEFOLD_FULL` as many as in the second number, 100 000 in all.
const CUTS: [u64; 2] = [400, 20_000];
const NAME: &str = "work.saved";
/// The unit in which a medium writes: a block of several is torn.
const SECTOR: usize = 512;

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;
/// The pages of a disk by number, without those of zeroes.
type Pages = BTreeMap<u64, Vec<u8>>;

/// The steps of a command in the folder, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Create(String),
    /// A second name for a file.
    Link(String, String),
    Rename(String, String),
    Remove(String),
    Sync(String),
    SyncFolder,
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    *state >> 33
}

/// Runs a command, and returns its steps in this folder.
fn traced(s: &Sandbox, words: &str, folder: &Path) -> Vec<Step> {
    let (command, log) = (s.command(words), s.path("strace"));
    let calls = "trace=openat,creat,link,linkat,rename,renameat,renameat2,unlink,unlinkat,fsync,fdatasync";
    let mut strace = Command::new("strace");
    strace
        .args(["-y", "-ttt", "-e", calls, "-o"])
        .arg(&log)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        strace.env(name, value.unwrap_or(OsStr::new("")));
    }
    let ran = strace.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = std::fs::read_to_string(log).unwrap();
    let timed = text.lines().filter_map(|line| line.split_once(' '));
    let steps: Vec<_> =
        timed.filter_map(|(time, line)| Some((time.parse().ok()?, step(line, folder)?))).collect();
    // The model takes the data of a file as they are in the end. The server writes them, which is not traced.
    let modified = folder.join(NAME).metadata().unwrap().modified().unwrap();
    let modified_s = modified.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let is_data_sync = |(_, step): &&(f64, Step)| matches!(step, Step::Sync(_));
    let (synced_s, _) = steps.iter().rev().find(is_data_sync).unwrap();
    assert!(modified_s <= *synced_s, "written at {modified_s}, synced at {synced_s}");
    steps.into_iter().map(|(_, step)| step).collect()
}

fn step(line: &str, folder: &Path) -> Option<Step> {
    let (call, rest) = line.split_once('(')?;
    if line.rsplit_once(" = ")?.1.starts_with('-') {
        return None;
    }
    let in_folder = |path: &str| {
        let name = Path::new(path).strip_prefix(folder).ok()?.to_str()?;
        (!name.is_empty()).then(|| name.to_string())
    };
    let mut names = rest.split('"').skip(1).step_by(2).map(in_folder);
    let mut name = || names.next().flatten();
    match call {
        "openat" if rest.contains("O_CREAT") => Some(Step::Create(name()?)),
        "link" | "linkat" => Some(Step::Link(name()?, name()?)),
        "rename" | "renameat" | "renameat2" => Some(Step::Rename(name()?, name()?)),
        "unlink" | "unlinkat" => Some(Step::Remove(name()?)),
        "fsync" | "fdatasync" => {
            let path = rest.split_once('<')?.1.split_once('>')?.0;
            if Path::new(path) == folder { Some(Step::SyncFolder) } else { in_folder(path).map(Step::Sync) }
        }
        _ => None,
    }
}

fn files(folder: &Path) -> Files {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

/// A part of the data of a file that was not synced: some of its sectors, and not all of its length.
fn part(data: &[u8], state: &mut u64) -> Vec<u8> {
    let len = random(state) as usize % (data.len() + 1);
    let mut part = data[..if random(state).is_multiple_of(2) { len } else { data.len() }].to_vec();
    for sector in part.chunks_mut(SECTOR) {
        if random(state).is_multiple_of(8) {
            sector.fill(0);
        }
    }
    part
}

/// The folder after a cut that follows `done` of the steps.
fn cut(before: &Files, data: &[Vec<u8>], steps: &[Step], done: usize, state: &mut u64) -> Files {
    let mut inodes: Vec<_> = before.values().cloned().collect();
    // All names as the kernel has them, and those on the medium.
    let mut cached: BTreeMap<String, usize> = before.keys().cloned().zip(0..).collect();
    let mut stored = cached.clone();
    let synced = steps[..done].iter().rposition(|step| *step == Step::SyncFolder).unwrap_or(0);
    let mut new = data.iter();
    for (at, step) in steps[..done].iter().enumerate() {
        let is_stored = at < synced || random(state).is_multiple_of(2);
        let (removed, added) = match step {
            Step::Create(name) => {
                inodes.push(part(new.next().unwrap(), state));
                (None, Some((name, inodes.len() - 1)))
            }
            Step::Link(from, to) => (None, Some((to, cached[from]))),
            Step::Rename(from, to) => (Some(from), Some((to, cached[from]))),
            Step::Remove(name) => (Some(name), None),
            Step::Sync(name) => {
                let at = cached[name];
                inodes[at] = data[at - before.len()].clone();
                (None, None)
            }
            Step::SyncFolder => (None, None),
        };
        for names in [Some(&mut cached), is_stored.then_some(&mut stored)].into_iter().flatten() {
            removed.and_then(|name| names.remove(name));
            added.map(|(name, inode)| names.insert(name.clone(), inode));
        }
    }
    stored.into_iter().map(|(name, inode)| (name, inodes[inode].clone())).collect()
}

/// The contents of the newest save and of those that it needs.
fn restore(files: &Files) -> Result<Pages, String> {
    let (mut pages, mut next) = (Pages::new(), Some((NAME.to_string(), None)));
    while let Some((name, child)) = next {
        let bytes = files.get(&name).ok_or(format!("{name} is missing"))?;
        let mut reader = Reader::with_digest(&bytes[..]).map_err(|e| e.to_string())?;
        while let Some(block) = reader.next_block().map_err(|e| e.to_string())? {
            for (page, form) in block.pages() {
                pages.entry(page).or_insert_with(|| match form {
                    PageForm::Compressed { bytes, .. } => bytes.to_vec(),
                    PageForm::Raw(page) => page.to_vec(),
                    PageForm::SameFilled(word) => word.to_le_bytes().to_vec(),
                    PageForm::Lost => panic!("a page is lost"),
                });
            }
        }
        let header = reader.header().clone();
        let totals = reader.finish().map_err(|e| e.to_string())?;
        let depth = header.parent.as_ref().map_or(0, |parent| parent.depth);
        let is_parent = |parent: pagefold_saved::Parent| parent.is(header.id, depth, totals.digest);
        if child.is_some_and(|child| !is_parent(child)) {
            return Err(format!("{name} is another save"));
        }
        next = header.parent.map(|parent| (parent.name.to_str().unwrap().to_string(), Some(parent)));
    }
    pages.retain(|_, contents| contents[..] != [0; 8]);
    Ok(pages)
}

/// Saves to be cut: the files before each of them, the data of the files that it made, and its steps.
struct Case {
    before: Files,
    data: Vec<Vec<u8>>,
    steps: Vec<Step>,
    after: Files,
}

impl Case {
    fn of(s: &Sandbox, words: &str, folder: &Path) -> Self {
        let before = files(folder);
        let steps = traced(s, words, folder);
        let after = files(folder);
        // Files that were there are not written to: the model has no such step.
        assert!(
            before.iter().all(|(name, bytes)| name == NAME || after.get(name).is_none_or(|now| now == bytes))
        );
        let kept = |bytes: &Vec<u8>| after.values().any(|now| now == bytes);
        let is_removed = |step: &Step| matches!(step, Step::Remove(_));
        assert!(
            steps.iter().any(is_removed)
                || before.get(NAME).is_none_or(kept)
                || !words.contains("--incremental")
        );
        // The only file that a save makes.
        let made = steps.iter().filter(|step| matches!(step, Step::Create(_))).count();
        assert!(made == 1 && *steps.first().unwrap() != Step::SyncFolder, "{steps:?}");
        Case { before, data: vec![after[NAME].clone()], steps, after }
    }

    /// The cuts that left neither the save before nor this one.
    fn failures(&self, steps: &[Step], cuts: u64, seed: u64) -> Vec<String> {
        let old = if self.before.contains_key(NAME) { Some(restore(&self.before).unwrap()) } else { None };
        let new = restore(&self.after).unwrap();
        let last_sync = steps.iter().rposition(|step| *step == Step::SyncFolder);
        let mut state = seed;
        let failures = (0..cuts).filter_map(|_| {
            let done = random(&mut state) as usize % (steps.len() + 1);
            let files = cut(&self.before, &self.data, steps, done, &mut state);
            if old.is_none() && !files.contains_key(NAME) && last_sync.is_none_or(|last| done <= last) {
                return None;
            }
            match restore(&files) {
                Ok(found) if found == new => None,
                Ok(found) if Some(&found) == old.as_ref() && last_sync.is_none_or(|last| done <= last) => {
                    None
                }
                Ok(_) => Some(format!("after {done} steps: other contents")),
                Err(e) => Some(format!("after {done} steps: {e}")),
            }
        });
        failures.collect()
    }
}

fn cases() -> Option<Vec<Case>> {
    if !have("strace") {
        pagefold_testkit::skipped!("the_last_complete_save_survives_power_cuts: needs strace");
        return None;
    }
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --name x --size 8M");
    let folder: PathBuf = s.path("saves");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let save = format!("disk save x {}", folder.join(NAME).display());
    // A killed command has left it, and the next one removes it.
    let left = folder.join(".pagefold-0123456789abcdef.part");
    std::fs::write(&left, "part").unwrap();
    let mut cases = Vec::new();
    for (round, options) in
        ["--incremental", "--incremental", "--incremental", "", ""].into_iter().enumerate()
    {
        // Fewer than in the first round, so that the next save is incremental.
        let count = if round == 0 { 24 } else { 5 };
        connect(&s).write(round as u64 * 8192, &pages(count, round as u64));
        cases.push(Case::of(&s, &format!("{save} {options}"), &folder));
    }
    assert!(!left.exists());
    s.ok("disk remove --force x");
    Some(cases)
}

#[test]
fn the_last_complete_save_survives_power_cuts() {
    let Some(cases) = cases() else { return };
    let cuts = CUTS[usize::from(std::env::var_os("PAGEFOLD_FULL").is_some())];
    for (seed, case) in cases.iter().enumerate() {
        assert_eq!(case.failures(&case.steps, cuts, seed as u64), Vec::<String>::new(), "{:?}", case.steps);
    }
    // The second save has a chain with two names, and the fourth, a full one, removes it.
    let is_link = |step: &Step| matches!(step, Step::Link(..));
    assert!(cases[1].steps.iter().any(is_link) && !cases[0].steps.iter().any(is_link));
    assert!(cases[3].steps.iter().any(|step| matches!(step, Step::Remove(_))), "{:?}", cases[3].steps);
    // Each sync is necessary, but that which ends a full save from which nothing is removed.
    for (case, at) in cases.iter().flat_map(|case| (0..case.steps.len()).map(move |at| (case, at))) {
        let mut steps = case.steps.clone();
        let is_sync = matches!(steps.remove(at), Step::Sync(_) | Step::SyncFolder);
        let follows = steps[at..].iter().any(|step| !matches!(step, Step::Sync(_)));
        if is_sync && follows {
            assert!(!case.failures(&steps, 2000, 7).is_empty(), "without step {at} of {:?}", case.steps);
        }
    }
}
