//! `dump.erofs`: its options, and what it prints on a file or directory of an image.
//!
//! Names of fields and their order are those that scripts look for; times are in UTC.

use super::print_version;
use super::statistics;
use super::superblock;
use super::table::{Opt, Program, Value, defaults, number};
use crate::cli::output;
use crate::image::open::{ImageArgs, failure, path_bytes};
use crate::image::{cat, ls, names};
use pagefold_control::error::Result;
use pagefold_control::media::Location;
use pagefold_control::text::time_text;
use pagefold_image::read::{Extent, FileKind, Layout, Mapping};
use pagefold_image::{Image, Nid, Node, ReadAhead};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The choices of a command line.
#[derive(Default)]
struct Dump {
    devices: Vec<Location>,
    offset_bytes: u64,
    shows_superblock: bool,
    shows_statistics: bool,
    is_for_udev: bool,
    shows_extents: bool,
    lists: bool,
    prints_contents: bool,
    nid: Option<u64>,
    path: Option<PathBuf>,
    print: Option<fn() -> Result<()>>,
}

const PROGRAM: Program<Dump> = Program {
    name: "dump.erofs",
    usage: "IMAGE",
    about: "Prints how the EROFS image IMAGE stores its files, with pagefold.",
    options: OPTIONS,
    refused: &[],
};

const OPTIONS: &[Opt<Dump>] = &[
    Opt { name: "-V", value: Value::None, help: "print the version", set: set_version },
    Opt { name: "--version", value: Value::None, help: "print the version", set: set_version },
    Opt { name: "-h", value: Value::None, help: "print this help", set: set_help },
    Opt { name: "--help", value: Value::None, help: "print this help", set: set_help },
    Opt {
        name: "-s",
        value: Value::None,
        help: "print the superblock (default)",
        set: |dump, _| set(&mut dump.shows_superblock, true),
    },
    Opt {
        name: "-S",
        value: Value::None,
        help: "print statistics of all files",
        set: |dump, _| set(&mut dump.shows_statistics, true),
    },
    Opt {
        name: "-e",
        value: Value::None,
        help: "print the extents of a file",
        set: |dump, _| set(&mut dump.shows_extents, true),
    },
    Opt {
        name: "--blkid-udev",
        value: Value::None,
        help: "print the identity of the image for udev",
        set: |dump, _| set(&mut dump.is_for_udev, true),
    },
    Opt {
        name: "--device",
        value: Value::Required("X"),
        help: "a further device of the image; can be repeated",
        set: |dump, value| {
            dump.devices.push(value.to_os_string().into());
            Ok(())
        },
    },
    Opt {
        name: "--ls",
        value: Value::None,
        help: "list a directory",
        set: |dump, _| set(&mut dump.lists, true),
    },
    Opt {
        name: "--cat",
        value: Value::None,
        help: "print the contents of a file",
        set: |dump, _| set(&mut dump.prints_contents, true),
    },
    Opt {
        name: "--nid",
        value: Value::Required("#"),
        help: "the file or directory with this number",
        set: |dump, value| set(&mut dump.nid, Some(number(value)?)),
    },
    Opt {
        name: "--offset",
        value: Value::Required("#"),
        help: "where the image begins in the file, bytes",
        set: |dump, value| set(&mut dump.offset_bytes, number(value)?),
    },
    Opt {
        name: "--path",
        value: Value::Required("X"),
        help: "the file or directory with this path",
        set: |dump, value| set(&mut dump.path, Some(value.into())),
    },
];

fn set<T>(choice: &mut T, value: T) -> Result<()> {
    *choice = value;
    Ok(())
}

fn set_version(dump: &mut Dump, _: &OsStr) -> Result<()> {
    set(&mut dump.print, Some(|| print_version(PROGRAM.name)))
}

fn set_help(dump: &mut Dump, _: &OsStr) -> Result<()> {
    set(&mut dump.print, Some(|| PROGRAM.print_help()))
}

/// Prints what the words say.
pub fn run(words: &[OsString]) -> Result<()> {
    let mut dump = Dump::default();
    let operands = PROGRAM.parse(words, &mut dump)?;
    if let Some(print) = dump.print {
        return print();
    }
    let [image] = &operands[..] else {
        return Err(PROGRAM.error("name one IMAGE"));
    };
    let is_of_file = dump.nid.is_some() || dump.path.is_some();
    if !is_of_file && (dump.shows_extents || dump.lists || dump.prints_contents) {
        return Err(
            PROGRAM.error("-e, --ls and --cat are for a file or directory; name it with --path or --nid")
        );
    }
    let mut args: ImageArgs = defaults(&[image])?;
    args.media.device.clone_from(&dump.devices);
    args.media.offset.offset = dump.offset_bytes.to_string();
    let image = args.open(ReadAhead::Off)?;
    let is_default = !is_of_file && !dump.shows_statistics && !dump.is_for_udev;
    if dump.shows_superblock || is_default {
        output::text(&superblock::text(image.superblock()))?;
    }
    if dump.is_for_udev {
        output::text(&superblock::udev(image.superblock()))?;
    }
    if dump.shows_statistics {
        output::text(&statistics::text(&image).map_err(|e| args.failure(&e))?)?;
    }
    if is_of_file { dump.print_file(&image) } else { Ok(()) }
}

