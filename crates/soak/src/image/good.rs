//! An image as it was built, read in every way: each must give exactly what is in it.

use super::bench::{Bench, Call};
use super::build::Built;
use super::config::{Config, draw_budget, draw_jobs};
use super::mounted::{self, Mounted, Pieces};
use super::scan::{Entry, Noted, Scan, difference, scan};
use crate::load::watch::Watch;
use crate::part::{Fault, FaultKind};
use crate::process;
use crate::random::Random;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long tar may take.
const UNPACKING: Duration = Duration::from_secs(60);
/// The ordinary user as whom commands run.
const USER: u32 = 65_534;

/// What an image holds, and files that hold the same.
pub struct Truth {
    /// Of all of it.
    pub scan: Scan,
    /// Where the files are.
    pub dir: PathBuf,
}

/// Reads a good image in every way.
pub fn read(config: &Config, bench: &Bench<'_>, built: &Built, watch: &Watch) -> Result<Truth, Fault> {
    let mut random = Random::new(config.read_seed);
    let random = &mut random;
    let least = bench.least_budget()?;
    let mut reader = Reader { bench, least, random };
    reader.check()?;
    let privileged = reader.extract(true)?;
    let extracted = scan(&privileged, Noted(None));
    let truth = match &built.expected {
        Some(expected) => {
            same("extract --privileged", expected, &extracted)?;
            Truth { scan: expected.clone(), dir: bench.context.path("tree") }
        }
        None => Truth { scan: extracted, dir: privileged.clone() },
    };
    let plain = reader.extract(false)?;
    same("extract", &unprivileged(&truth.scan), &scan(&plain, Noted(None)))?;
    clear(&plain)?;
    reader.tar(&truth.scan)?;
    reader.list(&truth.scan)?;
    reader.some_files(&truth)?;
    reader.as_user(&truth.scan)?;
    if built.expected.is_some() {
        clear(&privileged)?;
    }
    reader.mount(config, &truth, watch)?;
    if reader.random.percent(30) {
        reader.by_kernel(&truth.scan, watch)?;
    }
    Ok(truth)
}

/// A fault if a tree is not what it should be.
pub fn same(what: &str, expected: &Scan, found: &Scan) -> Result<(), Fault> {
    match difference(expected, found) {
        None => Ok(()),
        Some(difference) => Err(Fault::new(FaultKind::Contents, format!("{what}: {difference}"))),
    }
}

/// Removes a tree that is not needed any more.
pub fn clear(dir: &Path) -> Result<(), Fault> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Fault::failed(format!("removing {}", dir.display()), e))
        }
        _ => Ok(()),
    }
}

/// What is left of a tree without what could give somebody power.
pub fn unprivileged(scan: &Scan) -> Scan {
    let is_device = |entry: &Entry| [0o020_000, 0o060_000].contains(&(entry.mode & 0o170_000));
    let mut scan = scan.clone();
    scan.entries.retain(|_, entry| !is_device(entry));
    for entry in scan.entries.values_mut() {
        entry.mode &= !0o6000;
        if let Ok(xattrs) = &mut entry.xattrs {
            xattrs.retain(|name, _| !name.starts_with(b"security.") && !name.starts_with(b"trusted."));
        }
    }
    scan
}

struct Reader<'a> {
    bench: &'a Bench<'a>,
    least: u64,
    random: &'a mut Random,
}

