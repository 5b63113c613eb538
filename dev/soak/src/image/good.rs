//! Reads an intact image in every way: each must return exactly the contents of the image. And interrupts commands.

use super::commands::{Call, ImageCommands, needed_budget, remove_tree};
use super::mount::{Allowed, Mount};
use crate::load::scan::{Entry, REGULAR, Scan, compare, kind, scan};
use crate::process;
use crate::random::Random;
use crate::verdict::{Fault, OrFault, require};
use crate::watchdog::ANSWER;
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

/// User id for commands that an ordinary user runs.
const USER: u32 = 65_534;

/// Reads the intact image of the tree `root`, whose contents are `expected`, in every way.
pub fn read(
    commands: &ImageCommands<'_>,
    root: &Path,
    expected: &Scan,
    random: &mut Random,
) -> Result<(), Fault> {
    let mut reader = Reader { commands, root, expected, random };
    let found = reader.run("check", &["--json"], &[])?.json()?;
    let is_good = found["complete"] == true && found["errors"] == 0;
    require!(is_good, Failed, "check of a good image: {found}");
    reader.extract(&["--privileged"], expected)?;
    reader.extract(&[], &unprivileged(expected))?;
    reader.tar()?;
    reader.list()?;
    reader.some_files()?;
    reader.as_user()?;
    reader.mount()?;
    if reader.random.percent(30) {
        reader.by_kernel()?;
    }
    Ok(())
}

/// The tree as an extraction without `--privileged` makes it: no devices, set-id bits and privileged attributes.
pub fn unprivileged(scan: &Scan) -> Scan {
    let mut scan = scan.clone();
    scan.entries.retain(|_, entry| !["02", "06"].contains(&kind(entry)));
    for entry in scan.entries.values_mut() {
        let privileged = ["attribute security.", "attribute trusted."];
        entry.retain(|name, _| !privileged.iter().any(|prefix| name.starts_with(prefix)));
        set_mode(entry, |mode| mode & !0o6000);
    }
    scan
}

/// Changes the mode of an entry.
pub fn set_mode(entry: &mut Entry, change: impl Fn(u32) -> u32) {
    if let Some(mode) = entry.get_mut("mode") {
        *mode = format!("{:06o}", change(u32::from_str_radix(mode, 8).unwrap_or(0)));
    }
}

/// The path in a JSON object, without the slash at its beginning.
pub fn path_of(value: &Value) -> Vec<u8> {
    let path = match value["path_hex"].as_str() {
        Some(digits) => {
            let digits = digits.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
            digits.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
        }
        None => value["path"].as_str().unwrap_or_default().as_bytes().to_vec(),
    };
    path.strip_prefix(b"/").unwrap_or(&path).to_vec()
}

struct Reader<'a> {
    commands: &'a ImageCommands<'a>,
    root: &'a Path,
    expected: &'a Scan,
    random: &'a mut Random,
}

