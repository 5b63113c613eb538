//! Checks of one inode, its extended attributes, and the target of a symbolic link.

use super::attribute;
use pagefold_image::read::FileKind;
use pagefold_image::work::WorkLimit;
use pagefold_image::{Finding, Node, rules};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Reports the faults of an inode.
pub(super) fn check(node: &Node, path: &[u8], work: &WorkLimit, report: &mut dyn FnMut(Finding)) {
    let inode = node.inode();
    if inode.nlink == 0 {
        let what = "it has a name, and its link count is 0";
        report(Finding::breaks(&rules::INODE_LINKS, path, Some(inode.address), what));
    }
    if !inode.kind.has_contents() && inode.size != 0 {
        let what = format!("{} with {} bytes of contents", inode.kind.name(), inode.size);
        report(Finding::warning(path, Some(inode.address), what));
    }
    if inode.kind == FileKind::Directory && inode.size == 0 {
        report(Finding::warning(path, Some(inode.address), "a directory without entries"));
    }
    if inode.kind == FileKind::Symlink {
        check_link(node, path, report);
    }
    check_xattrs(node, path, work, report);
}

fn check_link(node: &Node, path: &[u8], report: &mut dyn FnMut(Finding)) {
    let what = match node.read_link() {
        Err(error) => return report(Finding::of(path, &error)),
        Ok(target) if target.is_empty() => "a symbolic link to nothing",
        Ok(target) if target.contains(&0) => "a symbolic link with a NUL in its target",
        Ok(_) => return,
    };
    report(Finding::error(path, Some(node.inode().address), what));
}

/// Reports attributes that cannot be read, occur twice, or are hidden by the inode's name filter: a lookup that
/// consults the filter does not find them. Holds one attribute in memory, and a hash of each name.
fn check_xattrs(node: &Node, path: &[u8], work: &WorkLimit, report: &mut dyn FnMut(Finding)) {
    if node.inode().xattr_bytes == 0 {
        return;
    }
    let at = node.inode().xattr_address();
    let (mut seen, key) = (HashSet::new(), RandomState::new());
    let visited = node.visit_xattrs(work, |xattr, hidden_by_filter| {
        let name = xattr.name.escape_ascii();
        if let Some((severity, what)) = attribute::check(&xattr, node.kind()) {
            let is_list =
                matches!(xattr.name.as_slice(), b"system.posix_acl_access" | b"system.posix_acl_default");
            let rule = if is_list { &rules::XATTR_ACL } else { &rules::XATTR_NAME };
            let what = format!("attribute '{name}': {what}");
            report(Finding { severity, ..Finding::breaks(rule, path, at, what) });
        }
        if !seen.insert(key.hash_one(&xattr.name)) {
            let what = format!("attribute '{name}' occurs twice");
            report(Finding::breaks(&rules::XATTR_NAME, path, at, what));
        } else if hidden_by_filter {
            let what =
                format!("attribute '{name}' exists, and the inode's name filter says that it does not");
            report(Finding::breaks(&rules::XATTR_FILTER, path, at, what));
        }
    });
    if let Err(error) = visited {
        report(Finding::of(path, &error));
    }
}
