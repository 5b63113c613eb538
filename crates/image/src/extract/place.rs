//! A directory that is being filled, kept until nobody needs it.

use super::{Shared, dress};
use crate::{Finding, Node};
use pagefold_sys::beneath::Folder;
use std::sync::Arc;

/// A directory of the target. What its inode says is set when the last of its users lets go: the walk, the files in it
/// that are being written, and the directories in it.
pub(super) struct Place {
    pub(super) folder: Folder,
    /// The directory above; the target has none.
    above: Option<Arc<Place>>,
    /// The inode, and its path. The target keeps what it has unless all of the image is extracted.
    dressed_as: Option<(Node, Box<[u8]>)>,
}

impl Place {
    /// The target itself; `node` if it is to become like that, the root of the image.
    pub(super) fn root(folder: Folder, node: Option<Node>) -> Arc<Self> {
        Arc::new(Place { folder, above: None, dressed_as: node.map(|node| (node, b"/"[..].into())) })
    }

    /// A directory in `above`.
    pub(super) fn within(above: &Arc<Place>, folder: Folder, node: &Node, path: &[u8]) -> Arc<Self> {
        Arc::new(Place { folder, above: Some(above.clone()), dressed_as: Some((node.clone(), path.into())) })
    }

    /// Lets go of it; whoever is last finishes it, and then the ones above if they have waited for it.
    pub(super) fn release(self: Arc<Self>, shared: &Shared<'_>) {
        let mut next = Some(self);
        while let Some(place) = next.and_then(Arc::into_inner) {
            if let Some((node, path)) = &place.dressed_as
                && let Err(error) = dress::folder(&place.folder, node, shared)
            {
                shared.finding(Finding::error(path, None, error));
            }
            next = place.above;
        }
    }
}
