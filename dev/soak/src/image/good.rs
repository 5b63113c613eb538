//! Reads an intact image in every way: each must return exactly the contents of the image.

use super::build::Built;
use super::commands::{Call, CommandRunner};
use super::config::{Config, draw_budget, draw_threads};
use super::mounted::{self, Mounted, RandomReads};
use super::scan::{Entry, RequestSlot, Scan, difference, scan};
use crate::process;
use crate::random::Random;
use crate::verdict::{Fault, FaultKind};
use crate::watchdog::RequestWatch;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit of tar and of `image unmount`.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// User id for commands that an ordinary user runs.
const USER: u32 = 65_534;

/// The true contents of an image.
pub struct Truth {
    /// A scan of all contents.
    pub scan: Scan,
    /// A folder with the same files.
    pub dir: PathBuf,
}

/// Reads an intact image in every way.
pub fn read(
    config: &Config,
    runner: &CommandRunner<'_>,
    built: &Built,
    watch: &RequestWatch,
) -> Result<Truth, Fault> {
    let mut random = Random::new(config.read_seed);
    let random = &mut random;
    let least = runner.least_budget()?;
    let mut reader = Reader { runner, least, random };
    reader.check()?;
    let privileged = reader.extract(true)?;
    let extracted = scan(&privileged, RequestSlot(None));
    let truth = match &built.expected {
        Some(expected) => {
            compare("extract --privileged", expected, &extracted)?;
            Truth { scan: expected.clone(), dir: runner.context.path("tree") }
        }
        None => Truth { scan: extracted, dir: privileged.clone() },
    };
    let plain = reader.extract(false)?;
    compare("extract", &unprivileged(&truth.scan), &scan(&plain, RequestSlot(None)))?;
    remove_tree(&plain)?;
    reader.tar(&truth.scan)?;
    reader.list(&truth.scan)?;
    reader.some_files(&truth)?;
    reader.as_user(&truth.scan)?;
    if built.expected.is_some() {
        remove_tree(&privileged)?;
    }
    reader.mount(config, &truth, watch)?;
    if reader.random.percent(30) {
        reader.by_kernel(&truth.scan, watch)?;
    }
    Ok(truth)
}

/// Returns a fault if a tree differs from the expected one.
pub fn compare(what: &str, expected: &Scan, found: &Scan) -> Result<(), Fault> {
    match difference(expected, found) {
        None => Ok(()),
        Some(difference) => Err(Fault::new(FaultKind::Contents, format!("{what}: {difference}"))),
    }
}

/// Removes a tree that is not needed any more.
pub fn remove_tree(dir: &Path) -> Result<(), Fault> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Fault::failed(format!("removing {}", dir.display()), e))
        }
        _ => Ok(()),
    }
}

/// The tree as an extraction without `--privileged` makes it: no devices, set-id bits and privileged attributes.
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
    runner: &'a CommandRunner<'a>,
    least: u64,
    random: &'a mut Random,
}

