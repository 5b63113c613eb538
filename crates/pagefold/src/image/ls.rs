//! `image ls`.

use super::open::{ImageArgs, failure, path_bytes};
use super::{findings, names};
use crate::cli::output;
use clap::Args;
use pagefold_control::error::{CliError, Result};
use pagefold_control::report::SCHEMA_VERSION;
use pagefold_control::report::image::Entry;
use pagefold_control::text;
use pagefold_control::text::time_text;
use pagefold_image::read::{FileKind, Inode};
use pagefold_image::walk::{self, Limits, Visit, Visitor};
use pagefold_image::{Finding, Located, Node, ReadAhead};
use std::io::{BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// The arguments of `image ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Files and directories in the image
    #[arg(value_name = "PATH", default_value = "/")]
    pub paths: Vec<PathBuf>,
    /// Also print mode, links, owner, group, size, time, and targets of links. Times are in UTC; devices have their
    /// numbers in place of a size
    #[arg(long, short = 'l')]
    pub long: bool,
    /// List the contents of directories recursively, with paths instead of names
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Print JSON: an object for each file, each on one line
    #[arg(long)]
    pub json: bool,
}

/// Lists files and directories, files first as ls(1) does. A path that does not exist does not stop the others.
pub fn run(args: &LsArgs) -> Result<()> {
    let image = args.image.open(ReadAhead::Off)?;
    let mut failures = Vec::new();
    let mut found = Vec::new();
    for path in &args.paths {
        match image.locate(path_bytes(path)) {
            Ok(located) => found.push(located),
            Err(e) => failures.push(failure(path_bytes(path), &e)),
        }
    }
    found.sort_by_key(|located| located.node.kind() == FileKind::Directory);
    let mut list = List {
        out: BufWriter::new(std::io::stdout().lock()),
        args,
        escape: names::escape_stdout(),
        entries: 0,
        write_error: None,
        finding_count: 0,
        damage: 0,
    };
    if !found.is_empty() {
        list.print_all(&found, &mut failures);
    }
    if let Some(e) = list.write_error {
        return match e.kind() {
            ErrorKind::BrokenPipe => Ok(()),
            _ => Err(CliError::io("writing to standard output", &e)),
        };
    }
    if list.finding_count > 0 {
        let things = text::counted(list.finding_count, "thing is", "things are");
        let message = format!("{things} wrong with the image; 'pagefold image check' lists the errors");
        failures.push(findings::failure(list.damage, message));
    }
    match failures.as_slice() {
        [] => Ok(()),
        [failure] => Err(failure.clone()),
        [first, ..] => {
            failures.iter().for_each(|failure| output::error(&failure.message));
            Err(CliError::new(first.exit, format!("{} errors; the rest was listed", failures.len())))
        }
    }
}

/// The visitor that prints files.
struct List<'a, W: Write> {
    out: W,
    args: &'a LsArgs,
    escape: bool,
    /// Files printed so far.
    entries: u64,
    /// The first error of writing, which ends the walk.
    write_error: Option<std::io::Error>,
    /// Findings, and those of them for which the image is at fault.
    finding_count: u64,
    damage: u64,
}

