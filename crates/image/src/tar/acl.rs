//! Access control lists as text, the form that tar programs restore with their option `--acls`.
//!
//! The text has an entry a line, as acl(5) describes; numbers stay numbers, because names are those of the machine that
//! the image was made on.

use crate::read::acl::{self, Entry, Tag};

/// The key of the record for the attribute of this name, and its text; `None` if it is no list.
pub(super) fn record(name: &[u8], value: &[u8]) -> Option<(&'static str, String)> {
    let key = match name {
        b"system.posix_acl_access" => "SCHILY.acl.access",
        b"system.posix_acl_default" => "SCHILY.acl.default",
        _ => return None,
    };
    Some((key, text(value)?))
}

/// The entries, a line for each; `None` if it is not in the form that Linux takes.
fn text(value: &[u8]) -> Option<String> {
    acl::parse(value).ok().map(|entries| entries.iter().map(line).collect())
}

fn line(entry: &Entry) -> String {
    let who = match entry.tag {
        Tag::Owner => "user:".to_string(),
        Tag::User => format!("user:{}", entry.id),
        Tag::OwningGroup => "group:".to_string(),
        Tag::Group => format!("group:{}", entry.id),
        Tag::Mask => "mask:".to_string(),
        Tag::Others => "other:".to_string(),
    };
    let letter = |bit: u16, letter: char| if entry.may & bit != 0 { letter } else { '-' };
    format!("{who}:{}{}{}\n", letter(4, 'r'), letter(2, 'w'), letter(1, 'x'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u16, may: u16, id: u32) -> Vec<u8> {
        [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat()
    }

    #[test]
    fn entries_become_lines() {
        let none = u32::MAX;
        let entries =
            [(1, 7, none), (2, 6, 1234), (4, 5, none), (8, 4, 55), (0x10, 1, none), (0x20, 0, none)];
        let entries: Vec<u8> = entries.into_iter().flat_map(|(tag, may, id)| entry(tag, may, id)).collect();
        let value = [&2u32.to_le_bytes()[..], &entries].concat();
        let wanted = "user::rwx\nuser:1234:rw-\ngroup::r-x\ngroup:55:r--\nmask::--x\nother::---\n";
        let found = record(b"system.posix_acl_default", &value);
        assert_eq!(found, Some(("SCHILY.acl.default", wanted.to_string())));
        assert_eq!(record(b"user.posix_acl_default", &value), None);
        for cut in 0..value.len() {
            assert_eq!(text(&value[..cut]).is_some(), cut >= 4 && (cut - 4) % 8 == 0, "{cut}");
        }
        for bad in [entry(3, 7, 0), entry(1, 8, 0)] {
            assert_eq!(text(&[&2u32.to_le_bytes()[..], &bad].concat()), None);
        }
        assert_eq!(text(&[&1u32.to_le_bytes()[..], &entries].concat()), None);
    }
}