impl Reader<'_> {
    /// Draws a budget; the smallest one is common.
    fn budget(&mut self) -> u64 {
        draw_budget(self.random).max(self.least)
    }

    fn call(&mut self, subcommand: &'static str, options: &[&str]) -> Call {
        let options = options.iter().map(|option| option.to_string()).collect();
        Call { subcommand, budget: self.budget(), options, ..Call::default() }
    }

    fn check(&mut self) -> Result<(), Fault> {
        let threads = Some(draw_threads(self.random));
        let found = self.runner.run(&Call { threads, ..self.call("check", &["--json"]) })?.ok()?.json()?;
        if found["complete"] != true || found["errors"] != 0 {
            return Err(Fault::failed("check of a good image", found));
        }
        Ok(())
    }

    fn extract(&mut self, privileged: bool) -> Result<PathBuf, Fault> {
        let dir = self.runner.dir.join(if privileged { "privileged" } else { "plain" });
        let options: &[&str] = if privileged { &["--privileged"] } else { &[] };
        let threads = Some(draw_threads(self.random));
        let operands = vec![dir.clone().into()];
        self.runner.run(&Call { threads, operands, ..self.call("extract", options) })?.ok()?;
        Ok(dir)
    }

    /// Checks an archive by extracting it with GNU tar.
    fn tar(&mut self, expected: &Scan) -> Result<(), Fault> {
        let call = self.call("tar", &[]);
        let archive = self.runner.run(&call)?.ok()?.out;
        let dir = self.runner.dir.join("untarred");
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
        process::run(self.runner.context, "tar", &args, COMMAND_LIMIT)?.ok()?;
        // A tar archive cannot contain sockets; the command reports each of them.
        let mut expected = expected.clone();
        expected.entries.retain(|_, entry| entry.mode & 0o170_000 != 0o140_000);
        compare("tar", &expected, &scan(&dir, RequestSlot(None)))?;
        remove_tree(&dir)?;
        fs::remove_file(archive).map_err(|e| Fault::failed("removing an archive", e))
    }

    /// Compares the output of `ls` with the tree, and runs `show`.
    fn list(&mut self, expected: &Scan) -> Result<(), Fault> {
        let call = self.call("ls", &["-R", "--json"]);
        let document = self.runner.run(&call)?.ok()?.json()?;
        let mut count = 0;
        for value in document["entries"].as_array().into_iter().flatten() {
            let Some(entry) = expected.entries.get(&path_of(value)) else {
                return Err(Fault::new(FaultKind::Contents, format!("ls has {value}")));
            };
            if !is_as_listed(entry, value) {
                let message = format!("ls has {value}, and there is {entry:?}");
                return Err(Fault::new(FaultKind::Contents, message));
            }
            count += 1;
        }
        if count != expected.entries.len() {
            let message = format!("ls has {count} files and not {}", expected.entries.len());
            return Err(Fault::new(FaultKind::Contents, message));
        }
        let call = self.call("ls", &["-lR"]);
        let lines = self.runner.run(&call)?.ok()?;
        let lines = fs::read(&lines.out).unwrap_or_default();
        if lines.iter().filter(|b| **b == b'\n').count() < count {
            return Err(Fault::new(FaultKind::Contents, "ls -lR has less than a line for each file"));
        }
        for options in [&[][..], &["--json"]] {
            let call = self.call("show", options);
            self.runner.run(&call)?.ok()?;
        }
        Ok(())
    }

    /// Compares some files with the output of `cat`, several at once, and runs `show` on them.
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
            let operands: Vec<OsString> =
                drawn.iter().map(|path| OsStr::from_bytes(&[b"/", &path[..]].concat()).into()).collect();
            let call = Call { operands: operands.clone(), ..self.call("cat", &[]) };
            let completed = self.runner.run(&call)?.ok()?;
            let found = fs::read(&completed.out).unwrap_or_default();
            let mut expected = Vec::new();
            for path in &drawn {
                let path = truth.dir.join(OsStr::from_bytes(path));
                expected.extend(fs::read(&path).map_err(|e| Fault::failed(path.display(), e))?);
            }
            if found != expected {
                let message = format!("{}: the bytes differ", completed.line);
                return Err(Fault::new(FaultKind::Contents, message));
            }
            let json: &[&str] = if self.random.percent(50) { &["--json"] } else { &[] };
            let call = Call { operands: operands[..1].to_vec(), ..self.call("show", json) };
            self.runner.run(&call)?.ok()?;
        }
        Ok(())
    }

    /// Checks and extracts the image as an ordinary user, who then owns all extracted files.
    fn as_user(&mut self, expected: &Scan) -> Result<(), Fault> {
        let failed = |e| Fault::failed("making a folder for a user", e);
        let dir = self.runner.dir.join("user");
        fs::create_dir(&dir).map_err(failed)?;
        chown(&dir, Some(USER), Some(USER)).map_err(failed)?;
        let copy = |path: &PathBuf| {
            let to = dir.join(path.file_name().unwrap_or_default());
            fs::copy(path, &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
            Ok(to)
        };
        let image = copy(&self.runner.image).map_err(failed)?;
        let devices = self.runner.devices.iter().map(copy).collect::<std::io::Result<_>>().map_err(failed)?;
        let runner = CommandRunner::new(self.runner.context, dir.clone(), image, devices);
        let check = Call { as_user: true, ..self.call("check", &[]) };
        runner.run(&check)?.ok()?;
        let call = Call { as_user: true, operands: vec!["out".into()], ..self.call("extract", &[]) };
        runner.run(&call)?.ok()?;
        let mut expected = unprivileged(expected);
        expected.entries.values_mut().for_each(|entry| entry.owner = (USER, USER));
        compare("extract as a user", &expected, &scan(&dir.join("out"), RequestSlot(None)))?;
        remove_tree(&dir)
    }

    /// Mounts the image and reads the mount. If the drawn budget is too small, the mount gets the smallest one that
    /// it reports.
    fn mount(&mut self, config: &Config, truth: &Truth, watch: &RequestWatch) -> Result<(), Fault> {
        let budget = self.budget();
        let mut mounted = Mounted::new(self.runner, self.random, budget)?;
        if let Err(completed) = &mounted
            && let Some(needed) = completed.needed_budget()
        {
            mounted = Mounted::new(self.runner, self.random, needed)?;
        }
        let mounted = mounted.map_err(|completed| Fault::failed(completed.line, completed.err))?;
        compare("the mount", &truth.scan, &mounted::walk(&mounted, watch))?;
        let seed = self.random.next();
        let reads =
            RandomReads { expected: &truth.scan, truth: &truth.dir, count: 60, seed, is_damaged: false };
        mounted.read_at_random(&reads, watch)?;
        mounted.check_memory()?;
        mounted.check_rest()?;
        mounted.end(config.ending)
    }

    /// Mounts the image with the kernel's EROFS, if the kernel has it.
    fn by_kernel(&mut self, expected: &Scan, watch: &RequestWatch) -> Result<(), Fault> {
        let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !systems.lines().any(|line| line.ends_with("\terofs")) {
            return Ok(());
        }
        let point = self.runner.dir.join("at");
        let call = Call { operands: vec![point.clone().into()], ..self.call("mount", &["--kernel"]) };
        let completed = self.runner.run(&call)?;
        if completed.code != 0 {
            // The kernel does not support all features of images; the command reports the reason.
            println!("the kernel does not mount it: {}", completed.err.trim_end());
            return Ok(());
        }
        let found = scan(&point, RequestSlot(Some((watch, mounted::READERS))));
        let text = point.display().to_string();
        let program = &self.runner.context.settings.program;
        process::run(self.runner.context, program, &["image", "unmount", &text], COMMAND_LIMIT)?.ok()?;
        compare("the kernel's mount", expected, &found)
    }
}

/// The path in a JSON object, without the slash at its beginning.
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