impl Reader<'_> {
    /// Runs a command with a drawn budget. If that is too small, the command must succeed with the one that it names.
    fn run_call(&mut self, commands: &ImageCommands<'_>, call: Call) -> Result<process::Ended, Fault> {
        let ended = commands.run(&call)?;
        match needed_budget(&ended) {
            Some(budget) => commands.run(&Call { budget, ..call })?.ok(),
            None => ended.ok(),
        }
    }

    fn run(
        &mut self,
        name: &'static str,
        options: &[&str],
        operands: &[OsString],
    ) -> Result<process::Ended, Fault> {
        let call = Call { operands: operands.to_vec(), ..Call::draw(self.random, name, options) };
        self.run_call(self.commands, call)
    }

    fn extract(&mut self, options: &[&str], expected: &Scan) -> Result<(), Fault> {
        let dir = self.commands.dir.join("extracted");
        self.run("extract", options, &[dir.clone().into()])?;
        compare(&format!("extract {options:?}"), expected, &scan(&dir))?;
        remove_tree(&dir)
    }

    /// Checks an archive by extracting it with GNU tar.
    fn tar(&mut self) -> Result<(), Fault> {
        let archive = self.run("tar", &[], &[])?;
        let dir = self.commands.dir.join("untarred");
        fs::create_dir(&dir).or_fault("making a folder")?;
        let (from, to) = (archive.out.display(), dir.display());
        let line = format!("--numeric-owner --acls --xattrs --xattrs-include=* -xpf {from} -C {to}");
        let args: Vec<_> = line.split(' ').chain(["--warning=no-timestamp"]).collect();
        process::run(self.commands.context, "tar", &args, ANSWER)?.ok()?;
        // A tar archive cannot contain sockets; the command reports each of them.
        let mut expected = self.expected.clone();
        expected.entries.retain(|_, entry| kind(entry) != "14");
        compare("tar", &expected, &scan(&dir))?;
        remove_tree(&dir)
    }

    /// Compares the output of `ls` with the tree, and runs `show`.
    fn list(&mut self) -> Result<(), Fault> {
        let document = self.run("ls", &["-R", "--json"], &[])?.json()?;
        let listed = document["entries"].as_array().map_or(&[][..], |entries| entries);
        for value in listed {
            let entry = self.expected.entries.get(&path_of(value)).cloned().unwrap_or_default();
            let has = |name: &str, value: String| entry.get(name).is_none_or(|known| *known == value);
            let is_right = entry.get("mode").map(String::as_str) == value["mode"].as_str()
                && has("owner", format!("{} {}", value["uid"], value["gid"]))
                && has("mtime", format!("{} {}", value["mtime_s"], value["mtime_ns"]))
                && has("size", value["size_bytes"].to_string());
            require!(is_right, Contents, "ls has {value}, and there is {entry:?}");
        }
        let (found, count) = (listed.len(), self.expected.entries.len());
        require!(found == count, Contents, "ls has {found} files and not {count}");
        let lines = self.run("ls", &["-lR"], &[])?.text().lines().count();
        require!(lines >= count, Contents, "ls -lR has {lines} lines for {count} files");
        self.run("show", &[], &[])?;
        self.run("show", &["--json"], &[])?.json().map(drop)
    }

    /// Compares some files with the output of `cat`, several at once, and runs `show` on them.
    fn some_files(&mut self) -> Result<(), Fault> {
        let entries = self.expected.entries.iter();
        let files: Vec<_> = entries.filter(|(_, e)| kind(e) == REGULAR).map(|(path, _)| path).collect();
        for _ in 0..if files.is_empty() { 0 } else { 3 } {
            let mut drawn = Vec::new();
            for _ in 0..self.random.between(1, 4) {
                drawn.push(OsStr::from_bytes(files[self.random.below(files.len() as u64) as usize]));
            }
            let read = drawn.iter().map(|path| fs::read(self.root.join(path)));
            let expected = read.collect::<Result<Vec<_>, _>>().or_fault("reading the tree")?.concat();
            let operands: Vec<OsString> =
                drawn.iter().map(|path| Path::new("/").join(path).into_os_string()).collect();
            let ended = self.run("cat", &[], &operands)?;
            let found = fs::read(&ended.out).unwrap_or_default();
            require!(found == expected, Contents, "{}: the bytes differ", ended.line);
            self.run("show", &["--json"], &operands[..1])?.json()?;
        }
        Ok(())
    }

    /// Checks and extracts the image as an ordinary user, who then owns all extracted files.
    fn as_user(&mut self) -> Result<(), Fault> {
        let dir = self.commands.dir.join("user");
        let commands = ImageCommands::new(self.commands.context, dir.clone());
        let make = fs::create_dir(&dir)
            .and_then(|()| chown(&dir, Some(USER), Some(USER)))
            .and_then(|()| fs::copy(&self.commands.image, &commands.image))
            .and_then(|_| fs::set_permissions(&commands.image, fs::Permissions::from_mode(0o644)));
        make.or_fault("making a folder for a user")?;
        let check = Call { as_user: true, ..Call::draw(self.random, "check", &[]) };
        self.run_call(&commands, check)?;
        let operands = vec!["out".into()];
        let extract = Call { as_user: true, operands, ..Call::draw(self.random, "extract", &[]) };
        self.run_call(&commands, extract)?;
        let mut expected = unprivileged(self.expected);
        let owner = format!("{USER} {USER}");
        expected.entries.values_mut().for_each(|entry| _ = entry.insert("owner".into(), owner.clone()));
        compare("extract as a user", &expected, &scan(&dir.join("out")))?;
        remove_tree(&dir)
    }

    /// Mounts the image and reads the mount; and again, with a server that is killed.
    fn mount(&mut self) -> Result<(), Fault> {
        let mount = mounted(self.commands, self.random)?;
        compare("the mount", self.expected, &scan(&mount.point))?;
        let seed = self.random.next();
        mount.read_at_random(self.expected, self.root, 60, Allowed::None, seed)?;
        mount.check_memory()?;
        mount.check_rest()?;
        mount.end(self.random)?;
        mounted(self.commands, self.random)?.kill(self.expected, self.root, self.random)
    }

    /// Mounts the image with the kernel's EROFS, if the kernel has it.
    fn by_kernel(&mut self) -> Result<(), Fault> {
        let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !systems.lines().any(|line| line.ends_with("\terofs")) {
            return Ok(());
        }
        let point = self.commands.dir.join("at");
        let call =
            Call { operands: vec![point.clone().into()], ..Call::draw(self.random, "mount", &["--kernel"]) };
        let ended = self.commands.run(&call)?;
        if ended.code != 0 {
            // The kernel does not support all features of images; the command reports the reason.
            println!("the kernel does not mount it: {}", ended.err.trim_end());
            return Ok(());
        }
        let (found, text, context) = (scan(&point), point.display().to_string(), self.commands.context);
        process::run(context, &context.program, &["image", "unmount", &text], ANSWER)?.ok()?;
        compare("the kernel's mount", self.expected, &found)
    }
}

