//! Reads a damaged image in many ways: each must end in time, within its memory, and write nothing outside its
//! folder; and all ways must agree on the readable contents.

use super::commands::{Call, CommandRunner, Completed};
use super::config::{Ending, draw_budget, draw_threads};
use super::good::{self, Truth};
use super::mounted::{self, Mounted, RandomReads};
use super::scan::{self, RequestSlot, Scan, difference, scan};
use crate::random::Random;
use crate::verdict::{Fault, FaultKind};
use crate::watchdog::RequestWatch;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Values of `--max-bytes` and `--max-inodes`: small and large.
const MOST_BYTES: [u64; 2] = [1 << 20, 96 << 20];
const MOST_INODES: [u64; 2] = [50, 4000];
/// Bytes that a file system may add to a file that holes cut into pieces.
const ROUNDING: u64 = 8192;

/// Words in the finding of a file with a damaged cluster of deflate, and of a file whose first name is missing.
const UNDECODED: &str = "not decode as deflate";
const FURTHER_NAME: &str = "another name of";

/// Reads one damaged image.
pub struct DamagedReader<'a> {
    /// Runs commands on the image.
    pub runner: &'a CommandRunner<'a>,
    /// The contents of the image before the damage.
    pub truth: &'a Truth,
    /// Watches requests to mounts.
    pub watch: &'a RequestWatch,
    /// Draws the ways in which the image is read.
    pub random: Random,
}

/// A finished extraction.
struct Extraction {
    completed: Completed,
    budget: u64,
    threads: Option<u64>,
    dir: PathBuf,
    scan: Scan,
}

