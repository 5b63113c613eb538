//! Merges one layer into the tree of those below.
//!
//! Two passes over the directories of the layer: the first one removes what whiteouts hide, while the tree has nothing of
//! the layer, so that the order of members does not matter; the second one adds the files. Those below links of lower
//! layers come last, because the layer may change where a link leads. A file that the layer has twice then, through such a link
//! and directly, is refused: the tree of a layer does not know which of its members was the last one.

use super::marks::{Entry, is_opaque, without_attributes};
use super::resolve::Resolver;
use super::{LAYER_WORD, Note, Notes};
use crate::content::Stored;
use crate::source::whiteouts::{OPAQUE, PREFIX};
use crate::source::{OnEntry, Scanned};
use crate::table::Table;
use crate::tree::{Body, InodeId, Metadata, Tree};
use crate::{BuildError, Result};
use pagefold_image::read::FileKind;
use std::ops::ControlFlow;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// In place of a file that is not merged yet: no file is the root.
const NOT_YET: InodeId = InodeId::ROOT;

/// A directory of the layer, and the one of the merged tree that it is merged into.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Pair {
    upper: InodeId,
    merged: InodeId,
}

const ROOTS: Pair = Pair { upper: InodeId::ROOT, merged: InodeId::ROOT };

/// The merge of one layer.
pub struct Merge<'a> {
    merged: &'a mut Tree,
    upper: &'a Tree,
    notes: &'a Notes,
    /// The number of the layer, for its contents.
    layer: u64,
    /// Whether whiteouts stay in the merged tree, as files.
    keeps: bool,
    /// The inodes of the merged tree for those of the layer that are no directories.
    ids: Table<InodeId>,
    /// The first inode of the merged tree that is of the layer.
    first_own: usize,
    /// For each inode of lower layers 1 if the layer has something in it, or a name for it.
    touched: Table<u8>,
    /// Directories of the layer whose name a lower layer has for another file, and the directories with that name.
    behind: Table<Pair>,
    /// Whether only those directories are left.
    is_behind: bool,
    resolver: &'a mut Resolver,
    on_entry: &'a mut OnEntry<'a>,
    /// Calls of `on_entry`.
    count: u64,
}

impl<'a> Merge<'a> {
    /// Begins the merge of layer number `layer`. `on_entry` may end it.
    pub fn new(
        merged: &'a mut Tree,
        upper: &'a Scanned,
        (layer, keeps): (u64, bool),
        resolver: &'a mut Resolver,
        on_entry: &'a mut OnEntry<'a>,
    ) -> Result<Self> {
        let Scanned { tree: upper, layer_notes: notes, .. } = upper;
        let (ids, first_own) = (Table::filled(merged.spill(), upper.len(), NOT_YET)?, merged.len());
        let (touched, behind) = (Table::new(merged.spill()), Table::new(merged.spill()));
        let (is_behind, count) = (false, 0);
        Ok(Merge {
            merged,
            upper,
            notes,
            layer,
            keeps,
            ids,
            first_own,
            touched,
            behind,
            is_behind,
            resolver,
            on_entry,
            count,
        })
    }

    /// Merges the layer.
    pub fn run(mut self) -> Result<()> {
        self.find_links_below()?;
        self.remove_hidden()?;
        self.add_files()
    }

    /// Finds the files of hard links to lower layers: the layer may remove their names.
    fn find_links_below(&mut self) -> Result<()> {
        for id in self.notes.links_below() {
            self.go_on()?;
            let target = self.upper.link_target(id).unwrap_or_default();
            let found = self.resolver.resolve(self.merged, target, false)?;
            match found.filter(|found| !self.merged.is_directory(*found)) {
                Some(found) => self.ids.set(id.index(), found),
                None => {
                    let what = format!(
                        "a hard link to '{}', which is no file before it in its layer, nor in a lower one (whose links are \
                         followed, but not those of its layer)",
                        String::from_utf8_lossy(target)
                    );
                    return Err(BuildError::refused(&self.upper.path_of(id), what));
                }
            }
        }
        Ok(())
    }