/// Mounts an intact image. If the drawn budget is too small, the mount gets the smallest one that it reports.
fn mounted<'a>(commands: &'a ImageCommands<'a>, random: &mut Random) -> Result<Mount<'a>, Fault> {
    let mounted = match Mount::new(commands, random, None)? {
        Err(ended) if needed_budget(&ended).is_some() => Mount::new(commands, random, needed_budget(&ended))?,
        mounted => mounted,
    };
    mounted.map_err(|ended| Fault::failed(&ended.line, &ended.err))
}

const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::KILL];

/// Interrupts a build, which took so long before, at a random time. The image stays until the next one is complete, which
/// is the same.
pub fn interrupt_build(
    commands: &ImageCommands<'_>,
    root: &Path,
    options: &[&str],
    took: Duration,
    random: &mut Random,
) -> Result<(), Fault> {
    let before = fs::read(&commands.image).or_fault("reading the image")?;
    let after = Duration::from_micros(random.below(took.as_micros() as u64));
    let signal = random.pick(&SIGNALS);
    commands.build(root, options, Some((after, signal)))?;
    let is_same = fs::read(&commands.image).is_ok_and(|image| image == before);
    require!(is_same, Contents, "the image has changed by a build that got {signal:?} after {after:?}");
    let left = fs::read_dir(&commands.dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name != "image" && name != "at").collect();
    // A killed build leaves its temporary file.
    let is_clean = left.len() <= usize::from(signal == Signal::KILL);
    require!(is_clean, Leftover, "a build that got {signal:?} leaves {left:?}");
    Ok(())
}

/// Interrupts an extraction at a random time. It leaves no part of a file, and succeeds afterwards.
pub fn interrupt_extraction(
    commands: &ImageCommands<'_>,
    expected: &Scan,
    random: &mut Random,
) -> Result<(), Fault> {
    let (dir, signal) = (commands.dir.join("extracted"), random.pick(&SIGNALS));
    let operands = vec![dir.clone().into()];
    let whole = Call { budget: 64 << 20, operands, ..Call::new("extract", &["--privileged"]) };
    let after = Duration::from_micros(random.doubling(100, 100_000));
    commands.run(&Call { signal: Some((after, signal)), ..whole.clone() })?;
    if signal != Signal::KILL && dir.exists() {
        for (path, found) in scan(&dir).entries.iter().filter(|(_, entry)| kind(entry) == REGULAR) {
            let made = expected.entries.get(path).and_then(|entry| entry.get("contents"));
            let path = path.escape_ascii();
            require!(made == found.get("contents"), Contents, "{signal:?} leaves a part of /{path}");
        }
    }
    remove_tree(&dir)?;
    commands.run(&whole)?.ok()?;
    compare("extract after an interruption", expected, &scan(&dir))?;
    remove_tree(&dir)
}
