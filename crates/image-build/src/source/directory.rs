//! A tree from a directory.
//!
//! The directory may be changed by others while it is read: symbolic links are never followed, so nothing outside of it
//! is read, and a file that is no longer the same when its contents are read is an error.

mod contents;
mod links;
mod read_errors;
mod root;

use crate::metadata::prefixes;
use crate::rules::Pattern;
use crate::source::{NestedOverlay, OnEntry, Scanned, UnreadableFile, UnreadableXattr, Whiteouts, nested};
use crate::table::{Spill, Table};
use crate::tree::{Body, InodeId, Metadata, Tree, Xattr};
use crate::xattrs::XattrFilter;
use crate::{BuildError, Result};
use contents::{Files, Identity};
pub use links::HardLinks;
use links::{Found, Links};
use pagefold_image::read::inode::{DeviceNumber, Timestamp};
use pagefold_image::read::{FileKind, acl};
use pagefold_sys::SysError;
use pagefold_sys::beneath::Folder;
use pagefold_sys::source_tree::{self, SourceFile, SourceStat};
pub use read_errors::Unreadables;
use read_errors::{ReadErrors, is_of_machine};
use root::Root;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The choice of what is taken from a directory.
#[derive(Debug, Clone, Default)]
pub struct DirectoryOptions {
    /// Names that are left out, with all below them.
    pub exclude: Vec<Pattern>,
    /// Whether directories on other file systems stay empty.
    pub one_file_system: bool,
    /// The treatment of files that this process cannot read, and of all names in such a directory. Attributes that it cannot
    /// read are left out in any case, and listed.
    pub unreadables: Unreadables,
    /// The treatment of names whose inodes have the same device and number.
    pub hard_links: HardLinks,
    /// How files that stand for removed ones become part of the image.
    pub whiteouts: Whiteouts,
    /// The treatment of an overlay mount inside.
    pub nested: NestedOverlay,
    /// The attributes that stay.
    pub xattrs: XattrFilter,
    /// Files that are left out: the image itself may be written into the directory.
    pub outputs: Vec<OutputFile>,
    /// The folder of the image, if that changed its time.
    pub output_folder: Option<OutputFolder>,
    /// Where the tree goes if it is large.
    pub spill: Spill,
}

/// The folder that the image is written to, which may be in the directory: its time is that of before the image was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputFolder {
    /// Device and number of its inode.
    pub inode: (u64, u64),
    /// Its time of change before: seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
}

/// A file that is left out, because it is being written or replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// Device and number of its inode.
    pub inode: (u64, u64),
    /// Device and number of its folder, and its name there, if other names of the inode are not left out.
    pub name: Option<((u64, u64), Vec<u8>)>,
}

/// Reads the names and metadata of a directory.
pub fn scan(path: &Path, options: &DirectoryOptions) -> Result<Scanned> {
    scan_watched(path, options, &mut |_| ControlFlow::Continue(()))
}

/// Like [`scan`]. `on_entry` is called for each name with the number of inodes so far, and may end it:
/// [`BuildError::Interrupted`].
pub fn scan_watched(path: &Path, options: &DirectoryOptions, on_entry: &mut OnEntry<'_>) -> Result<Scanned> {
    let failed = |e: SysError| BuildError::source(path, e.into());
    let root = Folder::open(path).map_err(failed)?;
    let stat = source_tree::stat(&root).map_err(failed)?;
    let handle = root.source_itself().map_err(failed)?;
    let mut scan = Scan {
        root: Arc::new(Root {
            folder: root,
            path: path.into(),
            read_errors: ReadErrors::new(options.unreadables),
            last_opened: Mutex::default(),
        }),
        options,
        on_entry,
        device: stat.device,
        links: Links::new(&options.spill),
        scanned: Scanned::new(Tree::with_spill(Metadata::default(), &options.spill)?),
    };
    scan.scanned.tree.set_contents(Arc::new(Files(scan.root.clone())));
    scan.scanned.set_late_errors(scan.root.clone());
    let xattrs = scan.xattrs(&handle, b"").map_err(failed)?;
    let metadata = scan.metadata(&stat, xattrs);
    scan.scanned.tree.change(InodeId::ROOT, |root| *root = metadata)?;
    let mut stack = Table::new(&options.spill);
    stack.push(InodeId::ROOT)?;
    while let Some(id) = stack.pop() {
        scan.directory(id, &mut stack)?;
    }
    nested::convert(&mut scan.scanned, &options.xattrs, options.nested, options.whiteouts)?;
    Ok(scan.scanned)
}