    /// Removes the names that the layer hides.
    fn remove_hidden(&mut self) -> Result<()> {
        let upper = self.upper;
        let mut pairs = Table::new(self.merged.spill());
        pairs.push(ROOTS)?;
        while let Some(pair) = pairs.pop() {
            self.go_on()?;
            if is_opaque(upper, pair.upper) {
                self.merged.clear(pair.merged);
            }
            for (name, child) in upper.entries(pair.upper) {
                if let Entry::Whiteout(hidden) = self.entry(pair.upper, name, child)? {
                    self.merged.remove(pair.merged, hidden);
                }
            }
            for (name, child) in upper.entries(pair.upper) {
                if !upper.is_directory(child) || self.entry(pair.upper, name, child)? != Entry::File {
                    continue;
                }
                self.go_on()?;
                let below = match self.merged.child(pair.merged, name) {
                    Some(below) if self.merged.is_directory(below) => Some(below),
                    Some(_) if self.is_implied(child) => self.directory_behind_link(pair.merged, name)?,
                    _ => None,
                };
                if let Some(merged) = below {
                    pairs.push(Pair { upper: child, merged })?;
                }
            }
        }
        Ok(())
    }

    /// Adds the files of the layer.
    fn add_files(&mut self) -> Result<()> {
        let upper = self.upper;
        if self.layer == 0 || !self.is_implied(InodeId::ROOT) {
            self.change_directory(ROOTS)?;
        }
        let mut pairs = Table::new(self.merged.spill());
        pairs.push(ROOTS)?;
        while let Some(pair) = pairs.pop().map_or_else(|| self.next_behind(), |pair| Ok(Some(pair)))? {
            self.touch_directory(pair.merged)?;
            if self.keeps && is_opaque(upper, pair.upper) {
                self.mark(pair.merged, OPAQUE, upper.plain_metadata(pair.upper))?;
            }
            for (name, child) in upper.entries(pair.upper) {
                self.go_on()?;
                match self.entry(pair.upper, name, child)? {
                    Entry::File if upper.is_directory(child) => {
                        if let Some(merged) = self.add_directory(pair, name, child)? {
                            pairs.push(Pair { upper: child, merged })?;
                        }
                    }
                    Entry::File => self.add_file(pair, name, child)?,
                    Entry::Whiteout(hidden) if self.keeps => {
                        let mark = [PREFIX, hidden].concat();
                        self.mark(pair.merged, &mark, upper.plain_metadata(child))?;
                    }
                    Entry::Whiteout(_) | Entry::Nothing => {}
                }
            }
        }
        Ok(())
    }

    /// The next directory behind a link of a lower layer, which leads where it does now.
    fn next_behind(&mut self) -> Result<Option<Pair>> {
        let Some(Pair { upper: child, merged: parent }) = self.behind.pop() else { return Ok(None) };
        self.go_on()?;
        self.is_behind = true;
        let (in_upper, name) = self.upper.parent(child).unwrap_or((InodeId::ROOT, b""));
        let found = match self.merged.child(parent, name) {
            Some(found) if self.merged.is_directory(found) => Some(found),
            _ => self.directory_behind_link(parent, name)?,
        };
        match found {
            Some(merged) => Ok(Some(Pair { upper: child, merged })),
            None => {
                let what = "a lower layer has this name for a file that is no directory, and the layer has files below it";
                Err(self.refused(in_upper, name, what))
            }
        }
    }

    /// Adds a directory, or changes the one that is there. Returns the directory of the merged tree; `None`: it comes later.
    fn add_directory(&mut self, pair: Pair, name: &[u8], child: InodeId) -> Result<Option<InodeId>> {
        let is_implied = self.is_implied(child);
        let replaces = match self.merged.child(pair.merged, name) {
            Some(merged) if self.merged.is_directory(merged) => {
                if !is_implied {
                    self.change_directory(Pair { upper: child, merged })?;
                }
                return Ok(Some(merged));
            }
            Some(_) if is_implied => {
                self.behind.push(Pair { upper: child, merged: pair.merged })?;
                return Ok(None);
            }
            other => other.is_some(),
        };
        self.check_replaced(pair, name)?;
        let metadata = self.metadata(pair.upper, name, child)?;
        let plain = Metadata { xattrs: Vec::new(), ..metadata };
        let merged = self.merged.add(pair.merged, name, metadata, Body::Directory)?;
        if replaces && self.keeps {
            // Of the layers below there is nothing in it.
            self.mark(pair.merged, &[PREFIX, name].concat(), plain)?;
        }
        Ok(Some(merged))
    }

    /// Fails if a file of the layer, which lies behind a link, would replace another one of the layer, or one with such files
    /// in it.
    fn check_replaced(&self, pair: Pair, name: &[u8]) -> Result<()> {
        let replaced = self.merged.child(pair.merged, name).map(InodeId::index);
        let is_own = |index: usize| index >= self.first_own || self.touched.get_or(index, 0) == 1;
        match self.is_behind && replaced.is_some_and(is_own) {
            false => Ok(()),
            true => {
                let what = format!(
                    "the layer has '{}' twice, through a link of a lower layer and directly; leave one of them out",
                    String::from_utf8_lossy(&path_in(self.merged, pair.merged, name))
                );
                Err(self.refused(pair.upper, name, what))
            }
        }
    }

