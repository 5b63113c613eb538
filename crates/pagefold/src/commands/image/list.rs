//! `image list`.

use super::names;
use super::open::{ImageArgs, failure, path_bytes};
use crate::cli::date::time_text;
use crate::cli::{chart, output};
use crate::failure::{Failure, Outcome};
use clap::Args;
use pagefold_image::read::{FileKind, Inode};
use pagefold_image::walk::{self, Limits, Visit, Visitor};
use pagefold_image::{Finding, Located, Node, ReadAhead};
use serde_json::{Map, Value, json};
use std::io::{BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// `image list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// File or directory in the image
    #[arg(value_name = "PATH", default_value = "/")]
    pub path: PathBuf,
    /// Show mode, links, owner, group, size (or device), time and target
    #[arg(long, short = 'l')]
    pub long: bool,
    /// List what is in directories too, with paths instead of names
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Print JSON: one object for each file, one a line
    #[arg(long)]
    pub json: bool,
}

/// Lists a directory, or a file.
pub fn run(args: &ListArgs) -> Outcome<()> {
    let image = args.image.open(ReadAhead::Off)?;
    let path = path_bytes(&args.path);
    let Located { path, node } = image.locate(path).map_err(|e| failure(&names::escaped(path), &e))?;
    let mut list = List {
        out: BufWriter::new(std::io::stdout().lock()),
        args,
        escape: names::escape_stdout(),
        failed: None,
        wrong: 0,
    };
    let walked = walk::walk_from(&node, &path, &Limits::default(), &mut list);
    walked.map_err(|e| failure(&names::escaped(&path), &e))?;
    let flushed = list.out.flush();
    match list.failed.or(flushed.err()) {
        Some(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::io("writing to standard output", &e)),
        None if list.wrong > 0 => Err(Failure::failed(format!(
            "{} wrong with the image; 'pagefold image check' tells more",
            chart::counted(list.wrong, "thing is", "things are")
        ))),
        _ => Ok(()),
    }
}

struct List<'a, W: Write> {
    out: W,
    args: &'a ListArgs,
    escape: bool,
    failed: Option<std::io::Error>,
    wrong: u64,
}

impl<W: Write> List<'_, W> {
    fn show(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        let printed = match self.args.json {
            true => json_line(&mut self.out, visit),
            false => self.line(visit),
        };
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                self.failed = Some(e);
                ControlFlow::Break(())
            }
        }
    }

    fn line(&mut self, visit: &Visit<'_>) -> std::io::Result<()> {
        let name = if self.args.recursive || visit.depth == 0 { visit.path } else { visit.name };
        if self.args.long {
            write!(self.out, "{} ", columns(visit.node.inode()))?;
        }
        self.out.write_all(&names::shown(name, self.escape))?;
        if self.args.long && visit.node.kind() == FileKind::Symlink {
            match visit.node.read_link() {
                Ok(target) => {
                    self.out.write_all(b" -> ")?;
                    self.out.write_all(&names::shown(&target, self.escape))?;
                }
                Err(error) => self.finding(Finding::of(visit.path, &error)),
            }
        }
        self.out.write_all(b"\n")
    }
}

impl<W: Write> Visitor for List<'_, W> {
    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        if visit.depth > 0 || self.args.recursive {
            self.show(visit).map_continue(|()| ()).map_break(|()| ())?;
        }
        ControlFlow::Continue(visit.depth == 0 || self.args.recursive)
    }

    fn leave(&mut self, _visit: &Visit<'_>, _directories: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.show(visit)
    }

    fn finding(&mut self, finding: Finding) {
        self.wrong += 1;
        output::note(&format!("{}: {}", names::escaped(&finding.path), finding.what));
    }
}

fn json_line(out: &mut impl Write, visit: &Visit<'_>) -> std::io::Result<()> {
    let mut object = Map::new();
    names::put(&mut object, "path", visit.path);
    inode_fields(&mut object, visit.node);
    serde_json::to_writer(&mut *out, &Value::Object(object))?;
    out.write_all(b"\n")
}

/// What an inode says, as fields.
pub fn inode_fields(object: &mut Map<String, Value>, node: &Node) {
    let inode = node.inode();
    let mut put = |field: &str, value: Value| object.insert(field.to_string(), value);
    put("kind", json!(kind_name(inode.kind)));
    put("mode", json!(format!("{:06o}", inode.mode)));
    put("uid", json!(inode.uid));
    put("gid", json!(inode.gid));
    put("nlink", json!(inode.nlink));
    put("size_bytes", json!(if inode.kind.has_contents() { inode.size } else { 0 }));
    put("mtime_s", json!(inode.mtime.seconds));
    put("mtime_ns", json!(inode.mtime.nanoseconds));
    put("nid", json!(inode.nid.0));
    if let Some(device) = inode.device {
        put("device_major", json!(device.major));
        put("device_minor", json!(device.minor));
    }
    if inode.kind == FileKind::Symlink
        && let Ok(target) = node.read_link()
    {
        names::put(object, "target", &target);
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    let found = pagefold_image::survey::KINDS.iter().find(|(k, _)| *k == kind);
    found.map_or("unknown", |(_, name)| name)
}

/// Mode, links, owner, group, size and time, as `ls -ln` has them; times in UTC.
fn columns(inode: &Inode) -> String {
    let size = match inode.device {
        Some(device) => format!("{}, {}", device.major, device.minor),
        None if inode.kind.has_contents() => inode.size.to_string(),
        None => "0".to_string(),
    };
    let (mode, time) = (mode_text(inode), time_text(inode.mtime.seconds));
    format!("{mode} {:>3} {:>5} {:>5} {size:>12} {time}", inode.nlink, inode.uid, inode.gid)
}

/// `drwxr-xr-x` and so on.
fn mode_text(inode: &Inode) -> String {
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