impl DamagedReader<'_> {
    /// Reads the image. Returns whether `check` found nothing.
    pub fn run(mut self) -> Result<bool, Fault> {
        let failed = |e| Fault::failed("making a canary", e);
        let canary = self.runner.dir.join("canary");
        fs::create_dir(&canary).and_then(|()| fs::write(canary.join("file"), "canary")).map_err(failed)?;
        let before = scan(&canary, RequestSlot(None));
        let is_clean = self.check()?;
        let (limits, privileged) = (self.limits(), self.random.percent(30));
        let first = self.extract("first", &limits, privileged)?;
        let second = self.extract("second", &limits, privileged)?;
        self.agree(&first, &second)?;
        if is_clean {
            self.check_finds(&first)?;
        }
        good::remove_tree(&second.dir)?;
        for _ in 0..2 {
            self.run_other()?;
        }
        if self.random.percent(40) {
            self.mount(&first, is_clean)?;
        }
        good::remove_tree(&first.dir)?;
        good::compare("the canary", &before, &scan(&canary, RequestSlot(None)))?;
        let expected = ["canary", "at"];
        let others =
            fs::read_dir(&self.runner.dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let is_ours = |name: &OsString| {
            let is_medium =
                [&self.runner.image].into_iter().chain(&self.runner.devices).any(|path| path.ends_with(name));
            is_medium || expected.iter().any(|n| name == n) || name.to_string_lossy().ends_with(".out")
        };
        match others.into_iter().find(|name| !is_ours(name)) {
            Some(name) => {
                Err(Fault::new(FaultKind::Leftover, format!("{name:?} was made outside the target")))
            }
            None => Ok(is_clean),
        }
    }

    /// Checks that `check` with the same budget also finds errors, if the extraction failed because of the image.
    ///
    /// The budget must be the same because it decides how much the tools can remember, and which of the two decoders of
    /// deflate runs; see `agree`.
    fn check_finds(&mut self, extraction: &Extraction) -> Result<(), Fault> {
        let completed = &extraction.completed;
        if completed.code == 0 || completed.is_limited() || is_limit_of_target(completed) {
            return Ok(());
        }
        let call = Call {
            budget: extraction.budget,
            threads: extraction.threads,
            ..self.call("check", &["--json"])
        };
        match self.runner.run(&call)?.code {
            0 => Err(Fault::failed("check finds nothing, but extract does", completed.text())),
            _ => Ok(()),
        }
    }

    fn call(&mut self, subcommand: &'static str, options: &[&str]) -> Call {
        let options = options.iter().map(|option| option.to_string()).collect();
        Call { subcommand, budget: draw_budget(&mut self.random), options, ..Call::default() }
    }

    fn check(&mut self) -> Result<bool, Fault> {
        let threads = Some(draw_threads(&mut self.random));
        let completed = self.runner.run(&Call { threads, ..self.call("check", &["--json"]) })?;
        check_exit_code(&completed, &[0, 1, 2, 6])?;
        Ok(completed.code == 0 && completed.json()?["complete"] == true)
    }

    /// Draws `--max-bytes` and `--max-inodes`. Small values are rare, because they end the extraction early.
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
    ) -> Result<Extraction, Fault> {
        let dir = self.runner.dir.join(name);
        let threads = Some(draw_threads(&mut self.random));
        let (bytes_text, inodes_text) = (format!("--max-bytes={bytes}"), format!("--max-inodes={inodes}"));
        let mut options = vec!["--json", &bytes_text, &inodes_text];
        options.extend(privileged.then_some("--privileged"));
        let call = Call { threads, operands: vec![dir.clone().into()], ..self.call("extract", &options) };
        let completed = self.runner.run(&call)?;
        check_exit_code(&completed, &[0, 1, 2, 6])?;
        let scan = if dir.exists() { scan(&dir, RequestSlot(None)) } else { Scan::default() };
        let files = scan.entries.len() as u64;
        let taken = bytes_taken(&dir, &scan);
        if taken > bytes + files * ROUNDING || files > inodes + 1 {
            let message = format!("{} made {files} files with {taken} bytes", completed.line);
            return Err(Fault::new(FaultKind::Contents, message));
        }
        Ok(Extraction { completed, budget: call.budget, threads, dir, scan })
    }

    /// Checks that two extractions with other budgets and numbers of threads have the same result.
    fn agree(&self, first: &Extraction, second: &Extraction) -> Result<(), Fault> {
        let codes = [first.completed.code, second.completed.code];
        if codes.contains(&2) || first.completed.is_limited() || second.completed.is_limited() {
            return Ok(());
        }
        // The budget decides which library decodes deflate, and they do not refuse the same streams. So a file may
        // exist in one extraction only, and so may its further names.
        let undecoded = [first.reported(UNDECODED), second.reported(UNDECODED)];
        let disputed: BTreeSet<_> = undecoded[0].symmetric_difference(&undecoded[1]).cloned().collect();
        let names = [first.reported(FURTHER_NAME), second.reported(FURTHER_NAME)];
        // The time of a reported file may not have been set.
        let reported = first.reported("");
        let comparable = |scan: &Scan| {
            let mut scan = scan.clone();
            if !disputed.is_empty() {
                let is_name = |path: &Vec<u8>| names.iter().any(|names| names.contains(path));
                scan.entries.retain(|path, _| !disputed.contains(path) && !is_name(path));
                scan.entries.values_mut().for_each(|entry| (entry.nlink, entry.first) = (0, Vec::new()));
            }
            reported.iter().for_each(|path| _ = scan.entries.get_mut(path).map(|entry| entry.mtime = None));
            scan
        };
        if codes[0] != codes[1] && disputed.is_empty() {
            let (a, b) = (first.completed.text(), second.completed.text());
            return Err(Fault::new(
                FaultKind::Contents,
                format!("two extractions end with {codes:?}:\n{a}\n{b}"),
            ));
        }
        match difference(&comparable(&first.scan), &comparable(&second.scan)) {
            None => Ok(()),
            Some(what) => {
                let lines = [&first.completed.line[..], &second.completed.line].join("\n");
                Err(Fault::new(FaultKind::Contents, format!("two extractions differ: {what}\n{lines}")))
            }
        }
    }

    /// Runs one of the other commands, on paths that the image had before the damage.
    fn run_other(&mut self) -> Result<(), Fault> {
        let paths: Vec<_> = self.truth.scan.entries.keys().collect();
        let mut path = || {
            let path = paths.get(self.random.below(paths.len() as u64) as usize).map(|path| &path[..]);
            OsString::from(OsStr::from_bytes(&[b"/", path.unwrap_or_default()].concat()))
        };
        let (one, two) = (path(), path());
        let most = MOST_BYTES[usize::from(self.random.percent(80))];
        let limit = format!("--max-bytes={most}");
        let (call, codes): (Call, &[i32]) = match self.random.below(8) {
            0 | 1 => (self.call("tar", &[&limit]), &[0, 1, 2, 6]),
            2 => (self.call("ls", &["-lR"]), &[0, 1, 2, 6]),
            3 => (self.call("ls", &["-R", "--json"]), &[0, 1, 2, 6]),
            4 => (self.call("show", &["--json"]), &[0, 1, 2, 6]),
            5 => (self.call("show", &[]), &[0, 1, 2, 6]),
            6 => (Call { operands: vec![one], ..self.call("show", &[]) }, &[0, 1, 2, 3, 6]),
            _ => (Call { operands: vec![one, two], ..self.call("cat", &[&limit]) }, &[0, 1, 2, 3, 6]),
        };
        let completed = self.runner.run(&call)?;
        check_exit_code(&completed, codes)?;
        let len = fs::metadata(&completed.out).map_or(0, |meta| meta.len());
        if call.options.contains(&limit) && len > most {
            return Err(Fault::failed(&completed.line, format!("{len} bytes of output")));
        }
        // The output of `ls` may be long.
        fs::remove_file(&completed.out).map_err(|e| Fault::failed("removing output", e))
    }

    /// Mounts the image, and checks that the mount answers every request and agrees with the extraction.
    fn mount(&mut self, extraction: &Extraction, is_clean: bool) -> Result<(), Fault> {
        let budget = draw_budget(&mut self.random);
        let mounted = match Mounted::new(self.runner, &mut self.random, budget)? {
            Err(completed) => return check_exit_code(&completed, &[1, 2, 6]),
            Ok(mounted) => mounted,
        };
        let walked = mounted::walk(&mounted, self.watch);
        let is_whole = extraction.completed.code == 0 && !walked.is_cut;
        if is_clean && is_whole {
            let names = |scan: &Scan| scan.entries.keys().cloned().collect::<Vec<_>>();
            let walked = Scan { entries: good::unprivileged(&walked).entries, ..walked };
            let made = good::unprivileged(&extraction.scan);
            if names(&walked) != names(&made) || !walked.errors.is_empty() {
                let what = difference(&made, &walked);
                return Err(Fault::new(FaultKind::Contents, format!("mount and extraction: {what:?}")));
            }
        }
        let mut readable = extraction.scan.clone();
        let reported = extraction.reported("");
        let is_ambiguous = |path: &[u8]| reported.iter().any(|reported| path.starts_with(reported));
        readable.entries.retain(|path, entry| entry.contents.is_ok() && !is_ambiguous(path));
        let mut compared = BTreeSet::new();
        for (path, entry) in &readable.entries {
            if self.compare(&mounted, path, entry, is_clean)? {
                compared.insert(path.clone());
            }
        }
        readable.entries.retain(|path, _| compared.contains(path));
        let seed = self.random.next();
        let reads =
            RandomReads { expected: &readable, truth: &extraction.dir, count: 10, seed, is_damaged: true };
        mounted.read_at_random(&reads, self.watch)?;
        mounted.check_memory()?;
        let ending = self.random.pick(&[Ending::Unmount, Ending::Unmount, Ending::Umount, Ending::Terminate]);
        mounted.end(ending)
    }

    /// Compares a file of the mount with the extracted file. Returns whether the file can be read.
    fn compare(
        &self,
        mounted: &Mounted<'_>,
        path: &[u8],
        entry: &scan::Entry,
        is_clean: bool,
    ) -> Result<bool, Fault> {
        let at = mounted.point.join(OsStr::from_bytes(path));
        let fault = |what: String| {
            let message =
                format!("/{} of the mount differs from the extracted file: {what}", path.escape_ascii());
            Err(Fault::new(FaultKind::Contents, message))
        };
        let found = match scan::read_entry(&at, RequestSlot(Some((self.watch, mounted::READERS)))) {
            // In a directory that is not sorted, lookup of a listed name may fail.
            Err(error) if error == Errno::NOENT.raw_os_error() && !is_clean => return Ok(false),
            Err(error) => return fault(format!("error {error}")),
            Ok((found, _)) => found,
        };
        // The mount may decode with another library than the extraction; see `agree`.
        if found.contents == Err(Errno::IO.raw_os_error()) && !is_clean {
            return Ok(false);
        }
        // An access control list contains permissions too, and those that are set last count.
        // The kernel chooses the permissions of a symbolic link.
        let is_link = entry.mode & 0o170_000 == 0o120_000;
        let has_list = entry.xattrs.as_ref().is_ok_and(|x| x.contains_key(&b"system.posix_acl_access"[..]));
        let compared_mode = if has_list || is_link { 0o170_000 } else { 0o170_777 };
        // The extraction has reported names and attributes that it could not make.
        let found = scan::Entry {
            nlink: entry.nlink,
            first: entry.first.clone(),
            mtime: None,
            owner: entry.owner,
            xattrs: entry.xattrs.clone(),
            mode: found.mode & compared_mode | entry.mode & !compared_mode,
            ..found
        };
        scan::field_difference(entry, &found).map_or(Ok(true), fault)
    }
}

