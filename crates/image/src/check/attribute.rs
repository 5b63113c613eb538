//! Whether an attribute can be set on a file, as far as that does not depend on the file system: names and lists that no
//! Linux takes come out of no image, and a kernel that finds such a list on a mount refuses access to the file.

use crate::finding::Severity;
use crate::read::acl;
use crate::read::{FileKind, Xattr};

/// The longest name of an attribute, bytes.
const NAME_BYTES_MAX: usize = 255;

/// What is wrong with an attribute of a file of this kind, and how bad it is.
pub(super) fn judge(xattr: &Xattr, kind: FileKind) -> Option<(Severity, String)> {
    let error = |what: String| Some((Severity::Error, what));
    let name = xattr.name.as_slice();
    if name.len() > NAME_BYTES_MAX {
        return error(format!("a name of {} bytes, and {NAME_BYTES_MAX} are the most", name.len()));
    }
    match name {
        b"system.posix_acl_access" => judge_list(xattr, kind, false),
        b"system.posix_acl_default" => judge_list(xattr, kind, true),
        b"user." | b"trusted." | b"security." => error("a prefix without a name".to_string()),
        _ if name.starts_with(b"system.") => error("no system has such an attribute".to_string()),
        _ if name.starts_with(b"user.") && !matches!(kind, FileKind::Regular | FileKind::Directory) => {
            Some((Severity::Warning, format!("Linux has no such attribute of {}", kind.name())))
        }
        _ => None,
    }
}

fn judge_list(xattr: &Xattr, kind: FileKind, is_default: bool) -> Option<(Severity, String)> {
    let entries = match acl::parse(&xattr.value) {
        Ok(entries) => entries,
        Err(what) => return Some((Severity::Error, what)),
    };
    let what = match kind {
        FileKind::Symlink => Err("an access control list of a symbolic link"),
        FileKind::Directory => acl::judge(&entries),
        _ if is_default && !entries.is_empty() => {
            Err("a list for new files in a directory, and it is not a directory")
        }
        _ => acl::judge(&entries),
    };
    what.err().map(|what| (Severity::Error, what.to_string()))
}