impl Reader<'_> {
    /// The least budget is common.
    fn budget(&mut self) -> u64 {
        draw_budget(self.random).max(self.least)
    }

    fn call(&mut self, verb: &'static str, options: &[&str]) -> Call {
        let options = options.iter().map(|option| option.to_string()).collect();
        Call { verb, budget: self.budget(), options, ..Call::default() }
    }

    fn check(&mut self) -> Result<(), Fault> {
        let jobs = Some(draw_jobs(self.random));
        let found = self.bench.run(&Call { jobs, ..self.call("check", &["--json"]) })?.ok()?.json()?;
        if found["complete"] != true || found["errors"] != 0 {
            return Err(Fault::failed("check of a good image", found));
        }
        Ok(())
    }

    fn extract(&mut self, privileged: bool) -> Result<PathBuf, Fault> {
        let dir = self.bench.dir.join(if privileged { "privileged" } else { "plain" });
        let options: &[&str] = if privileged { &["--privileged"] } else { &[] };
        let jobs = Some(draw_jobs(self.random));
        let behind = vec![dir.clone().into()];
        self.bench.run(&Call { jobs, behind, ..self.call("extract", options) })?.ok()?;
        Ok(dir)
    }

    /// An archive, taken apart by GNU tar.
    fn tar(&mut self, expected: &Scan) -> Result<(), Fault> {
        let call = self.call("extract", &["--tar"]);
        let archive = self.bench.run(&call)?.ok()?.out;
        let dir = self.bench.dir.join("untarred");
        fs::create_dir(&dir).map_err(|e| Fault::failed("making a folder", e))?;
        let (from, to) = (archive.display().to_string(), dir.display().to_string());
        let args = [
            "--numeric-owner",
            "--acls",
            "--xattrs",
            "--xattrs-include=*",
            "-xpf",
            &from,
            "-C",
            &to,
            "--warning=no-timestamp",
        ];
        process::run(self.bench.context, "tar", &args, UNPACKING)?.ok()?;
        // The command says of each socket that an archive cannot hold it.
        let mut expected = expected.clone();
        expected.entries.retain(|_, entry| entry.mode & 0o170_000 != 0o140_000);
        same("extract --tar", &expected, &scan(&dir, Noted(None)))?;
        clear(&dir)?;
        fs::remove_file(archive).map_err(|e| Fault::failed("removing an archive", e))
    }

    /// What `list` and `show` say of the tree.
    fn list(&mut self, expected: &Scan) -> Result<(), Fault> {
        let call = self.call("list", &["-R", "--json"]);
        let text = self.bench.run(&call)?.ok()?.text();
        let mut count = 0;
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).map_err(|e| Fault::failed("list --json", e))?;
            let path = path_of(&value);
            let Some(entry) = expected.entries.get(&path) else {
                return Err(Fault::new(FaultKind::Contents, format!("list has {line}")));
            };
            if !is_as_listed(entry, &value) {
                return Err(Fault::new(
                    FaultKind::Contents,
                    format!("list has {line}, and there is {entry:?}"),
                ));
            }
            count += 1;
        }
        if count != expected.entries.len() {
            let message = format!("list has {count} files and not {}", expected.entries.len());
            return Err(Fault::new(FaultKind::Contents, message));
        }
        let call = self.call("list", &["-lR"]);
        let lines = self.bench.run(&call)?.ok()?;
        let lines = fs::read(&lines.out).unwrap_or_default();
        if lines.iter().filter(|b| **b == b'\n').count() < count {
            return Err(Fault::new(FaultKind::Contents, "list -lR has less than a line for each file"));
        }
        for options in [&[][..], &["--json"]] {
            let call = self.call("show", options);
            self.bench.run(&call)?.ok()?;
        }
        Ok(())
    }

    /// Some files by `cat` and `show`, several at once.
    fn some_files(&mut self, truth: &Truth) -> Result<(), Fault> {
        let files: Vec<_> =
            truth.scan.entries.iter().filter(|(_, e)| e.mode & 0o170_000 == 0o100_000).collect();
        if files.is_empty() {
            return Ok(());
        }
        for _ in 0..3 {
            let mut drawn = Vec::new();
            for _ in 0..self.random.between(1, 4) {
                drawn.push(files[self.random.below(files.len() as u64) as usize].0);
            }
            let behind: Vec<OsString> =
                drawn.iter().map(|path| OsStr::from_bytes(&[b"/", &path[..]].concat()).into()).collect();
            let call = Call { behind: behind.clone(), ..self.call("cat", &[]) };
            let ended = self.bench.run(&call)?.ok()?;
            let found = fs::read(&ended.out).unwrap_or_default();
            let mut expected = Vec::new();
            for path in &drawn {
                let path = truth.dir.join(OsStr::from_bytes(path));
                expected.extend(fs::read(&path).map_err(|e| Fault::failed(path.display(), e))?);
            }
            if found != expected {
                let message = format!("{}: the bytes differ", ended.line);
                return Err(Fault::new(FaultKind::Contents, message));
            }
            let json: &[&str] = if self.random.percent(50) { &["--json"] } else { &[] };
            let call = Call { behind: behind[..1].to_vec(), ..self.call("show", json) };
            self.bench.run(&call)?.ok()?;
        }
        Ok(())
    }

    /// The same as an ordinary user, to whom all that is extracted belongs.
    fn as_user(&mut self, expected: &Scan) -> Result<(), Fault> {
        let failed = |e| Fault::failed("making a folder for a user", e);
        let dir = self.bench.dir.join("user");
        fs::create_dir(&dir).map_err(failed)?;
        chown(&dir, Some(USER), Some(USER)).map_err(failed)?;
        let copy = |path: &PathBuf| {
            let to = dir.join(path.file_name().unwrap_or_default());
            fs::copy(path, &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
            Ok(to)
        };
        let image = copy(&self.bench.image).map_err(failed)?;
        let devices = self.bench.devices.iter().map(copy).collect::<std::io::Result<_>>().map_err(failed)?;
        let bench = Bench::new(self.bench.context, dir.clone(), image, devices);
        let check = Call { as_user: true, ..self.call("check", &[]) };
        bench.run(&check)?.ok()?;
        let call = Call { as_user: true, behind: vec!["out".into()], ..self.call("extract", &[]) };
        bench.run(&call)?.ok()?;
        let mut expected = unprivileged(expected);
        expected.entries.values_mut().for_each(|entry| entry.owner = (USER, USER));
        same("extract as a user", &expected, &scan(&dir.join("out"), Noted(None)))?;
        clear(&dir)
    }

    /// Mounted with a budget, which is the least if a smaller one was drawn: answers take memory too.
    fn mount(&mut self, config: &Config, truth: &Truth, watch: &Watch) -> Result<(), Fault> {
        let budget = self.budget();
        let mut mounted = Mounted::new(self.bench, self.random, budget)?;
        if let Err(ended) = &mounted
            && let Some(needed) = ended.needed()
        {
            mounted = Mounted::new(self.bench, self.random, needed)?;
        }
        let mounted = mounted.map_err(|ended| Fault::failed(ended.line, ended.err))?;
        same("the mount", &truth.scan, &mounted::walk(&mounted, watch))?;
        let seed = self.random.next();
        let pieces = Pieces { expected: &truth.scan, truth: &truth.dir, count: 60, seed, is_damaged: false };
        mounted.read_at_random(&pieces, watch)?;
        mounted.is_within_memory()?;
        mounted.is_idle()?;
        mounted.end(config.ending)
    }

    /// Mounted by the kernel's own EROFS, where there is one.
    fn by_kernel(&mut self, expected: &Scan, watch: &Watch) -> Result<(), Fault> {
        let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !systems.lines().any(|line| line.ends_with("\terofs")) {
            return Ok(());
        }
        let point = self.bench.dir.join("at");
        let call = Call { behind: vec![point.clone().into()], ..self.call("mount", &["--kernel"]) };
        let ended = self.bench.run(&call)?;
        if ended.code != 0 {
            // The kernel does not read all that images may have; the command says what.
            println!("the kernel does not mount it: {}", ended.err.trim_end());
            return Ok(());
        }
        let found = scan(&point, Noted(Some((watch, mounted::READERS))));
        let text = point.display().to_string();
        let program = &self.bench.context.settings.program;
        process::run(self.bench.context, program, &["image", "unmount", &text], UNPACKING)?.ok()?;
        same("the kernel's mount", expected, &found)
    }
}

/// The path in a line of JSON, without the slash at its beginning.
pub fn path_of(value: &Value) -> Vec<u8> {
    let path = match value["path_hex"].as_str() {
        Some(digits) => {
            let digit =
                |i: usize| digits.get(i..i + 2).and_then(|d| u8::from_str_radix(d, 16).ok()).unwrap_or(0);
            (0..digits.len()).step_by(2).map(digit).collect()
        }
        None => value["path"].as_str().unwrap_or_default().as_bytes().to_vec(),
    };
    path.strip_prefix(b"/").unwrap_or(&path).to_vec()
}

fn is_as_listed(entry: &Entry, value: &Value) -> bool {
    let is_file = [0o100_000, 0o120_000].contains(&(entry.mode & 0o170_000));
    let time = entry.mtime.is_none_or(|(s, ns)| value["mtime_s"] == s && value["mtime_ns"] == ns);
    time && value["mode"] == format!("{:06o}", entry.mode)
        && value["uid"] == entry.owner.0
        && value["gid"] == entry.owner.1
        && (!is_file || value["size_bytes"] == entry.size)
}
