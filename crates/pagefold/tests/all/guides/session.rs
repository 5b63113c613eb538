//! Runs the commands of a document in one shell, in an empty folder with the image `app.erofs`.
//!
//! No command of a document names a block device, because the number of a free one varies: a reader who pastes the command
//! would overwrite another disk.

use super::markdown::{Block, Language, Step};
use super::{labels, shell};
use crate::support::{Sandbox, alone_with_swap, have, is_root, no_loop};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time that the commands of a document may take.
const LONGEST: Duration = Duration::from_secs(300);

/// The commands of a document, as one script.
#[derive(Default)]
pub struct Session {
    script: String,
    steps: Vec<Step>,
}

impl Session {
    /// The session of these blocks, without those that no test can run.
    pub fn new(name: &str, blocks: &[Block]) -> Result<Self, Vec<String>> {
        let mut session = Session::default();
        let mut faults = Vec::new();
        for block in blocks.iter().filter(|block| !block.no_run) {
            let added = match block.language {
                Language::Sh => {
                    session.add_script(name, block);
                    Ok(())
                }
                Language::Console => session.add_steps(name, block),
                _ => Ok(()),
            };
            faults.extend(added.err().map(|fault| format!("{name}: {fault}")));
        }
        if faults.is_empty() { Ok(session) } else { Err(faults) }
    }

    fn add_script(&mut self, name: &str, block: &Block) {
        let (script, line) = (block.code.join("\n"), block.line);
        let _ = writeln!(self.script, "echo 'line {line} of {name}' >\"$GUIDE/at\"\n{script}\n");
    }

    fn add_steps(&mut self, name: &str, block: &Block) -> Result<(), String> {
        for step in block.steps()? {
            let (line, command) = (step.line, &step.command);
            let out = format!("\"$GUIDE/{}.out\"", self.steps.len());
            let _ = writeln!(self.script, "echo 'line {line} of {name}' >\"$GUIDE/at\"");
            if step.sample.iter().any(|line| line.starts_with("pagefold: error:")) {
                let fail = "echo 'the sample shows an error, but the command succeeded' >&2; exit 1";
                let _ = writeln!(self.script, "if {{ {command}\n}} >{out} 2>&1; then {fail}; fi\n");
            } else {
                // The status is tested, because the shell ignores a failure before "&&".
                let test = "guide_status=$?; [ $guide_status = 0 ]";
                let _ = writeln!(self.script, "{{ {command}\n}} >{out} 2>&1\n{test}\n");
            }
            self.steps.push(step);
        }
        Ok(())
    }

    /// The reason that this machine or user cannot run the session.
    pub fn obstacle(&self) -> Option<String> {
        let commands = shell::commands(&self.script);
        let names = |names: &[&str]| commands.iter().any(|c| names.contains(&c[0].as_str()));
        if !is_root()
            && (self.steps.iter().any(|step| step.as_root) || names(&["mount", "losetup", "swapon"]))
        {
            return Some("needs root".into());
        }
        let runs: Vec<String> =
            commands.iter().filter_map(|c| shell::arguments(c)).map(|c| c.join(" ")).collect();
        let is_loop = |c: &String| c.starts_with("disk create") && !c.contains("nbd");
        if let Some(why) = no_loop().filter(|_| runs.iter().any(is_loop)) {
            return Some(why.into());
        }
        if runs.iter().any(|c| c.starts_with("image mount ")) && !Path::new("/dev/fuse").exists() {
            return Some("needs /dev/fuse".into());
        }
        let is_name = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let mut programs = commands.iter().map(|c| c[0].as_str()).filter(|name| is_name(name));
        let missing = programs.find(|name| *name != "pagefold" && !have(name) && !is_known_to_shell(name))?;
        Some(format!("needs {missing}"))
    }

    /// Runs the session. The error says where it stopped, or which labels of samples no longer exist.
    pub fn run(&self, sandbox: &Sandbox) -> Result<(), String> {
        let _alone = self.script.contains("swapon").then(alone_with_swap);
        let (guide, folder) = (sandbox.path("guide"), sandbox.path("folder"));
        fs::create_dir(&guide).unwrap();
        fs::create_dir(&folder).unwrap();
        let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/fixtures/app.erofs");
        fs::copy(image, folder.join("app.erofs")).unwrap();
        fs::write(guide.join("script"), format!("set -euo pipefail\n{}", self.script)).unwrap();
        let status = self.shell(sandbox, &guide, &folder);
        let read = |name: &str| fs::read_to_string(guide.join(name)).unwrap_or_default();
        if let Err(why) = status {
            let number = (0..self.steps.len()).rev().find(|n| guide.join(format!("{n}.out")).exists());
            let last = number.map(|n| read(&format!("{n}.out"))).unwrap_or_default();
            return Err(format!(
                "{}: {why}\n{}\nlast output of a session:\n{last}",
                read("at").trim_end(),
                read("log")
            ));
        }
        let mut faults = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            // The formats of other programs are theirs.
            if shell::commands(&step.command).iter().any(|words| shell::arguments(words).is_some()) {
                let actual = read(&format!("{number}.out"));
                let missing = labels::missing(&step.sample, &actual);
                let fault = |label| format!("line {}: '{label}' is not in the output:\n{actual}", step.line);
                faults.extend(missing.into_iter().map(fault));
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }

    fn shell(&self, sandbox: &Sandbox, guide: &Path, folder: &Path) -> Result<(), String> {
        let program = Path::new(env!("CARGO_BIN_EXE_pagefold")).parent().unwrap();
        let path =
            format!("{}:{}:/sbin:/usr/sbin", program.display(), std::env::var("PATH").unwrap_or_default());
        // A file, because servers keep the output open.
        let log = fs::File::create(guide.join("log")).unwrap();
        let mut command = Command::new("bash");
        command.arg(guide.join("script")).current_dir(folder).env("PATH", path).env("GUIDE", guide);
        command.env("PAGEFOLD_RUNTIME_DIR", sandbox.runtime()).env("HOME", folder).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut shell = command.spawn().unwrap();
        let deadline = Instant::now() + LONGEST;
        loop {
            match shell.try_wait().unwrap() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(status.to_string()),
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    let group = rustix::process::Pid::from_child(&shell);
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                    let _ = shell.wait();
                    return Err(format!("not finished after {LONGEST:?}"));
                }
            }
        }
    }
}

/// Whether a word is a builtin, a keyword or an alias of the shell.
fn is_known_to_shell(word: &str) -> bool {
    Command::new("bash")
        .args(["-c", "type -t -- \"$1\"", "bash", word])
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// Everything that the commands left behind: disks, mounts and loop devices. Removes it.
pub fn left_behind(sandbox: &Sandbox) -> Vec<String> {
    let top = sandbox.path("");
    let top = top.to_str().unwrap().trim_end_matches('/');
    let mut left: Vec<String> = sandbox.left().into_iter().filter(|name| name != ".images").collect();
    left.extend(fs::read_dir(sandbox.runtime().join(".images")).into_iter().flatten().flatten().filter_map(
        |entry| {
            let name = entry.file_name().into_string().unwrap();
            (!name.starts_with('.')).then(|| format!("the mounted image {name}"))
        },
    ));
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if file.starts_with(top) {
            left.push(format!("/dev/{}", device.file_name().display()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().rev().filter_map(|line| line.split(' ').nth(4));
    for mount in mounts.filter(|mount| mount.starts_with(top)) {
        left.push(format!("a mount on {mount}"));
        // Later mounts come first here. The sandbox removes the disks when it is dropped.
        let _ = Command::new("umount").args(["--lazy", mount]).status();
    }
    left
}