struct Scan<'o, 'f> {
    root: Arc<Root>,
    options: &'o DirectoryOptions,
    on_entry: &'o mut OnEntry<'f>,
    /// File system of the root.
    device: u64,
    /// Inodes with several names.
    links: Links,
    scanned: Scanned,
}

impl Scan<'_, '_> {
    /// Adds the entries of a directory, and the directories among them to `stack`. There may be millions of entries, so
    /// they are added while they are read.
    fn directory(&mut self, id: InodeId, stack: &mut Table<InodeId>) -> Result<()> {
        let path = self.scanned.tree.directory_path(id);
        let listed = match path.as_slice() {
            b"" => self.root.folder.open_again(),
            path => self.root.folder.open_folder(path),
        };
        let listed = listed.and_then(|folder| folder.names().map(|names| (folder, names)));
        let (folder, names) = match listed {
            Ok(listed) => listed,
            Err(error) => return self.unreadable(&path, error, "the directory stays empty: "),
        };
        for name in names {
            let name = match name {
                Ok(name) => name,
                Err(error) => return self.unreadable(&path, error, "further names are left out: "),
            };
            if (self.on_entry)(self.scanned.tree.len() as u64).is_break() {
                return Err(BuildError::Interrupted);
            }
            let mut below = path.clone();
            below.extend(if path.is_empty() { b"".as_slice() } else { b"/" });
            below.extend(&name);
            if Pattern::any_matches(&self.options.exclude, &below) {
                continue;
            }
            if let Some(child) = self.entry(&folder, id, &name, &below)? {
                stack.push(child)?;
            }
        }
        Ok(())
    }

    /// Adds an entry. Returns the inode if it is a directory to be read.
    fn entry(
        &mut self,
        folder: &Folder,
        parent: InodeId,
        name: &[u8],
        path: &[u8],
    ) -> Result<Option<InodeId>> {
        let looked = folder.source_file(name).and_then(|file| file.stat().map(|stat| (file, stat)));
        let (file, stat) = match looked {
            Ok(looked) => looked,
            Err(error) => return self.unreadable(path, error, "").map(|()| None),
        };
        if self.is_output(folder, name, &stat) {
            return Ok(None);
        }
        let may_be_link = self.options.hard_links == HardLinks::Keep
            && FileKind::from_mode(stat.mode as u16) != Some(FileKind::Directory);
        match self.links.find(&stat, &self.scanned.tree) {
            Found::Link(id) if may_be_link => {
                self.scanned.tree.link(parent, name, id)?;
                return Ok(None);
            }
            Found::Different(id, property) if may_be_link => {
                return Err(self.not_one_file(path, id, property));
            }
            _ => {}
        }
        let read = self.body(&file, &stat, path).and_then(|body| Ok((body, self.xattrs(&file, path)?)));
        let (body, xattrs) = match read {
            Ok((Some(body), xattrs)) => (body, xattrs),
            Ok((None, _)) => return Ok(None),
            Err(error) => return self.unreadable(path, error, "").map(|()| None),
        };
        let is_directory = matches!(body, Body::Directory);
        let metadata = self.metadata(&stat, xattrs);
        let id = self.scanned.tree.add(parent, name, metadata, body).map_err(|e| self.with_path(e, path))?;
        if may_be_link {
            self.links.add(&stat, id)?;
        }
        let is_read = is_directory && (stat.device == self.device || !self.options.one_file_system);
        Ok(is_read.then_some(id))
    }

    /// Returns the body of an inode; `None` if it is left out.
    fn body(&mut self, file: &SourceFile, stat: &SourceStat, path: &[u8]) -> Result<Option<Body>, SysError> {
        let number = DeviceNumber { major: stat.special.0, minor: stat.special.1 };
        Ok(Some(match FileKind::from_mode(stat.mode as u16) {
            Some(FileKind::Directory) => Body::Directory,
            Some(FileKind::Symlink) => Body::Symlink(file.link_target()?.into()),
            Some(FileKind::CharDevice) => Body::CharDevice(number),
            Some(FileKind::BlockDevice) => Body::BlockDevice(number),
            Some(FileKind::Fifo) => Body::Fifo,
            Some(FileKind::Socket) => Body::Socket,
            Some(FileKind::Regular) | None => {
                if self.root.read_errors.are_noted()
                    && let Err(error) = self.root.folder.open_source(path)
                {
                    if is_of_machine(&error) {
                        return Err(error);
                    }
                    let (path, reason) = (self.root.shown(path), error.to_string());
                    self.scanned.unreadable.add(UnreadableFile { path, reason });
                    return Ok(None);
                }
                Body::Stored(Identity::of(stat).stored())
            }
        }))
    }

