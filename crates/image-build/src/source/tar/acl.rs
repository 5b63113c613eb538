//! Access control lists as text, which tar programs write, and what a list does to a file's permissions.

use super::fault::Fault;
use pagefold_image::read::acl::{self, Entry, Tag};

/// Version of the attribute's form.
const VERSION: u32 = 2;
/// The number in entries that are not of a certain user or group.
const NO_ID: u32 = u32::MAX;

/// Parses a list of entries `tag:qualifier:permissions`, separated by commas or newlines. A fourth field is the number
/// of a user or group whose name is the qualifier.
pub fn parse_text(text: &[u8]) -> Result<Vec<Entry>, Fault> {
    let text =
        std::str::from_utf8(text).map_err(|_| Fault::refused("an access control list with odd bytes"))?;
    let lines =
        text.split([',', '\n']).map(|line| line.split_once('#').map_or(line, |(line, _)| line).trim());
    let mut entries =
        lines.filter(|line| !line.is_empty()).map(parse_line).collect::<Result<Vec<_>, Fault>>()?;
    entries.sort_by_key(|entry| (entry.tag, entry.id));
    Ok(entries)
}

fn parse_line(line: &str) -> Result<Entry, Fault> {
    let wrong = || Fault::refused(format!("an access control list with the entry '{}'", line.escape_debug()));
    let mut fields = line.split(':').map(str::trim);
    let mut next = || fields.next().ok_or_else(wrong);
    let (tag, mut qualifier, mut letters) = (next()?, next()?, next());
    let is_short = |letters: &str| letters.len() == 3 && letters.contains(['r', 'w', 'x', '-']);
    // Solaris and star leave out the empty qualifier: `mask:rwx`, `other:r-x`.
    if letters.is_err() && matches!(tag, "mask" | "m" | "other" | "o") && is_short(qualifier) {
        letters = Ok(std::mem::take(&mut qualifier));
    }
    let (tag, has_id) = match (tag, qualifier) {
        ("user" | "u", "") => (Tag::Owner, false),
        ("user" | "u", _) => (Tag::User, true),
        ("group" | "g", "") => (Tag::OwningGroup, false),
        ("group" | "g", _) => (Tag::Group, true),
        ("mask" | "m", "") => (Tag::Mask, false),
        ("other" | "o", "") => (Tag::Others, false),
        _ => return Err(wrong()),
    };
    let permissions = letters?.chars().try_fold(0, |bits, letter| match letter {
        'r' => Ok(bits | 4),
        'w' => Ok(bits | 2),
        'x' => Ok(bits | 1),
        '-' => Ok(bits),
        _ => Err(wrong()),
    })?;
    let id = match (has_id, fields.next()) {
        (false, _) => NO_ID,
        (true, Some(number)) => number.parse().map_err(|_| wrong())?,
        (true, None) if qualifier == "root" => 0,
        (true, None) => qualifier.parse().map_err(|_| {
            Fault::refused(format!(
                "an access control list names '{}', whose number is not in the archive; \
                 archive with --numeric-owner",
                qualifier.escape_debug()
            ))
        })?,
    };
    Ok(Entry { tag, permissions, id })
}

/// Checks a list as Linux does.
pub fn validated(entries: Vec<Entry>) -> Result<Vec<Entry>, Fault> {
    acl::validate(&entries).map_err(Fault::refused)?;
    Ok(entries)
}

/// Encodes a list as an attribute.
pub fn encode(entries: &[Entry]) -> Box<[u8]> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let tag: u16 = match entry.tag {
            Tag::Owner => 0x01,
            Tag::User => 0x02,
            Tag::OwningGroup => 0x04,
            Tag::Group => 0x08,
            Tag::Mask => 0x10,
            Tag::Others => 0x20,
        };
        let id = if matches!(entry.tag, Tag::User | Tag::Group) { entry.id } else { NO_ID };
        value.extend(tag.to_le_bytes());
        value.extend(entry.permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value.into()
}

/// Returns the permissions of a file that gets this list, which contains them. Setting the list sets them in Linux.
pub fn permissions(entries: &[Entry], before: u16) -> u16 {
    let of = |tag| entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions);
    match (of(Tag::Owner), of(Tag::Mask).or(of(Tag::OwningGroup)), of(Tag::Others)) {
        (Some(owner), Some(group), Some(others)) => before & !0o777 | owner << 6 | group << 3 | others,
        _ => before,
    }
}

/// Whether the list says no more than the permissions: Linux stores no such list.
pub fn is_permissions_only(entries: &[Entry]) -> bool {
    entries.iter().all(|entry| matches!(entry.tag, Tag::Owner | Tag::OwningGroup | Tag::Others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_text_become_the_same_list() {
        let gnu = b"user::rwx\nuser:1000:r-x\ngroup::r--\ngroup:55:---\nmask::r-x\nother::--x\n";
        let star = b"u::rwx,g::r--,user:joe:r-x:1000,group:staff:---:55,mask:r-x,other:--x";
        let entries = validated(parse_text(gnu).unwrap_or_default()).unwrap_or_default();
        assert_eq!(entries.len(), 6);
        assert_eq!(parse_text(star).ok(), Some(entries.clone()));
        assert_eq!(acl::parse(&encode(&entries)).map(|e| acl::validate(&e)), Ok(Ok(())));
        assert_eq!(permissions(&entries, 0o4640), 0o4751);
        assert!(!is_permissions_only(&entries));
        let short = parse_text(b"user::rw-,group::r--,other::---").unwrap_or_default();
        assert!(short.len() == 3 && is_permissions_only(&short));
        assert_eq!(parse_text(b"\n").map(|e| e.len()).ok(), Some(0));
    }

    #[test]
    fn lists_that_cannot_be_understood_are_refused() {
        for wrong in
            ["user", "user:", "user::rwz", "user:joe:rwx", "mask:5:rwx", "x::rwx", "user:a:rwx:b", ":::"]
        {
            assert!(parse_text(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(parse_text(b"\xff").is_err());
        assert!(validated(parse_text(b"user::rwx").unwrap_or_default()).is_err());
    }
}
