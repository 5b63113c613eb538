//! A damaged image, read in many ways: each ends in time, within its memory, and without a trace outside of its folder; and
//! all ways agree on what can be read.

use super::bench::{Bench, Call, Ended};
use super::config::{Ending, draw_budget, draw_jobs};
use super::good::{self, Truth};
use super::mounted::{self, Mounted, Pieces};
use super::scan::{self, Noted, Scan, difference, scan};
use crate::load::watch::Watch;
use crate::part::{Fault, FaultKind};
use crate::random::Random;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What extraction may write, bytes and files.
const MOST_BYTES: [u64; 2] = [1 << 20, 96 << 20];
const MOST_INODES: [u64; 2] = [50, 4000];
/// What a file system adds to the bytes of a file that is cut into pieces by holes.
const ROUNDING: u64 = 8192;

/// What is told of a file of which a cluster is damaged, and of one whose first name is not there.
const UNDECODED: &str = "not decode";
const FURTHER_NAME: &str = "another name of";

/// The reading of one damaged image.
pub struct Reading<'a> {
    /// Commands on it.
    pub bench: &'a Bench<'a>,
    /// What the image held before.
    pub truth: &'a Truth,
    /// Requests to mounts.
    pub watch: &'a Watch,
    /// Draws how it is read.
    pub random: Random,
}

/// An extraction.
struct Extracted {
    ended: Ended,
    budget: u64,
    jobs: Option<u64>,
    dir: PathBuf,
    scan: Scan,
}