impl Dump {
    fn print_file(&self, image: &Image) -> Result<()> {
        let (path, found) = match (&self.path, self.nid) {
            (Some(path), _) => (path_bytes(path).to_vec(), image.find(path_bytes(path))),
            (None, nid) => {
                let nid = nid.unwrap_or_default();
                (format!("nid {nid}").into_bytes(), image.node(Nid(nid)))
            }
        };
        let failed = |e| failure(&path, &e);
        let node = found.map_err(failed)?;
        if self.prints_contents {
            return cat::print_node(image, &node, &path);
        }
        output::text(&inode_text(&node, self.path.as_ref().map(|_| &*path)))?;
        if self.lists {
            print_names(&node).map_err(failed)??;
        }
        if self.shows_extents {
            print_extents(&node, &path).map_err(failed)??;
        }
        Ok(())
    }
}

/// The inode as text; an inode that was named by its number has no path.
fn inode_text(node: &Node, path: Option<&[u8]>) -> String {
    let inode = node.inode();
    let (size, stored) = (inode.size, stored_bytes(node));
    let shown = path.map_or_else(|| "(not found)".to_string(), names::escaped);
    let ratio = if size > 0 { stored as f64 * 100.0 / size as f64 } else { 0.0 };
    let time = time_text(inode.mtime.seconds);
    format!(
        "Path : {shown}\n\
         Size: {size}  On-disk size: {stored}  {}\n\
         NID: {}   Links: {}   Layout: {}   Compression ratio: {ratio:.2}%\n\
         Inode size: {}   Xattr size: {}\n\
         Uid: {}   Gid: {}  Access: {:04o}/{}\n\
         Timestamp: {time}.{:09}\n",
        kind_name(inode.kind),
        inode.nid.0,
        inode.nlink,
        layout_number(&inode.layout),
        if inode.extended { 64 } else { 32 },
        inode.xattr_bytes,
        inode.uid,
        inode.gid,
        inode.mode & 0o7777,
        &ls::mode_text(inode)[1..],
        inode.mtime.nanoseconds,
    )
}

/// The stored bytes of a file, as its inode has them.
fn stored_bytes(node: &Node) -> u64 {
    let inode = node.inode();
    match inode.layout {
        Layout::CompressedFull | Layout::CompressedCompact => {
            inode.compressed_blocks.saturating_mul(node.image().superblock().block_bytes().into())
        }
        _ if inode.kind.has_contents() => inode.size,
        _ => 0,
    }
}

fn layout_number(layout: &Layout) -> u8 {
    match layout {
        Layout::Plain { .. } => 0,
        Layout::CompressedFull => 1,
        Layout::Inline { .. } => 2,
        Layout::CompressedCompact => 3,
        Layout::Chunks { .. } => 4,
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink file",
        FileKind::CharDevice => "char dev",
        FileKind::BlockDevice => "block dev",
        FileKind::Fifo => "FIFO file",
        FileKind::Socket => "SOCK file",
    }
}

/// Prints the names of a directory. The outer error is one of the image, the inner one of writing.
fn print_names(node: &Node) -> pagefold_image::Result<Result<()>> {
    let escape = names::escape_stdout();
    let dots = [(b".".as_slice(), Ok(node.nid())), (b"..", node.lookup(b"..").map(|parent| parent.nid()))];
    let mut rows = vec![b"\n       NID TYPE  FILENAME\n".to_vec()];
    let row = |nid: Nid, kind: u8, name: &[u8]| {
        [format!("{:>10}    {kind}  ", nid.0).as_bytes(), &names::shown(name, escape), b"\n"].concat()
    };
    let directory = FileKind::Directory.to_dirent();
    rows.extend(dots.into_iter().filter_map(|(name, nid)| Some(row(nid.ok()?, directory, name))));
    let mut entries = node.entries()?;
    // A directory may have more names than memory.
    let mut failed = None;
    let printed = output::stream(|out| {
        rows.iter().try_for_each(|row| out.write_all(row))?;
        for entry in entries.by_ref() {
            match entry {
                Ok(entry) => {
                    let kind = entry.kind.map_or(0, FileKind::to_dirent);
                    out.write_all(&row(entry.nid, kind, &entry.name))?;
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        Ok(())
    });
    failed.map_or(Ok(printed), Err)
}

/// Prints the extents of a file. The outer error is one of the image, the inner one of writing.
fn print_extents(node: &Node, path: &[u8]) -> pagefold_image::Result<Result<()>> {
    let mut failed = None;
    let mut count = 0u64;
    let printed = output::stream(|out| {
        writeln!(out, "\n Ext:   logical offset   |  length :     physical offset    |  length")?;
        let extents = if node.kind().has_contents() { Some(node.extents()) } else { None };
        for extent in extents.into_iter().flatten() {
            match extent {
                Ok(extent) => {
                    let (at, len) = physical(&extent);
                    writeln!(
                        out,
                        "{count:>4}: {:>8}..{:>8} | {:>7} : {at:>10}..{:>10} | {len:>7}",
                        extent.start,
                        extent.end(),
                        extent.len_bytes,
                        at.saturating_add(len),
                    )?;
                    count += 1;
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        writeln!(out, "{}: {count} extents found", names::escaped(path))
    });
    failed.map_or(Ok(printed), Err)
}

/// Where an extent is stored, and in how many bytes; 0 and 0 without such a place.
fn physical(extent: &Extent) -> (u64, u64) {
    match extent.mapping {
        Mapping::Hole | Mapping::Fragment { .. } => (0, 0),
        Mapping::Plain(at) => (at.offset, extent.len_bytes),
        Mapping::Interlaced { at, len_bytes } => (at.offset, len_bytes.into()),
        Mapping::Compressed(cluster) => (cluster.at.offset, cluster.len_bytes.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_a_file_needs_its_name() {
        let failure = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            super::run(&words).unwrap_err().message
        };
        assert!(failure("-e a").contains("--path or --nid"));
        assert!(failure("-s").contains("name one IMAGE"));
        assert!(failure("-q a").contains("unknown option -q"));
    }
}
