//! Changes of the extended attributes of a tree: which of the source stay, and which the caller adds.
//!
//! Sources apply the filter to their finished tree, before whiteouts become attributes, which stay; a directory uses it
//! earlier too, because it need not read what is left out. The caller adds attributes afterwards.
//!
//! | module | contents |
//! |---|---|
//! | `filter` | the attributes of the source that stay |
//! | `contexts` | labels of SELinux by path, from a file |
//! | `set` | attributes that the caller gives |
//! | `text` | values as text |

mod contexts;
mod filter;
mod set;
mod text;

pub use contexts::{CONTEXTS_BYTES_MAX, FileContexts};
pub use filter::{XattrFilter, XattrPattern};
pub use set::SetXattr;

use crate::Result;
use crate::tree::{InodeId, Tree, Xattr};

/// The attribute with the label of SELinux.
const SELINUX: &[u8] = b"security.selinux";

/// The attributes that are added to a tree, in this order.
#[derive(Debug, Clone, Default)]
pub struct XattrChanges {
    /// Labels of SELinux. A file for which there is none keeps that of the source, unless the filter says that it is replaced.
    pub contexts: Option<FileContexts>,
    /// Further attributes. Of several with one name the last counts.
    pub set: Vec<SetXattr>,
}

impl XattrChanges {
    /// Changes the attributes of all files of a tree.
    pub fn apply(&self, tree: &mut Tree) -> Result<()> {
        if let Some(contexts) = &self.contexts {
            contexts.apply(tree)?;
        }
        self.set.iter().try_for_each(|set| set.apply(tree))
    }
}

/// Gives an inode an attribute, in place of one with this name.
fn put(tree: &mut Tree, id: InodeId, name: &[u8], value: &[u8]) -> Result<()> {
    tree.change(id, |metadata| insert(&mut metadata.xattrs, name, value))
}

/// Adds an attribute at its place by name, in place of one with this name.
pub(crate) fn insert(xattrs: &mut Vec<Xattr>, name: &[u8], value: &[u8]) {
    match xattrs.binary_search_by(|(other, _)| other.as_ref().cmp(name)) {
        Ok(at) => xattrs[at].1 = value.into(),
        Err(at) => xattrs.insert(at, (name.into(), value.into())),
    }
}