impl Reading<'_> {
    /// Reads it. Returns whether the check found nothing.
    pub fn run(mut self) -> Result<bool, Fault> {
        let failed = |e| Fault::failed("making a canary", e);
        let canary = self.bench.dir.join("canary");
        fs::create_dir(&canary).and_then(|()| fs::write(canary.join("file"), "canary")).map_err(failed)?;
        let before = scan(&canary, Noted(None));
        let is_clean = self.check()?;
        let (limits, privileged) = (self.limits(), self.random.percent(30));
        let first = self.extract("first", &limits, privileged)?;
        let second = self.extract("second", &limits, privileged)?;
        self.agree(&first, &second)?;
        if is_clean {
            self.is_told(&first)?;
        }
        good::clear(&second.dir)?;
        for _ in 0..2 {
            self.other()?;
        }
        if self.random.percent(40) {
            self.mount(&first, is_clean)?;
        }
        good::clear(&first.dir)?;
        good::same("the canary", &before, &scan(&canary, Noted(None)))?;
        let known = ["canary", "at"];
        let others =
            fs::read_dir(&self.bench.dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let is_ours = |name: &OsString| {
            let is_medium =
                [&self.bench.image].into_iter().chain(&self.bench.devices).any(|path| path.ends_with(name));
            is_medium || known.iter().any(|n| name == n) || name.to_string_lossy().ends_with(".out")
        };
        match others.into_iter().find(|name| !is_ours(name)) {
            Some(name) => Err(Fault::new(FaultKind::Leftover, format!("{name:?} is beside the target"))),
            None => Ok(is_clean),
        }
    }

    /// What keeps a file from being extracted is found by a check with the same memory, too, unless it is the target's limit.
    ///
    /// With other memory LZ4 is decoded by another decoder, and the two are not equally strict: liblz4 takes matches
    /// at a distance of 0 or beyond the window, and the windowed decoder does not.
    fn is_told(&mut self, extracted: &Extracted) -> Result<(), Fault> {
        let ended = &extracted.ended;
        if ended.code == 0 || ended.is_limited() || is_about_target(ended) {
            return Ok(());
        }
        let call = Call { budget: extracted.budget, jobs: extracted.jobs, ..self.call("check", &["--json"]) };
        match self.bench.run(&call)?.code {
            0 => Err(Fault::failed("check finds nothing, but extract does", ended.text())),
            _ => Ok(()),
        }
    }

    fn call(&mut self, verb: &'static str, options: &[&str]) -> Call {
        let options = options.iter().map(|option| option.to_string()).collect();
        Call { verb, budget: draw_budget(&mut self.random), options, ..Call::default() }
    }

    fn check(&mut self) -> Result<bool, Fault> {
        let jobs = Some(draw_jobs(&mut self.random));
        let ended = self.bench.run(&Call { jobs, ..self.call("check", &["--json"]) })?;
        is_documented(&ended, &[0, 1, 2])?;
        Ok(ended.code == 0 && ended.json()?["complete"] == true)
    }

    /// `--max-bytes` and `--max-inodes`: small ones are rare, because they end the extraction.
    fn limits(&mut self) -> [u64; 2] {
        let is_small = self.random.percent(10);
        let choice = usize::from(!is_small);
        [MOST_BYTES[choice], MOST_INODES[choice]]
    }

    fn extract(
        &mut self,
        name: &str,
        [bytes, inodes]: &[u64; 2],
        privileged: bool,
    ) -> Result<Extracted, Fault> {
        let dir = self.bench.dir.join(name);
        let jobs = Some(draw_jobs(&mut self.random));
        let (bytes_text, inodes_text) = (format!("--max-bytes={bytes}"), format!("--max-inodes={inodes}"));
        let mut options = vec!["--json", &bytes_text, &inodes_text];
        options.extend(privileged.then_some("--privileged"));
        let call = Call { jobs, behind: vec![dir.clone().into()], ..self.call("extract", &options) };
        let ended = self.bench.run(&call)?;
        is_documented(&ended, &[0, 1, 2])?;
        let scan = if dir.exists() { scan(&dir, Noted(None)) } else { Scan::default() };
        let files = scan.entries.len() as u64;
        let taken = bytes_taken(&dir, &scan);
        if taken > bytes + files * ROUNDING || files > inodes + 1 {
            let message = format!("{} made {files} files with {taken} bytes", ended.line);
            return Err(Fault::new(FaultKind::Contents, message));
        }
        Ok(Extracted { ended, budget: call.budget, jobs, dir, scan })
    }

    /// Two budgets, and two numbers of threads, give the same.
    fn agree(&self, first: &Extracted, second: &Extracted) -> Result<(), Fault> {
        let codes = [first.ended.code, second.ended.code];
        if codes.contains(&2) || first.ended.is_limited() || second.ended.is_limited() {
            return Ok(());
        }
        // A small budget decodes a cluster as far as it is wanted, and a large one all of it; so files that end before the damage
        // are there with the one only, and with them their further names.
        let undecoded = [first.told(UNDECODED), second.told(UNDECODED)];
        let disputed: BTreeSet<_> = undecoded[0].symmetric_difference(&undecoded[1]).cloned().collect();
        let names = [first.told(FURTHER_NAME), second.told(FURTHER_NAME)];
        // Of what was told the time may not be set; it is then that of the extraction.
        let told = first.told("");
        let comparable = |scan: &Scan| {
            let mut scan = scan.clone();
            if !disputed.is_empty() {
                let is_name = |path: &Vec<u8>| names.iter().any(|names| names.contains(path));
                scan.entries.retain(|path, _| !disputed.contains(path) && !is_name(path));
                scan.entries.values_mut().for_each(|entry| (entry.nlink, entry.first) = (0, Vec::new()));
            }
            told.iter().for_each(|path| _ = scan.entries.get_mut(path).map(|entry| entry.mtime = None));
            scan
        };
        if codes[0] != codes[1] && disputed.is_empty() {
            let (a, b) = (first.ended.text(), second.ended.text());
            return Err(Fault::new(
                FaultKind::Contents,
                format!("two extractions end with {codes:?}:\n{a}\n{b}"),
            ));
        }
        match difference(&comparable(&first.scan), &comparable(&second.scan)) {
            None => Ok(()),
            Some(what) => {
                let lines = [&first.ended.line[..], &second.ended.line].join("\n");
                Err(Fault::new(FaultKind::Contents, format!("two extractions differ: {what}\n{lines}")))
            }
        }
    }

    /// One of the other commands. The paths are those that the image had before.
    fn other(&mut self) -> Result<(), Fault> {
        let paths: Vec<_> = self.truth.scan.entries.keys().collect();
        let mut path = || {
            let path = paths.get(self.random.below(paths.len() as u64) as usize).map(|path| &path[..]);
            OsString::from(OsStr::from_bytes(&[b"/", path.unwrap_or_default()].concat()))
        };
        let (one, two) = (path(), path());
        let most = MOST_BYTES[usize::from(self.random.percent(80))];
        let limit = format!("--max-bytes={most}");
        let (call, codes): (Call, &[i32]) = match self.random.below(8) {
            0 | 1 => (self.call("extract", &["--tar", &limit]), &[0, 1, 2]),
            2 => (self.call("list", &["-lR"]), &[0, 1, 2]),
            3 => (self.call("list", &["-R", "--json"]), &[0, 1, 2]),
            4 => (self.call("show", &["--json"]), &[0, 1, 2]),
            5 => (self.call("show", &[]), &[0, 1, 2]),
            6 => (Call { behind: vec![one], ..self.call("show", &[]) }, &[0, 1, 2, 3]),
            _ => (Call { behind: vec![one, two], ..self.call("cat", &[&limit]) }, &[0, 1, 2, 3]),
        };
        let ended = self.bench.run(&call)?;
        is_documented(&ended, codes)?;
        let len = fs::metadata(&ended.out).map_or(0, |meta| meta.len());
        if call.options.contains(&limit) && len > most {
            return Err(Fault::failed(&ended.line, format!("{len} bytes of output")));
        }
        // A list may be long.
        fs::remove_file(&ended.out).map_err(|e| Fault::failed("removing output", e))
    }

    /// A mount answers every request, and what it answers is what was extracted.
    fn mount(&mut self, extracted: &Extracted, is_clean: bool) -> Result<(), Fault> {
        let budget = draw_budget(&mut self.random);
        let mounted = match Mounted::new(self.bench, &mut self.random, budget)? {
            Err(ended) => return is_documented(&ended, &[1, 2]),
            Ok(mounted) => mounted,
        };
        let walked = mounted::walk(&mounted, self.watch);
        let is_whole = extracted.ended.code == 0 && !walked.is_cut;
        if is_clean && is_whole {
            let names = |scan: &Scan| scan.entries.keys().cloned().collect::<Vec<_>>();
            let walked = Scan { entries: good::unprivileged(&walked).entries, ..walked };
            let made = good::unprivileged(&extracted.scan);
            if names(&walked) != names(&made) || !walked.errors.is_empty() {
                let what = difference(&made, &walked);
                return Err(Fault::new(FaultKind::Contents, format!("mount and extraction: {what:?}")));
            }
        }
        let mut same = extracted.scan.clone();
        let told = extracted.told("");
        let is_ambiguous = |path: &[u8]| told.iter().any(|told| path.starts_with(told));
        same.entries.retain(|path, entry| entry.contents.is_ok() && !is_ambiguous(path));
        let mut compared = BTreeSet::new();
        for (path, entry) in &same.entries {
            if self.compare(&mounted, path, entry, is_clean)? {
                compared.insert(path.clone());
            }
        }
        same.entries.retain(|path, _| compared.contains(path));
        let seed = self.random.next();
        let pieces = Pieces { expected: &same, truth: &extracted.dir, count: 10, seed, is_damaged: true };
        mounted.read_at_random(&pieces, self.watch)?;
        mounted.is_within_memory()?;
        let ending = self.random.pick(&[Ending::Unmount, Ending::Unmount, Ending::Umount, Ending::Terminate]);
        mounted.end(ending)
    }

    /// Compares a file of the mount with what was extracted. Returns whether it can be read.
    fn compare(
        &self,
        mounted: &Mounted<'_>,
        path: &[u8],
        entry: &scan::Entry,
        is_clean: bool,
    ) -> Result<bool, Fault> {
        let at = mounted.point.join(OsStr::from_bytes(path));
        let fault = |what: String| {
            let message = format!("/{} of the mount is not what was extracted: {what}", path.escape_ascii());
            Err(Fault::new(FaultKind::Contents, message))
        };
        let found = match scan::look(&at, Noted(Some((self.watch, mounted::READERS)))) {
            // In a directory that is not in order, a name that is listed may not be found.
            Err(error) if error == Errno::NOENT.raw_os_error() && !is_clean => return Ok(false),
            Err(error) => return fault(format!("error {error}")),
            Ok((found, _)) => found,
        };
        // The mount may decode more of a damaged cluster than the extraction did; see `agree`.
        if found.contents == Err(Errno::IO.raw_os_error()) && !is_clean {
            return Ok(false);
        }
        // An access control list has permissions too, and those that are set last hold.
        // A symbolic link has the permissions that the kernel gives it; nobody can set others.
        let is_link = entry.mode & 0o170_000 == 0o120_000;
        let has_list = entry.xattrs.as_ref().is_ok_and(|x| x.contains_key(&b"system.posix_acl_access"[..]));
        let kept = if has_list || is_link { 0o170_000 } else { 0o170_777 };
        // Names that could not be made, and attributes that could not be set, were told.
        let found = scan::Entry {
            nlink: entry.nlink,
            first: entry.first.clone(),
            mtime: None,
            owner: entry.owner,
            xattrs: entry.xattrs.clone(),
            mode: found.mode & kept | entry.mode & !kept,
            ..found
        };
        scan::fields(entry, &found).map_or(Ok(true), fault)
    }
}