    /// Reads the attributes of a file. Those that cannot be read are left out and listed: a file without one is of more use
    /// than none, and some can be read by nobody but the host, such as capabilities in a user namespace.
    fn xattrs(&mut self, file: &SourceFile, path: &[u8]) -> Result<Vec<Xattr>, SysError> {
        let (filter, mut host_labels, mut unreadable) = (&self.options.xattrs, 0, Vec::new());
        let is_wanted = |name: &[u8]| {
            let (keeps, is_label) = (filter.keeps(name), filter.leaves_out_label(name));
            host_labels += u64::from(keeps && is_label);
            // An access list that does not stay has the permissions of the group.
            (keeps && !is_label) || name == acl::ACCESS
        };
        let xattrs = match file.xattrs(is_wanted, |name, error| unreadable.push((name.to_vec(), error))) {
            // It is a fault of this machine, and each file would have it.
            Err(error) if error.errno == libc::ENOENT || is_of_machine(&error) => return Err(error),
            Err(error) => {
                unreadable.push((Vec::new(), error));
                Vec::new()
            }
            Ok(xattrs) => xattrs,
        };
        self.scanned.host_labels += host_labels;
        for (name, error) in unreadable {
            if is_of_machine(&error) {
                return Err(error);
            }
            if !name.is_empty() && prefixes::split(&name).is_none() {
                self.scanned.dropped_xattrs += 1;
                continue;
            }
            let (path, reason) = (self.root.shown(path), error.to_string());
            self.scanned.unreadable_xattrs.add(UnreadableXattr { path, name, reason });
        }
        Ok(xattrs)
    }

    fn metadata(&mut self, stat: &SourceStat, xattrs: Vec<Xattr>) -> Metadata {
        let (known, unknown): (Vec<_>, Vec<_>) =
            xattrs.into_iter().partition(|(name, _)| prefixes::split(name).is_some());
        self.scanned.dropped_xattrs += unknown.len() as u64;
        let output_folder =
            self.options.output_folder.filter(|folder| folder.inode == (stat.device, stat.inode));
        let (seconds, nanoseconds) = output_folder.map_or(stat.mtime, |folder| folder.mtime);
        Metadata {
            permissions: stat.mode as u16 & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            mtime: Timestamp { seconds, nanoseconds },
            xattrs: known,
        }
    }

    /// Whether a name is that of a file which is left out.
    fn is_output(&self, folder: &Folder, name: &[u8], stat: &SourceStat) -> bool {
        let inode = (stat.device, stat.inode);
        self.options.outputs.iter().filter(|output| output.inode == inode).any(|output| match &output.name {
            None => true,
            Some((of_folder, of_name)) => {
                let folder = source_tree::stat(folder).map(|stat| (stat.device, stat.inode));
                of_name == name && folder.is_ok_and(|folder| folder == *of_folder)
            }
        })
    }

    /// Notes what could not be read, with `effect` before the reason, or fails.
    fn unreadable(&mut self, path: &[u8], error: SysError, effect: &str) -> Result<()> {
        let shown = self.root.shown(path);
        match self.root.read_errors.are_noted() && !is_of_machine(&error) {
            true => {
                let reason = format!("{effect}{error}");
                self.scanned.unreadable.add(UnreadableFile { path: shown, reason });
                Ok(())
            }
            false => Err(BuildError::source(&shown, error.into())),
        }
    }

    /// The error for a name that has the device and number of another file.
    fn not_one_file(&self, path: &[u8], other: InodeId, property: &str) -> BuildError {
        let other = self.scanned.tree.path_of(other);
        let what = format!(
            "it has the device and inode number of '{}', but another {property}: its file system makes numbers up, or it \
             changed; --hard-dereference stores each name as a file",
            self.root.shown(&other).display()
        );
        BuildError::Refused { path: self.root.shown(path), what }
    }

    fn with_path(&self, error: BuildError, path: &[u8]) -> BuildError {
        match error {
            BuildError::Refused { what, .. } => BuildError::Refused { path: self.root.shown(path), what },
            error => error,
        }
    }
}
