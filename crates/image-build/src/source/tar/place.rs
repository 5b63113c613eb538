//! Puts members into a tree, as extraction into an empty directory would.

use super::archive::Archive;
use super::content::Members;
use super::fault::{described, refused};
use super::kind::{Data, MemberKind};
use super::members::Member;
use super::options::TarOptions;
use super::sparse::SparseRun;
use crate::Result;
use crate::content::Stored;
use crate::source::layers::Note;
use crate::source::whiteouts::{self, WhiteoutName};
use crate::source::{Scanned, Whiteouts};
use crate::table::Table;
use crate::tree::{Body, InodeId, Metadata, Tree};
use pagefold_image::format::dirent::NAME_LEN_MAX;
use pagefold_image::read::inode::Timestamp;
use pagefold_page::size::Human;
use std::sync::Arc;

/// Longest path, bytes: Linux resolves no longer ones, so extraction of a member would fail.
const PATH_BYTES_MAX: usize = 4095;
/// Memory of an inode without its names and attributes, bytes, roughly.
const INODE_BYTES: usize = 200;
/// Bytes of contents of all members at most: 128 TiB. Sparse files can claim any length.
const CONTENT_BYTES_MAX: u64 = 1 << 47;
/// A sparse file may be stored in chunks of this length; the builder keeps an entry of 4 bytes for each, or fewer.
const CHUNK_BYTES: u64 = 4096;
const CHUNKS_MAX: u64 = 1 << 16;
/// A tree while members are added to it.
pub struct Placer<'o> {
    archive: Arc<Archive>,
    options: &'o TarOptions,
    scanned: Scanned,
    /// Bytes left of the limit of metadata.
    bytes_left: u64,
    content_bytes: u64,
    has_root: bool,
    /// The runs of sparse files.
    runs: Table<SparseRun>,
}

impl<'o> Placer<'o> {
    /// Begins with a root directory.
    pub fn new(archive: Arc<Archive>, options: &'o TarOptions) -> Result<Self> {
        let spill = &options.spill;
        let mut scanned = Scanned::new(Tree::with_spill(Metadata::default(), spill)?);
        if options.is_layer {
            scanned.notes.put(InodeId::ROOT, Note::Implied)?;
        }
        Ok(Placer {
            archive,
            options,
            scanned,
            runs: Table::new(spill),
            bytes_left: options.metadata_bytes_max,
            content_bytes: 0,
            has_root: false,
        })
    }

    /// Adds a member.
    pub fn place(&mut self, member: Member) -> Result<()> {
        let path = names(&member.name)?;
        self.scanned.dropped_xattrs += member.dropped_xattrs;
        let xattr_bytes = member.metadata.xattrs.iter().map(|(name, value)| name.len() + value.len() + 64);
        self.charge(xattr_bytes.sum())?;
        let mtime = member.metadata.mtime;
        if !self.has_root {
            self.scanned.tree.change(InodeId::ROOT, |root| root.mtime = mtime)?;
            self.has_root = true;
        }
        let Some((name, directories)) = path.split_last() else {
            return self.place_root(member);
        };
        let parent = self.directories(directories, mtime)?;
        self.charge(INODE_BYTES + 2 * member.name.len())?;
        match member.kind {
            kind if (self.options.whiteouts != Whiteouts::Files || self.options.is_layer)
                && let Some(whiteout) = WhiteoutName::of(name)
                && is_mark(&whiteout, &kind) =>
            {
                if matches!(whiteout, WhiteoutName::Nothing) {
                    return Err(refused("a whiteout of no name"));
                }
                let metadata = Metadata { xattrs: Vec::new(), ..member.metadata };
                self.add(parent, name, metadata, Body::Stored(Stored { len_bytes: 0, words: [0; 5] }))
            }
            MemberKind::HardLink(target) => self.link(parent, name, &target),
            kind => {
                let body = self.body(kind)?;
                self.add(parent, name, member.metadata, body)
            }
        }
    }

    /// Ends the tree.
    pub fn finish(mut self) -> Result<Scanned> {
        let tree = &mut self.scanned.tree;
        tree.set_contents(Arc::new(Members { archive: self.archive, runs: Arc::new(self.runs) }));
        if !self.options.is_layer {
            whiteouts::convert(tree, self.options.whiteouts)?;
        }
        self.scanned.metadata_bytes = self.options.metadata_bytes_max - self.bytes_left;
        Ok(self.scanned)
    }

    fn charge(&mut self, bytes: usize) -> Result<()> {
        let left = self.bytes_left.checked_sub(bytes as u64);
        self.bytes_left = left.ok_or_else(|| {
            let max = Human(self.options.metadata_bytes_max);
            refused(format!("with it the metadata of the archive takes more than {max}, the limit"))
        })?;
        Ok(())
    }

    fn place_root(&mut self, member: Member) -> Result<()> {
        match member.kind {
            MemberKind::Directory => {
                self.note(InodeId::ROOT, Note::Whole)?;
                self.scanned.tree.change(InodeId::ROOT, |root| *root = member.metadata)
            }
            // Some programs write the root twice, as a directory and as a link to that.
            MemberKind::HardLink(target) if names(&target).is_ok_and(|names| names.is_empty()) => Ok(()),
            _ => Err(refused("the root would be no directory")),
        }
    }

