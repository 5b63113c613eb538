//! The layers of a container, merged into one tree: the files that a runtime shows.
//!
//! A source makes the tree of each layer, whose whiteouts stay as they are, and [`Layers::push`] merges it into that of the
//! layers below. Whiteouts are files `.wh.NAME`, or what overlayfs reads: devices 0:0 and attributes. They remove names of
//! lower layers only, wherever they stand in their archive. Of a directory that several layers have, the attributes of the
//! uppermost count; any other file replaces what has its name. A name that a layer replaces or removes is one name of its
//! file: its other names keep the contents.
//!
//! A directory that an archive has no member for, because it names only files below it, changes nothing of the lower one, and
//! is reached through symbolic links of lower layers (`usr/lib` for `lib`), as programs that extract do.
//!
//! The result has no whiteouts, unless it is to be a layer again: then the whiteouts of all layers stay, as files, until the end
//! converts them.
//!
//! | module | contents |
//! |---|---|
//! | `merge` | merging one layer |
//! | `resolve` | paths through symbolic links |
//! | `marks` | recognizing whiteouts, and attributes of overlayfs |
//!
//! Not here: directories as layers, and the files of overlayfs that name others (`redirect`, `metacopy`), which are refused.

mod marks;
mod merge;
mod resolve;

use super::tar::TarOptions;
use super::{NestedOverlay, OnEntry, Scanned, Whiteouts, whiteouts};
use crate::content::{Content, Contents, SourceDevice, Stored};
use crate::rules::Pattern;
use crate::table::{Spill, Table};
use crate::tree::{InodeId, Metadata, Tree};
use crate::xattrs::XattrFilter;
use crate::{BuildError, Result};
use merge::Merge;
use resolve::Resolver;
use std::path::Path;
use std::sync::Arc;

/// Layers at most. Runtimes mount some 500 at most, and registries have 127.
pub const LAYERS_MAX: usize = 512;

/// A property of an inode of an archive that the tree does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The archive has all of it.
    Whole = 0,
    /// A directory without a member.
    Implied = 1,
    /// A hard link to a file of a lower layer, whose path is its target as a symbolic link.
    LinkBelow = 2,
}

/// The notes of a tree.
#[derive(Debug)]
pub struct Notes(Table<u8>);

impl Notes {
    /// Every inode is whole.
    pub fn new(spill: &Spill) -> Self {
        Notes(Table::new(spill))
    }

    /// Notes something of an inode.
    pub fn put(&mut self, id: InodeId, note: Note) -> Result<()> {
        self.0.put(id.index(), note as u8, Note::Whole as u8)
    }

    fn is(&self, id: InodeId, note: Note) -> bool {
        self.0.get_or(id.index(), Note::Whole as u8) == note as u8
    }

    /// The hard links to files of lower layers.
    fn links_below(&self) -> impl Iterator<Item = InodeId> + '_ {
        (0..self.0.len()).map(InodeId::at).filter(|id| self.is(*id, Note::LinkBelow))
    }
}

/// Layers that are merged, the lowest first.
#[derive(Debug)]
pub struct Layers {
    merged: Scanned,
    contents: LayerContents,
    /// The form of the whiteouts of the result; `None`: it has none.
    kept: Option<Whiteouts>,
    /// The options of the layers that are archives.
    tar: TarOptions,
    /// All layers share its limit.
    resolver: Resolver,
}

impl Layers {
    /// Begins without a layer. `kept` is the form of whiteouts if the result is to be a layer again; `None`: it has none. Large
    /// trees go to `spill`.
    pub fn new(kept: Option<Whiteouts>, spill: &Spill) -> Result<Self> {
        let merged = Scanned::new(Tree::with_spill(Metadata::default(), spill)?);
        let tar = TarOptions { is_layer: true, spill: spill.clone(), ..TarOptions::default() };
        let (contents, resolver) = (LayerContents::default(), Resolver::default());
        Ok(Layers { merged, contents, kept, tar, resolver })
    }

    /// The options for reading an archive that is the next layer. All archives share the limit of metadata.
    pub fn tar_options(&self) -> &TarOptions {
        &self.tar
    }

    /// Merges the next layer, an archive that was read with [`tar_options`](Self::tar_options), or an image. `path` is for
    /// messages. `on_entry` is called for each entry, at least once, with the number of its calls, and may end the merge:
    /// [`BuildError::Interrupted`]. After an error the layers are of no use.
    pub fn push(&mut self, upper: Scanned, path: &Path, on_entry: &mut OnEntry<'_>) -> Result<()> {
        let number = self.contents.0.len();
        if number >= LAYERS_MAX {
            let what = format!("there are more than {LAYERS_MAX} layers; merge some of them first");
            return Err(BuildError::Options { what });
        }
        let Some(contents) = upper.tree.contents().cloned() else {
            let what = "its contents cannot be read as those of a layer".into();
            return Err(BuildError::UnknownSource { path: path.into(), what });
        };
        self.contents.0.push(contents);
        self.merged.dropped_xattrs += upper.dropped_xattrs;
        self.tar.metadata_bytes_max = self.tar.metadata_bytes_max.saturating_sub(upper.metadata_bytes);
        let layer = (number as u64, self.kept.is_some());
        let merge = Merge::new(&mut self.merged.tree, &upper, layer, &mut self.resolver, on_entry);
        let merged = merge.and_then(Merge::run);
        merged.map_err(|error| match error {
            BuildError::Refused { path: member, what } => {
                BuildError::Archive { archive: path.into(), member, what }
            }
            error => error,
        })
    }

    /// Ends the merge, without the names that match a pattern of `exclude`, and with the attributes that `xattrs` keeps.
    pub fn finish(mut self, exclude: &[Pattern], xattrs: &XattrFilter) -> Result<Scanned> {
        let tree = &mut self.merged.tree;
        tree.set_contents(Arc::new(self.contents));
        // As of one layer, a pattern sees the names of whiteouts as the layers have them.
        tree.exclude(exclude)?;
        xattrs.apply_to(tree)?;
        if let Some(kept) = self.kept {
            whiteouts::convert(tree, kept, NestedOverlay::Keep)?;
        }
        Ok(self.merged)
    }
}

/// The contents of all layers. The last word of a file is the number of its layer; archives and images do not use it.
#[derive(Debug, Default)]
struct LayerContents(Vec<Arc<dyn Contents>>);

/// The position of the number of the layer.
const LAYER_WORD: usize = 4;

impl Contents for LayerContents {
    fn content(&self, file: &Stored, path: &[u8]) -> Arc<dyn Content> {
        self.0[file.words[LAYER_WORD] as usize].content(file, path)
    }

    fn devices(&self) -> Vec<SourceDevice> {
        self.0.iter().flat_map(|layer| layer.devices()).collect()
    }

    fn device_of(&self, file: &Stored) -> usize {
        file.words[LAYER_WORD] as usize
    }
}
