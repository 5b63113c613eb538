//! An inode, its attributes, and where a symbolic link leads.

use super::attribute;
use crate::read::FileKind;
use crate::{Finding, Node};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Tells what is wrong.
pub(super) fn judge(node: &Node, path: &[u8], tell: &mut dyn FnMut(Finding)) {
    let inode = node.inode();
    if inode.nlink == 0 {
        tell(Finding::error(path, Some(inode.address), "it has a name, and says that it has none"));
    }
    if !inode.kind.has_contents() && inode.size != 0 {
        let what = format!("{} with {} bytes of contents", inode.kind.name(), inode.size);
        tell(Finding::warning(path, Some(inode.address), what));
    }
    if inode.kind == FileKind::Directory && inode.size == 0 {
        tell(Finding::warning(path, Some(inode.address), "a directory without any entry"));
    }
    if inode.kind == FileKind::Symlink {
        judge_link(node, path, tell);
    }
    judge_xattrs(node, path, tell);
}

fn judge_link(node: &Node, path: &[u8], tell: &mut dyn FnMut(Finding)) {
    let what = match node.read_link() {
        Err(error) => return tell(Finding::of(path, &error)),
        Ok(target) if target.is_empty() => "a symbolic link to nothing",
        Ok(target) if target.contains(&0) => "a symbolic link with a NUL in its target",
        Ok(_) => return,
    };
    tell(Finding::error(path, Some(node.inode().address), what));
}

/// Every attribute can be read, is there once, and is not ruled out by the filter, which would hide it. One at a time is in
/// memory, and of the others a hash of the name.
fn judge_xattrs(node: &Node, path: &[u8], tell: &mut dyn FnMut(Finding)) {
    if node.inode().xattr_bytes == 0 {
        return;
    }
    let at = node.inode().xattr_address();
    let (mut seen, key) = (HashSet::new(), RandomState::new());
    let visited = node.visit_xattrs(|xattr, is_ruled_out| {
        let name = xattr.name.escape_ascii();
        if let Some((severity, what)) = attribute::judge(&xattr, node.kind()) {
            let what = format!("attribute '{name}': {what}");
            tell(Finding { severity, ..Finding::error(path, at, what) });
        }
        if !seen.insert(key.hash_one(&xattr.name)) {
            tell(Finding::error(path, at, format!("attribute '{name}' is there twice")));
        } else if is_ruled_out {
            let what = format!("attribute '{name}' is there, and the filter says that it is not");
            tell(Finding::error(path, at, what));
        }
    });
    if let Err(error) = visited {
        tell(Finding::of(path, &error));
    }
}
