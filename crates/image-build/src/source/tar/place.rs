//! Puts members into a tree, as extraction into an empty directory would.

use super::archive::{Archive, LEN_BYTES_MAX};
use super::content::Members;
use super::fault::{described, refused};
use super::kind::{Data, MemberKind};
use super::members::Member;
use super::options::TarOptions;
use super::resolve::{PATH_BYTES_MAX, Resolver, names};
use super::sparse::SparseRun;
use crate::Result;
use crate::content::Stored;
use crate::source::layers::Note;
use crate::source::whiteouts::WhiteoutName;
use crate::source::{Scanned, Whiteouts, nested};
use crate::table::Table;
use crate::tree::{Body, InodeId, Metadata, Tree};
use pagefold_image::read::inode::Timestamp;
use pagefold_page::size::Human;
use std::sync::Arc;

/// Memory of an inode without its names and attributes, bytes, roughly.
const INODE_BYTES: usize = 200;
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
    resolver: Resolver,
    /// The runs of sparse files.
    runs: Table<SparseRun>,
}

impl<'o> Placer<'o> {
    /// Begins with a root directory.
    pub fn new(archive: Arc<Archive>, options: &'o TarOptions) -> Result<Self> {
        let spill = &options.spill;
        let mut scanned = Scanned::new(Tree::with_spill(Metadata::default(), spill)?);
        if options.is_layer {
            scanned.layer_notes.put(InodeId::ROOT, Note::Implied)?;
        }
        Ok(Placer {
            archive,
            options,
            scanned,
            runs: Table::new(spill),
            bytes_left: options.metadata_bytes_max,
            content_bytes: 0,
            has_root: false,
            resolver: Resolver::new(),
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
        let parent = self.directories(directories, name, mtime)?;
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

    /// Ends the tree: removes what is excluded, and converts whiteouts.
    pub fn finish(mut self) -> Result<Scanned> {
        let tree = &mut self.scanned.tree;
        tree.set_contents(Arc::new(Members { archive: self.archive, runs: Arc::new(self.runs) }));
        tree.exclude(&self.options.exclude)?;
        let TarOptions { xattrs, nested, whiteouts, is_layer, .. } = self.options;
        self.scanned.metadata_bytes = self.options.metadata_bytes_max - self.bytes_left;
        if !is_layer {
            nested::convert(&mut self.scanned, xattrs, *nested, *whiteouts)?;
        }
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

    /// Returns the directory at a path, through symbolic links, and makes those that are missing. `name` is to be there.
    fn directories(&mut self, path: &[&[u8]], name: &[u8], mtime: Timestamp) -> Result<InodeId> {
        let resolved = self.resolver.resolve(&self.scanned.tree, path)?;
        if resolved.path_bytes + name.len() > PATH_BYTES_MAX {
            return Err(refused("its symbolic links lead to a path of more than 4095 bytes"));
        }
        let mut id = resolved.directory;
        for name in &resolved.missing {
            self.charge(INODE_BYTES + 2 * resolved.path_bytes)?;
            let metadata = Metadata { mtime, ..Metadata::default() };
            id = self.scanned.tree.add(id, name, metadata, Body::Directory)?;
            self.note(id, Note::Implied)?;
        }
        Ok(id)
    }

    /// Notes for the merge of layers what a tree does not say.
    fn note(&mut self, id: InodeId, note: Note) -> Result<()> {
        if self.options.is_layer { self.scanned.layer_notes.put(id, note) } else { Ok(()) }
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
        let sum = self.content_bytes.checked_add(data.len_bytes).filter(|sum| *sum <= LEN_BYTES_MAX);
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

    /// Adds a member that is no hard link. A directory keeps its entries if the member is one, too; any other file is
    /// replaced, directories with all below them.
    fn add(&mut self, parent: InodeId, name: &[u8], metadata: Metadata, body: Body) -> Result<()> {
        let tree = &mut self.scanned.tree;
        match tree.child(parent, name).filter(|id| tree.is_directory(*id)) {
            Some(id) if matches!(body, Body::Directory) => {
                tree.change(id, |other| *other = metadata)?;
                self.note(id, Note::Whole)
            }
            _ => tree.add(parent, name, metadata, body).map(|_| ()),
        }
    }

    fn link(&mut self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<()> {
        let Some(id) = self.target(target)? else { return self.link_below(parent, name, target) };
        let tree = &mut self.scanned.tree;
        let replaced = tree.child(parent, name);
        if tree.is_directory(id) {
            return match replaced == Some(id) {
                true => Ok(()),
                false => Err(refused(format!("a hard link to '{}', a directory", shown(target)))),
            };
        }
        if replaced.is_some_and(|id| tree.is_directory(id)) {
            // The target may be in the directory that makes room.
            tree.remove(parent, name);
            if self.target(target)?.is_none() {
                return self.link_below(parent, name, target);
            }
        }
        self.scanned.tree.link(parent, name, id)
    }

    /// Adds a hard link whose target is not in the archive.
    fn link_below(&mut self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<()> {
        if !self.options.is_layer {
            return Err(refused(format!(
                "a hard link to '{}', which is not before it in the archive. If this is a layer of a container image, \
                 that file is in a lower layer: build from all layers, the lowest first (and without --layer-cache), or from an \
                 archive of all of them, as 'docker export' writes it, or the directory that 'umoci unpack' makes",
                shown(target)
            )));
        }
        self.charge(target.len())?;
        let placeholder = Body::Symlink(target.into());
        let id = self.scanned.tree.add(parent, name, Metadata::default(), placeholder)?;
        self.note(id, Note::LinkBelow)
    }

    /// The file that a hard link is a name of, if it is in the archive.
    fn target(&mut self, target: &[u8]) -> Result<Option<InodeId>> {
        let tree = &self.scanned.tree;
        let of_link = |error| described(error, |what| format!("a hard link to '{}': {what}", shown(target)));
        let names = names(target).map_err(of_link)?;
        let Some((name, directories)) = names.split_last() else { return Ok(Some(InodeId::ROOT)) };
        let resolved = self.resolver.resolve(tree, directories).map_err(of_link)?;
        Ok(if resolved.missing.is_empty() { tree.child(resolved.directory, name) } else { None })
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

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