impl Extraction {
    /// The paths with a finding that contains these words.
    fn reported(&self, words: &str) -> BTreeSet<Vec<u8>> {
        let findings = self.completed.json().unwrap_or_default();
        let all = findings["findings"].as_array().into_iter().flatten();
        let says =
            |finding: &&serde_json::Value| finding["what"].as_str().is_some_and(|text| text.contains(words));
        all.filter(says).map(good::path_of).collect()
    }
}

/// Bytes that regular files take in the file system.
fn bytes_taken(dir: &Path, scan: &Scan) -> u64 {
    let is_first = |(path, entry): &(&Vec<u8>, &scan::Entry)| {
        entry.mode & 0o170_000 == 0o100_000 && entry.first == **path
    };
    let firsts = scan.entries.iter().filter(is_first);
    let taken =
        |path: &[u8]| fs::symlink_metadata(dir.join(OsStr::from_bytes(path))).map_or(0, |m| m.blocks() * 512);
    firsts.map(|(path, _)| taken(path)).sum()
}

/// Returns a fault if the exit code is none of these.
fn check_exit_code(completed: &Completed, codes: &[i32]) -> Result<(), Fault> {
    match codes.contains(&completed.code) {
        true => Ok(()),
        false => {
            Err(Fault::failed(&completed.line, format!("exit code {}: {}", completed.code, completed.err)))
        }
    }
}

/// Whether the reported failures are limits of the target's file system: owners and attributes that it does not
/// support, and files that are too long for it.
fn is_limit_of_target(completed: &Completed) -> bool {
    let text = completed.text();
    ["attribute", "owner", "File too large"].iter().any(|word| text.contains(word))
}