    /// Returns the directory at a path, and makes those that are missing.
    fn directories(&mut self, path: &[&[u8]], mtime: Timestamp) -> Result<InodeId> {
        let mut id = InodeId::ROOT;
        let mut path_bytes = 0;
        for &name in path {
            path_bytes += name.len() + 1;
            let tree = &self.scanned.tree;
            id = match tree.child(id, name) {
                Some(child) if tree.is_directory(child) => child,
                Some(child) => {
                    let is_link = tree.link_target(child).is_some();
                    let what = if is_link { "a symbolic link" } else { "no directory" };
                    return Err(refused(format!("it is below '{}', {what}", shown(name))));
                }
                None => {
                    self.charge(INODE_BYTES + 2 * path_bytes)?;
                    let metadata = Metadata { mtime, ..Metadata::default() };
                    let id = self.scanned.tree.add(id, name, metadata, Body::Directory)?;
                    self.note(id, Note::Implied)?;
                    id
                }
            };
        }
        Ok(id)
    }

    /// Notes for the merge of layers what a tree does not say.
    fn note(&mut self, id: InodeId, note: Note) -> Result<()> {
        if self.options.is_layer { self.scanned.notes.put(id, note) } else { Ok(()) }
    }

    fn body(&mut self, kind: MemberKind) -> Result<Body> {
        Ok(match kind {
            MemberKind::Regular(data) => self.regular(data)?,
            MemberKind::Directory | MemberKind::HardLink(_) => Body::Directory,
            MemberKind::Symlink(target) => {
                self.charge(target.len())?;
                Body::Symlink(target.into())
            }
            MemberKind::CharDevice(number) => Body::CharDevice(number),
            MemberKind::BlockDevice(number) => Body::BlockDevice(number),
            MemberKind::Fifo => Body::Fifo,
        })
    }

    fn regular(&mut self, data: Data) -> Result<Body> {
        if let Some(runs) = &data.runs {
            let chunks = (data.len_bytes / CHUNK_BYTES).min(CHUNKS_MAX) as usize;
            self.charge(size_of_val(runs.as_ref()) + 4 * chunks)?;
        }
        let sum = self.content_bytes.checked_add(data.len_bytes).filter(|sum| *sum <= CONTENT_BYTES_MAX);
        self.content_bytes = sum.ok_or_else(|| {
            refused(format!("with its {} bytes the files have more than 2^47", data.len_bytes))
        })?;
        let Data { at, len_bytes, runs } = data;
        let mut words = [at, 0, 0, 0, 0];
        if let Some(runs) = runs.filter(|_| len_bytes > 0) {
            (words[1], words[2]) = (self.runs.len() as u64 + 1, runs.len() as u64);
            for run in runs {
                self.runs.push(run)?;
            }
        }
        Ok(Body::Stored(Stored { len_bytes, words }))
    }

    fn add(&mut self, parent: InodeId, name: &[u8], metadata: Metadata, body: Body) -> Result<()> {
        let tree = &mut self.scanned.tree;
        match (tree.child(parent, name).filter(|id| tree.is_directory(*id)), &body) {
            (Some(id), Body::Directory) => {
                tree.change(id, |other| *other = metadata)?;
                return self.note(id, Note::Whole);
            }
            (Some(id), _) => check_empty(tree, id)?,
            (None, _) => {}
        }
        tree.add(parent, name, metadata, body)?;
        Ok(())
    }

    fn link(&mut self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<()> {
        let tree = &mut self.scanned.tree;
        let found = names(target)
            .map_err(|error| described(error, |what| format!("a hard link to '{}': {what}", shown(target))))?
            .into_iter()
            .try_fold(InodeId::ROOT, |id, name| tree.child(id, name));
        let Some(id) = found else {
            if self.options.is_layer {
                self.charge(target.len())?;
                let placeholder = Body::Symlink(target.into());
                let id = self.scanned.tree.add(parent, name, Metadata::default(), placeholder)?;
                return self.note(id, Note::LinkBelow);
            }
            let what = format!("a hard link to '{}', which is not before it in the archive", shown(target));
            return Err(refused(what));
        };
        if tree.is_directory(id) {
            return match tree.child(parent, name) == Some(id) {
                true => Ok(()),
                false => Err(refused(format!("a hard link to '{}', a directory", shown(target)))),
            };
        }
        if let Some(replaced) = tree.child(parent, name).filter(|id| tree.is_directory(*id)) {
            check_empty(tree, replaced)?;
        }
        tree.link(parent, name, id)
    }
}

/// Whether nothing but the name of a member counts, because it is a whiteout: some are hard links to a file of an AUFS that
/// is not in the archive. The directories by which AUFS describes a layer may have files that other members are links to.
fn is_mark(whiteout: &WhiteoutName<'_>, kind: &MemberKind) -> bool {
    match whiteout {
        WhiteoutName::Of(_) | WhiteoutName::Nothing => true,
        WhiteoutName::Opaque | WhiteoutName::Meta => matches!(kind, MemberKind::HardLink(_)),
    }
}

/// Splits a path into names. A slash at the beginning is dropped, as programs that extract do.
fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names: Vec<&[u8]> =
        path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    let what = match path {
        b"" => "it has no name",
        _ if names.contains(&b"..".as_slice()) => "a path with '..'",
        path if path.contains(&0) => "a path with a NUL byte",
        path if path.len() > PATH_BYTES_MAX => "a path of more than 4095 bytes",
        _ if names.iter().any(|name| name.len() > NAME_LEN_MAX) => "a name of more than 255 bytes",
        _ => return Ok(names),
    };
    Err(refused(what))
}

fn check_empty(tree: &Tree, id: InodeId) -> Result<()> {
    match tree.entries(id).next().is_some() {
        true => Err(refused("a directory that is not empty has this name already")),
        false => Ok(()),
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