    /// Notes that the layer has something in a directory, and in those above.
    fn touch_directory(&mut self, id: InodeId) -> Result<()> {
        let mut next = Some(id);
        while let Some(id) = next.filter(|id| self.touched.get_or(id.index(), 0) == 0) {
            self.touched.put(id.index(), 1, 0)?;
            next = self.merged.parent(id).map(|(parent, _)| parent);
        }
        Ok(())
    }

    fn change_directory(&mut self, pair: Pair) -> Result<()> {
        let metadata = self
            .metadata_of(pair.upper)
            .map_err(|what| BuildError::refused(&self.upper.directory_path(pair.upper), what))?;
        self.merged.change(pair.merged, |merged| *merged = metadata)
    }

    /// Adds a name of a file that is no directory.
    fn add_file(&mut self, pair: Pair, name: &[u8], child: InodeId) -> Result<()> {
        self.check_replaced(pair, name)?;
        let id = self.ids.get(child.index());
        if id != NOT_YET {
            self.touched.put(id.index(), 1, 0)?;
            return self.merged.link(pair.merged, name, id);
        }
        let metadata = self.metadata(pair.upper, name, child)?;
        let id = self.merged.add(pair.merged, name, metadata, self.body(child))?;
        self.ids.set(child.index(), id);
        Ok(())
    }

    fn body(&self, id: InodeId) -> Body {
        let upper = self.upper;
        let empty = || Body::Stored(Stored { len_bytes: 0, words: [0; 5] });
        match upper.kind(id) {
            FileKind::Directory => Body::Directory,
            FileKind::Regular => match upper.stored(id) {
                Some(mut stored) => {
                    stored.words[LAYER_WORD] = self.layer;
                    Body::Stored(stored)
                }
                None if upper.content_bytes(id) == 0 => empty(),
                None => upper.content(id, b"").map_or_else(empty, Body::Regular),
            },
            FileKind::Symlink => Body::Symlink(upper.link_target(id).unwrap_or_default().into()),
            FileKind::CharDevice => upper.device(id).map_or(Body::Fifo, Body::CharDevice),
            FileKind::BlockDevice => upper.device(id).map_or(Body::Fifo, Body::BlockDevice),
            FileKind::Fifo => Body::Fifo,
            FileKind::Socket => Body::Socket,
        }
    }

    /// Adds a file that stands for a whiteout.
    fn mark(&mut self, parent: InodeId, name: &[u8], metadata: Metadata) -> Result<()> {
        let empty = Body::Stored(Stored { len_bytes: 0, words: [0; 5] });
        self.merged.add(parent, name, metadata, empty).map(drop)
    }

    /// The directory to which a symbolic link of the merged tree leads.
    fn directory_behind_link(&mut self, directory: InodeId, name: &[u8]) -> Result<Option<InodeId>> {
        let path = path_in(self.merged, directory, name);
        let found = self.resolver.resolve(self.merged, &path, true)?;
        Ok(found.filter(|found| self.merged.is_directory(*found)))
    }

    fn go_on(&mut self) -> Result<()> {
        self.count += 1;
        match (self.on_entry)(self.count) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(BuildError::Interrupted),
        }
    }

    fn is_implied(&self, id: InodeId) -> bool {
        self.notes.is(id, Note::Implied)
    }

    fn entry<'n>(&self, directory: InodeId, name: &'n [u8], id: InodeId) -> Result<Entry<'n>> {
        Entry::of(self.upper, name, id).map_err(|_| self.refused(directory, name, "a whiteout of no name"))
    }

    fn metadata(&self, directory: InodeId, name: &[u8], id: InodeId) -> Result<Metadata> {
        self.metadata_of(id).map_err(|what| self.refused(directory, name, what))
    }

    fn metadata_of(&self, id: InodeId) -> Result<Metadata, String> {
        without_attributes(self.upper.metadata(id))
    }

    fn refused(&self, directory: InodeId, name: &[u8], what: impl Into<String>) -> BuildError {
        BuildError::refused(&path_in(self.upper, directory, name), what)
    }
}

/// The path of a name in a directory.
fn path_in(tree: &Tree, directory: InodeId, name: &[u8]) -> Vec<u8> {
    let mut path = tree.directory_path(directory);
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend(name);
    path
}