impl Extracted {
    /// The paths of which this was told.
    fn told(&self, what: &str) -> BTreeSet<Vec<u8>> {
        let findings = self.ended.json().unwrap_or_default();
        let told = findings["findings"].as_array().into_iter().flatten();
        let says =
            |finding: &&serde_json::Value| finding["what"].as_str().is_some_and(|said| said.contains(what));
        told.filter(says).map(good::path_of).collect()
    }
}

/// Bytes that the file system has for regular files.
fn bytes_taken(dir: &Path, scan: &Scan) -> u64 {
    let is_first = |(path, entry): &(&Vec<u8>, &scan::Entry)| {
        entry.mode & 0o170_000 == 0o100_000 && entry.first == **path
    };
    let firsts = scan.entries.iter().filter(is_first);
    let taken =
        |path: &[u8]| fs::symlink_metadata(dir.join(OsStr::from_bytes(path))).map_or(0, |m| m.blocks() * 512);
    firsts.map(|(path, _)| taken(path)).sum()
}

/// A fault if the exit code is none of these.
fn is_documented(ended: &Ended, codes: &[i32]) -> Result<(), Fault> {
    match codes.contains(&ended.code) {
        true => Ok(()),
        false => Err(Fault::failed(&ended.line, format!("exit code {}: {}", ended.code, ended.err))),
    }
}

/// Whether what failed is what the file system of the target does not take: owners and attributes that it has no room for, and
/// files longer than it can have.
fn is_about_target(ended: &Ended) -> bool {
    let said = ended.text();
    ["attribute", "owner", "File too large"].iter().any(|word| said.contains(word))
}
