//! Checks whether Linux can set an extended attribute on a file, as far as this does not depend on the file system.
//!
//! An image with a name or an access control list that Linux refuses cannot be extracted completely. A kernel that
//! finds such a list on a mount refuses access to the file.

use pagefold_image::Severity;
use pagefold_image::read::acl;
use pagefold_image::read::{FileKind, Xattr};

/// The longest name of an attribute, bytes.
const NAME_BYTES_MAX: usize = 255;

/// Returns the fault of an attribute of a file of this kind, with its severity.
pub(super) fn check(xattr: &Xattr, kind: FileKind) -> Option<(Severity, String)> {
    let error = |what: String| Some((Severity::Error, what));
    let name = xattr.name.as_slice();
    if name.len() > NAME_BYTES_MAX {
        return error(format!("a name of {} bytes, and the limit is {NAME_BYTES_MAX}", name.len()));
    }
    match name {
        acl::ACCESS => check_list(xattr, kind, false),
        acl::DEFAULT => check_list(xattr, kind, true),
        b"user." | b"trusted." | b"security." => error("a prefix without a name".to_string()),
        _ if name.starts_with(b"system.") => error("Linux has no such attribute".to_string()),
        _ if name.starts_with(b"user.") && !matches!(kind, FileKind::Regular | FileKind::Directory) => {
            Some((Severity::Warning, format!("Linux has no such attribute for {}", kind.name())))
        }
        _ => None,
    }
}

fn check_list(xattr: &Xattr, kind: FileKind, is_default: bool) -> Option<(Severity, String)> {
    let entries = match acl::parse(&xattr.value) {
        Ok(entries) => entries,
        Err(what) => return Some((Severity::Error, what)),
    };
    let what = match kind {
        FileKind::Symlink => Err("an access control list of a symbolic link"),
        FileKind::Directory => acl::validate(&entries),
        _ if is_default && !entries.is_empty() => {
            Err("a default access control list of a file that is not a directory")
        }
        _ => acl::validate(&entries),
    };
    what.err().map(|what| (Severity::Error, what.to_string()))
}
