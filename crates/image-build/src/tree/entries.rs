//! Visits of all names of a tree, and changes that need them.

use super::{InodeId, Name, Tree};
use crate::table::Table;
use crate::{BuildError, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Length of the contents of all files at most, if names of one inode become separate files: 128 TiB.
const CONTENT_BYTES_MAX: u64 = 1 << 47;

/// A name in a directory.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Entry {
    /// The name.
    pub name: Name,
    /// The inode.
    pub id: InodeId,
    /// The directory.
    pub parent: InodeId,
}

impl Tree {
    /// Visits all names but that of the root, in the order of an image: those of a directory follow each other, and
    /// directories come before those in them. `visit` may change the inode, and the entries of its directory; the third
    /// argument says whether it is the first name of the inode.
    pub(crate) fn visit(
        &mut self,
        mut visit: impl FnMut(&mut Tree, Entry, bool) -> Result<()>,
    ) -> Result<()> {
        let spill = self.spill().clone();
        let mut seen = Table::filled(&spill, self.len(), 0u8)?;
        let mut stack = Table::new(&spill);
        stack.push(InodeId::ROOT)?;
        while let Some(parent) = stack.pop() {
            let mut listed = Table::new(&spill);
            let mut entries = self.entries(parent);
            while let Some((name, id)) = entries.next_entry() {
                listed.push(Entry { name, id, parent })?;
            }
            let first = stack.len();
            for entry in listed.iter() {
                if self.is_directory(entry.id) {
                    stack.push(entry.id)?;
                }
                let is_first = seen.get_or(entry.id.index(), 0) == 0;
                seen.put(entry.id.index(), 1, 0)?;
                visit(self, entry, is_first)?;
            }
            stack.reverse_from(first);
        }
        Ok(())
    }

    /// Makes a file of each name of a hard link. The contents are those of the first name, and need not be stored again.
    pub fn separate_links(&mut self) -> Result<()> {
        let mut content_bytes = 0u64;
        self.visit(|tree, entry, is_first| {
            content_bytes = content_bytes.saturating_add(tree.content_bytes(entry.id));
            if is_first {
                return Ok(());
            }
            // An archive of some KiB can name a file of any length many times.
            if content_bytes > CONTENT_BYTES_MAX {
                let what = "without hard links the files have more than 2^47 bytes";
                return Err(BuildError::TooLarge { what: what.into() });
            }
            let record = tree.record(entry.id);
            let id = tree.push(record)?;
            let name = tree.name(entry.name).to_vec();
            tree.enter(entry.parent, &name, id).map(|_| ())
        })
    }
}