impl<W: Write> List<'_, W> {
    fn print_all(&mut self, found: &[Located], failures: &mut Vec<CliError>) {
        if self.args.json {
            let head = format!("{{\"schema_version\":{},\"entries\":[", SCHEMA_VERSION);
            self.write(|out| out.write_all(head.as_bytes()));
        }
        for Located { path, node } in found {
            if found.len() > 1 && node.kind() == FileKind::Directory {
                self.heading(path);
            }
            if self.write_error.is_some() {
                return;
            }
            let walked = walk::walk_from(node, path, &Limits::default(), self);
            failures.extend(walked.err().map(|e| failure(path, &e)));
        }
        if self.args.json {
            self.write(|out| out.write_all(b"\n]}\n"));
        }
        self.write(|out| out.flush());
    }

    /// Prints the line above the names in one of several directories. Paths need none.
    fn heading(&mut self, path: &[u8]) {
        if !self.args.json && !self.args.recursive {
            let gap: &[u8] = if self.entries > 0 { b"\n" } else { b"" };
            let shown = names::shown(path, self.escape);
            self.entries += 1;
            self.write(|out| out.write_all(&[gap, &shown, b":\n"].concat()));
        }
    }

    /// Calls `write` unless an earlier call failed.
    fn write(&mut self, write: impl FnOnce(&mut W) -> std::io::Result<()>) {
        if self.write_error.is_none() {
            self.write_error = write(&mut self.out).err();
        }
    }

    fn show(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        let entry = match self.args.json {
            true => self.json_line(visit),
            false => Ok(self.line(visit)),
        };
        self.entries += 1;
        self.write(|out| out.write_all(&entry?));
        match self.write_error {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }

    fn json_line(&self, visit: &Visit<'_>) -> std::io::Result<Vec<u8>> {
        let separator = if self.entries > 0 { ",\n" } else { "\n" };
        let entry = serde_json::to_string(&entry(visit.path, visit.node))?;
        Ok(format!("{separator}{entry}").into_bytes())
    }

    fn line(&mut self, visit: &Visit<'_>) -> Vec<u8> {
        let name = if self.args.recursive || visit.depth == 0 { visit.path } else { visit.name };
        let mut line = Vec::new();
        if self.args.long {
            line.extend(format!("{} ", columns(visit.node.inode())).into_bytes());
        }
        line.extend(names::shown(name, self.escape));
        if self.args.long && visit.node.kind() == FileKind::Symlink {
            match visit.node.read_link() {
                Ok(target) => line.extend([b" -> ".to_vec(), names::shown(&target, self.escape)].concat()),
                Err(error) => self.finding(Finding::of(visit.path, &error)),
            }
        }
        line.push(b'\n');
        line
    }
}

impl<W: Write> Visitor for List<'_, W> {
    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        if visit.depth > 0 || self.args.recursive {
            self.show(visit).map_continue(|()| ()).map_break(|()| ())?;
        }
        ControlFlow::Continue(visit.depth == 0 || self.args.recursive)
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.show(visit)
    }

    fn finding(&mut self, finding: Finding) {
        self.finding_count += 1;
        self.damage += u64::from(finding.is_damage);
        findings::print_line(&finding);
    }
}

/// The JSON of a file. A target that cannot be read is missing.
pub fn entry(path: &[u8], node: &Node) -> Entry {
    let inode = node.inode();
    let (path, path_hex) = names::json(path);
    let target = (inode.kind == FileKind::Symlink).then(|| node.read_link().ok()).flatten();
    let target = target.map(|target| names::json(&target));
    Entry {
        path,
        path_hex,
        kind: kind_name(inode.kind).into(),
        mode: format!("{:06o}", inode.mode),
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size_bytes: if inode.kind.has_contents() { inode.size } else { 0 },
        mtime_s: inode.mtime.seconds,
        mtime_ns: inode.mtime.nanoseconds,
        nid: inode.nid.0,
        device_major: inode.device.map(|device| device.major),
        device_minor: inode.device.map(|device| device.minor),
        target: target.as_ref().map(|(text, _)| text.clone()),
        target_hex: target.and_then(|(_, hex)| hex),
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    let found = pagefold_image::tree_stats::KINDS.iter().find(|(k, _)| *k == kind);
    found.map_or("unknown", |(_, name)| name)
}

/// Formats mode, links, owner, group, size and time as `ls -ln` does; times in UTC.
fn columns(inode: &Inode) -> String {
    let size = match inode.device {
        Some(device) => format!("{}, {}", device.major, device.minor),
        None if inode.kind.has_contents() => inode.size.to_string(),
        None => "0".to_string(),
    };
    let (mode, time) = (mode_text(inode), time_text(inode.mtime.seconds));
    format!("{mode} {:>3} {:>5} {:>5} {size:>12} {time}", inode.nlink, inode.uid, inode.gid)
}

/// Formats a mode such as `drwxr-xr-x`.
pub fn mode_text(inode: &Inode) -> String {
    let kind = match inode.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = inode.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (inode.mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}
