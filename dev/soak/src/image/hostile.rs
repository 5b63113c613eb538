//! Reads a damaged image in many ways: each must end in time, within its memory, and write nothing outside its
//! folder; and all ways must agree on the readable contents.

use super::commands::{Call, ImageCommands, remove_tree};
use super::good::{path_of, set_mode, unprivileged};
use super::mount::{Allowed, Mount};
use crate::load::scan::{self, Entry, REGULAR, SYMLINK, Scan, difference, kind, scan};
use crate::process::Ended;
use crate::random::Random;
use crate::verdict::{Fault, OrFault, require};
use serde_json::Value;
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

/// A finished extraction.
struct Extraction {
    call: Call,
    ended: Ended,
    findings: Value,
    dir: PathBuf,
    scan: Scan,
}

/// Reads the damaged image; `truth` is the tree before the damage. Returns whether `check` found nothing.
pub fn read(commands: &ImageCommands<'_>, truth: &Scan, random: &mut Random) -> Result<bool, Fault> {
    let canary = commands.dir.join("canary");
    fs::create_dir(&canary)
        .and_then(|()| fs::write(canary.join("file"), "canary"))
        .or_fault("making a canary")?;
    let before = scan(&canary);
    let call = Call::draw(random, "check", &["--json"]);
    let checked = commands.run(&call)?.has_code(&[0, 1, 2, 6])?;
    let is_clean = checked.code == 0 && checked.json()?["complete"] == true;
    // Small limits are rare, because they end the extraction early.
    let is_large = usize::from(random.percent(90));
    let (bytes, inodes) = (MOST_BYTES[is_large], MOST_INODES[is_large]);
    let (bytes_text, inodes_text) = (format!("--max-bytes={bytes}"), format!("--max-inodes={inodes}"));
    let mut options = vec!["--json", &bytes_text, &inodes_text];
    options.extend(random.percent(30).then_some("--privileged"));
    let first = Extraction::make(commands, Call::draw(random, "extract", &options), "first", bytes, inodes)?;
    let second =
        Extraction::make(commands, Call::draw(random, "extract", &options), "second", bytes, inodes)?;
    agree(&first, &second)?;
    if is_clean {
        check_finds(commands, &first)?;
    }
    remove_tree(&second.dir)?;
    for _ in 0..2 {
        run_other(commands, truth, random)?;
    }
    if random.percent(40) {
        mount(commands, &first, is_clean, random)?;
    }
    remove_tree(&first.dir)?;
    scan::compare("the canary", &before, &scan(&canary))?;
    let made = fs::read_dir(&commands.dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let made: Vec<_> =
        made.filter(|name| ["canary", "at", "image"].iter().all(|known| name != known)).collect();
    require!(made.is_empty(), Leftover, "{made:?} were made outside the target");
    Ok(is_clean)
}

impl Extraction {
    /// Extracts the image. A fault if more is extracted than the limits allow.
    fn make(
        commands: &ImageCommands<'_>,
        call: Call,
        name: &str,
        bytes: u64,
        inodes: u64,
    ) -> Result<Self, Fault> {
        let dir = commands.dir.join(name);
        let call = Call { operands: vec![dir.clone().into()], ..call };
        let ended = commands.run(&call)?.has_code(&[0, 1, 2, 6])?;
        let scan = if dir.exists() { scan(&dir) } else { Scan::default() };
        let (files, taken) = (scan.entries.len() as u64, bytes_taken(&dir, &scan));
        let is_within = taken <= bytes + files * ROUNDING && files <= inodes + 1;
        require!(is_within, Contents, "{} made {files} files with {taken} bytes", ended.line);
        let findings = ended.json().unwrap_or_default();
        Ok(Extraction { call, ended, findings, dir, scan })
    }

    /// The paths with a finding that contains these words.
    fn reported(&self, words: &str) -> BTreeSet<Vec<u8>> {
        let all = self.findings["findings"].as_array().into_iter().flatten();
        let says = |finding: &&Value| finding["what"].as_str().is_some_and(|text| text.contains(words));
        all.filter(says).map(path_of).collect()
    }

    fn says(&self, words: &[&str]) -> bool {
        let (out, err) = (self.ended.text(), &self.ended.err);
        words.iter().any(|word| out.contains(word) || err.contains(word))
    }

    /// Whether the command reported that a limit or the budget was too small to do everything.
    fn is_limited(&self) -> bool {
        self.says(&["--max-bytes", "--max-inodes", "--memory", "too little memory"])
    }
}

/// Bytes that regular files take in the file system.
fn bytes_taken(dir: &Path, scan: &Scan) -> u64 {
    let is_first = |path: &[u8], entry: &Entry| {
        kind(entry) == REGULAR && entry.get("first name") == Some(&path.escape_ascii().to_string())
    };
    let firsts = scan.entries.iter().filter(|(path, entry)| is_first(path, entry));
    let taken =
        |path: &[u8]| fs::symlink_metadata(dir.join(OsStr::from_bytes(path))).map_or(0, |m| m.blocks() * 512);
    firsts.map(|(path, _)| taken(path)).sum()
}

/// Checks that `check` with the same budget also finds errors, if the extraction failed because of the image, and not
/// because the target's file system does not support an owner, an attribute or a length.
///
/// The budget must be the same because it decides how much the tools can remember, and which of the two decoders of
/// deflate runs; see `agree`.
fn check_finds(commands: &ImageCommands<'_>, extraction: &Extraction) -> Result<(), Fault> {
    let is_limit_of_target = extraction.says(&["attribute", "owner", "File too large"]);
    if extraction.ended.code == 0 || extraction.is_limited() || is_limit_of_target {
        return Ok(());
    }
    let Call { budget, threads, .. } = extraction.call;
    let checked = commands.run(&Call { budget, threads, ..Call::new("check", &["--json"]) })?;
    require!(checked.code != 0, Failed, "check finds nothing, but extract does: {}", extraction.findings);
    Ok(())
}

/// Checks that two extractions with other budgets and numbers of threads have the same result.
fn agree(first: &Extraction, second: &Extraction) -> Result<(), Fault> {
    let codes = [first.ended.code, second.ended.code];
    if codes.contains(&2) || first.is_limited() || second.is_limited() {
        return Ok(());
    }
    // The budget decides which library decodes deflate, and they do not refuse the same streams. So a file may
    // exist in one extraction only, and so may its further names.
    let undecoded = [first.reported(UNDECODED), second.reported(UNDECODED)];
    let disputed: BTreeSet<_> = undecoded[0].symmetric_difference(&undecoded[1]).cloned().collect();
    let names = &first.reported(FURTHER_NAME) | &second.reported(FURTHER_NAME);
    // The time of a reported file may not have been set.
    let reported = first.reported("");
    let comparable = |scan: &Scan| {
        let mut scan = scan.clone();
        if !disputed.is_empty() {
            scan.entries.retain(|path, _| !disputed.contains(path) && !names.contains(path));
            let ignored = ["names", "first name"];
            scan.entries
                .values_mut()
                .for_each(|entry| entry.retain(|name, _| !ignored.contains(&name.as_str())));
        }
        reported.iter().for_each(|path| _ = scan.entries.get_mut(path).map(|entry| entry.remove("mtime")));
        scan
    };
    let lines = [&first.ended.line[..], &second.ended.line].join("\n");
    let is_same = codes[0] == codes[1] || !disputed.is_empty();
    let findings = [&first.findings, &second.findings];
    require!(is_same, Contents, "two extractions end with {codes:?}: {findings:?}\n{lines}");
    let difference = difference(&comparable(&first.scan), &comparable(&second.scan));
    require!(difference.is_none(), Contents, "two extractions differ: {difference:?}\n{lines}");
    Ok(())
}

/// Runs one of the other commands, on paths that the image had before the damage.
fn run_other(commands: &ImageCommands<'_>, truth: &Scan, random: &mut Random) -> Result<(), Fault> {
    let paths: Vec<_> = truth.entries.keys().collect();
    let mut path = || {
        let path = paths[random.below(paths.len() as u64) as usize];
        OsString::from(OsStr::from_bytes(&[b"/", &path[..]].concat()))
    };
    let operands = vec![path(), path()];
    let most = MOST_BYTES[usize::from(random.percent(80))];
    let limit = format!("--max-bytes={most}");
    let (name, options, count): (_, &[&str], _) = match random.below(8) {
        0 | 1 => ("tar", &[&limit], 0),
        2 => ("ls", &["-lR"], 0),
        3 => ("ls", &["-R", "--json"], 0),
        4 => ("show", &["--json"], 0),
        5 => ("show", &[], 0),
        6 => ("show", &[], 1),
        _ => ("cat", &[&limit], 2),
    };
    let operands = operands.into_iter().take(count).collect();
    let ended = commands.run(&Call { operands, ..Call::draw(random, name, options) })?;
    let line = ended.line.clone();
    let codes: &[i32] = if count > 0 { &[0, 1, 2, 3, 6] } else { &[0, 1, 2, 6] };
    let len = fs::metadata(&ended.out).map_or(0, |meta| meta.len());
    ended.has_code(codes)?;
    let is_limited = options.contains(&limit.as_str());
    require!(!is_limited || len <= most, Failed, "{line}: {len} bytes of output");
    Ok(())
}

/// Mounts the image, and checks that the mount answers every request and agrees with the extraction.
fn mount(
    commands: &ImageCommands<'_>,
    extraction: &Extraction,
    is_clean: bool,
    random: &mut Random,
) -> Result<(), Fault> {
    let mount = match Mount::new(commands, random, None)? {
        Err(ended) => return ended.has_code(&[1, 2, 6]).map(drop),
        Ok(mount) => mount,
    };
    let walked = scan(&mount.point);
    if is_clean && extraction.ended.code == 0 && !walked.is_cut {
        let names = |scan: &Scan| scan.entries.keys().cloned().collect::<Vec<_>>();
        let (found, made) = (unprivileged(&walked), unprivileged(&extraction.scan));
        let is_same = names(&found) == names(&made) && found.errors.is_empty();
        require!(is_same, Contents, "mount and extraction: {:?}", difference(&made, &found));
    }
    let mut readable = extraction.scan.clone();
    let reported = extraction.reported("");
    let is_ambiguous = |path: &[u8]| reported.iter().any(|reported| path.starts_with(reported));
    readable.entries.retain(|path, entry| !entry.contains_key("error") && !is_ambiguous(path));
    let mut compared = Scan::default();
    for (path, entry) in &readable.entries {
        if agrees(&mount.point, path, entry, is_clean)? {
            compared.entries.insert(path.clone(), entry.clone());
        }
    }
    mount.read_at_random(&compared, &extraction.dir, 10, Allowed::Io, random.next())?;
    mount.check_memory()?;
    mount.end(random)
}

/// Compares a file of the mount with the extracted file. Returns whether the file can be read.
fn agrees(point: &Path, path: &[u8], entry: &Entry, is_clean: bool) -> Result<bool, Fault> {
    let mut pair = match scan::read_entry(&point.join(OsStr::from_bytes(path))) {
        // In a directory that is not sorted, lookup of a listed name may fail.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) && !is_clean => return Ok(false),
        Err(error) => return Err(Fault::failed(format!("/{} of the mount", path.escape_ascii()), error)),
        Ok((found, _)) => [entry.clone(), found],
    };
    // The mount may decode with another library than the extraction; see `agree`.
    let eio = std::io::Error::from_raw_os_error(libc::EIO).to_string();
    let is_eio = pair[1].get("error") == Some(&eio);
    if is_eio && !is_clean {
        return Ok(false);
    }
    // An access control list contains permissions too, and those that are set last count. The kernel chooses the
    // permissions of a symbolic link.
    let has_other_mode = kind(entry) == SYMLINK || entry.contains_key("attribute system.posix_acl_access");
    let mask = if has_other_mode { 0o170_000 } else { 0o170_777 };
    for entry in &mut pair {
        // The extraction has reported names, owners and attributes that it could not make.
        entry.retain(|name, _| ["mode", "device", "size", "contents", "error"].contains(&name.as_str()));
        set_mode(entry, |mode| mode & mask);
    }
    let difference = scan::field_difference(&pair[0], &pair[1]);
    let path = path.escape_ascii();
    require!(difference.is_none(), Contents, "/{path} of the mount, and the extracted file: {difference:?}");
    Ok(true)
}
