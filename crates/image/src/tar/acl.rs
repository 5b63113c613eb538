//! Formats access control lists as text, which tar programs restore with their option `--acls`.
//!
//! The text has one entry in each line, as acl(5) describes. It contains user and group numbers, because the names of
//! the machine that built the image are not known.

use crate::read::acl::{self, Entry, Tag};

/// Returns the key and text of the pax record for an attribute; `None` if the attribute is not a valid access control
/// list.
pub(super) fn record(name: &[u8], value: &[u8]) -> Option<(&'static str, String)> {
    let key = match name {
        b"system.posix_acl_access" => "SCHILY.acl.access",
        b"system.posix_acl_default" => "SCHILY.acl.default",
        _ => return None,
    };
    Some((key, text(value)?))
}

/// Formats the entries, one in each line; `None` if Linux would refuse the list.
fn text(value: &[u8]) -> Option<String> {
    acl::parse(value).ok().map(|entries| entries.iter().map(line).collect())
}

fn line(entry: &Entry) -> String {
    let qualifier = match entry.tag {
        Tag::Owner => "user:".to_string(),
        Tag::User => format!("user:{}", entry.id),
        Tag::OwningGroup => "group:".to_string(),
        Tag::Group => format!("group:{}", entry.id),
        Tag::Mask => "mask:".to_string(),
        Tag::Others => "other:".to_string(),
    };
    let letter = |bit: u16, letter: char| if entry.permissions & bit != 0 { letter } else { '-' };
    format!("{qualifier}:{}{}{}\n", letter(4, 'r'), letter(2, 'w'), letter(1, 'x'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u16, may: u16, id: u32) -> Vec<u8> {
        [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat()
    }

    #[test]
    fn valid_lists_become_lines_and_invalid_ones_are_refused() {
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
