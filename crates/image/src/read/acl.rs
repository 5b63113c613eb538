//! POSIX access control lists: the form of Linux's attributes, which is a version, then entries with a tag, permissions and
//! the number of a user or group (`include/uapi/linux/posix_acl_xattr.h`); and the text that tar programs store, as acl(5)
//! describes it.
//!
//! [`validate`] checks whether the kernel would accept a list. Checking access is left to the kernel.

/// The name of the attribute with the list of a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The name of the attribute with the list that files created in a directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
/// The only version of the attribute.
const VERSION: u32 = 2;
/// Bytes of an entry: tag, permissions, number.
const ENTRY_BYTES: usize = 8;
/// The invalid user or group number.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry, with its number in the attribute; lists are sorted in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    Owner = 0x01,
    /// The user with the entry's number.
    User = 0x02,
    /// The file's group.
    OwningGroup = 0x04,
    /// The group with the entry's number.
    Group = 0x08,
    /// The upper limit of the permissions of numbered users, of numbered groups and of the file's group.
    Mask = 0x10,
    /// All others.
    Others = 0x20,
}

impl Tag {
    const ALL: [Tag; 6] = [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Group, Tag::Mask, Tag::Others];

    /// Whether an entry with this tag has the number of a user or group.
    pub fn has_id(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The subject.
    pub tag: Tag,
    /// Permission bits: read 4, write 2, execute 1.
    pub permissions: u16,
    /// The number of the user or group; unused for other tags.
    pub id: u32,
}

/// Decodes the value of an attribute. An error describes the fault of its form.
pub fn parse(value: &[u8]) -> Result<Vec<Entry>, String> {
    let of_len = || format!("an access control list of {} bytes", value.len());
    let (version, entries) = value.split_first_chunk::<4>().ok_or_else(of_len)?;
    let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else { return Err(of_len()) };
    match u32::from_le_bytes(*version) {
        VERSION => entries.iter().map(entry).collect(),
        version => Err(format!("an access control list of version {version}")),
    }
}

fn entry(
    &[tag, tag_high, permissions, permissions_high, a, b, c, d]: &[u8; ENTRY_BYTES],
) -> Result<Entry, String> {
    let number = u16::from_le_bytes([tag, tag_high]);
    let tag = Tag::ALL
        .into_iter()
        .find(|tag| *tag as u16 == number)
        .ok_or_else(|| format!("an access control list with an entry of unknown kind, {number:#x}"))?;
    let permissions = u16::from_le_bytes([permissions, permissions_high]);
    match permissions {
        0..=7 => Ok(Entry { tag, permissions, id: u32::from_le_bytes([a, b, c, d]) }),
        _ => Err(format!("an access control list with unknown permissions, {permissions:#x}")),
    }
}

/// Encodes a list as the value of an attribute.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let id = if entry.tag.has_id() { entry.id } else { NO_ID };
        value.extend((entry.tag as u16).to_le_bytes());
        value.extend(entry.permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Parses a list of entries `tag:qualifier:permissions`, separated by commas or newlines. A fourth field is the number
/// of a user or group whose name is the qualifier. An error describes the fault.
pub fn parse_text(text: &[u8]) -> Result<Vec<Entry>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "an access control list with odd bytes")?;
    let lines =
        text.split([',', '\n']).map(|line| line.split_once('#').map_or(line, |(line, _)| line).trim());
    let mut entries =
        lines.filter(|line| !line.is_empty()).map(parse_line).collect::<Result<Vec<_>, String>>()?;
    entries.sort_by_key(|entry| (entry.tag, entry.id));
    Ok(entries)
}

fn parse_line(line: &str) -> Result<Entry, String> {
    let wrong = || format!("an access control list with the entry '{}'", line.escape_debug());
    let mut fields = line.split(':').map(str::trim);
    let mut next = || fields.next().ok_or_else(wrong);
    let (tag, mut qualifier, mut letters) = (next()?, next()?, next());
    let is_short = |letters: &str| letters.len() == 3 && letters.contains(['r', 'w', 'x', '-']);
    // Solaris and star leave out the empty qualifier: `mask:rwx`, `other:r-x`.
    if letters.is_err() && matches!(tag, "mask" | "m" | "other" | "o") && is_short(qualifier) {
        letters = Ok(std::mem::take(&mut qualifier));
    }
    let tag = match (tag, qualifier) {
        ("user" | "u", "") => Tag::Owner,
        ("user" | "u", _) => Tag::User,
        ("group" | "g", "") => Tag::OwningGroup,
        ("group" | "g", _) => Tag::Group,
        ("mask" | "m", "") => Tag::Mask,
        ("other" | "o", "") => Tag::Others,
        _ => return Err(wrong()),
    };
    let permissions = letters?.chars().try_fold(0, |bits, letter| match letter {
        'r' => Ok(bits | 4),
        'w' => Ok(bits | 2),
        'x' => Ok(bits | 1),
        '-' => Ok(bits),
        _ => Err(wrong()),
    })?;
    let id = match (tag.has_id(), fields.next()) {
        (false, _) => NO_ID,
        (true, Some(number)) => number.parse().map_err(|_| wrong())?,
        (true, None) if qualifier == "root" => 0,
        (true, None) => qualifier.parse().map_err(|_| {
            format!(
                "an access control list names '{}', whose number is not in the archive; \
                 archive with --numeric-owner",
                qualifier.escape_debug()
            )
        })?,
    };
    Ok(Entry { tag, permissions, id })
}

/// Formats a list as text, one entry in each line. It contains user and group numbers, because the names of the machine
/// that built an image are not known.
pub fn format_text(entries: &[Entry]) -> String {
    entries.iter().map(format_line).collect()
}

fn format_line(entry: &Entry) -> String {
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

/// Checks whether Linux accepts the list; the error is the reason if not. An empty list is valid, and means no list.
pub fn validate(entries: &[Entry]) -> Result<(), &'static str> {
    if entries.is_empty() {
        return Ok(());
    }
    let in_order = |a: &Entry, b: &Entry| a.tag < b.tag || (a.tag == b.tag && a.tag.has_id());
    if !entries.is_sorted_by(in_order) {
        return Err("an access control list whose entries are out of order or duplicate");
    }
    let has = |tag| entries.iter().any(|entry| entry.tag == tag);
    match () {
        () if !has(Tag::Owner) => Err("an access control list without an entry for the owner"),
        () if !has(Tag::OwningGroup) => Err("an access control list without an entry for the group"),
        () if !has(Tag::Others) => Err("an access control list without an entry for others"),
        () if !has(Tag::Mask) && (has(Tag::User) || has(Tag::Group)) => {
            Err("an access control list of users or groups without a mask")
        }
        () if entries.iter().any(|entry| entry.tag.has_id() && entry.id == NO_ID) => {
            Err("an access control list with an entry for nobody")
        }
        () => Ok(()),
    }
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
    use pagefold_testkit::skipped;
    use rustix::fs::{XattrFlags, setxattr};
    use rustix::io::Errno;

    const NAME: &str = "system.posix_acl_access";
    const TAGS: [u16; 6] = [0x01, 0x02, 0x04, 0x08, 0x10, 0x20];

    fn list(entries: impl IntoIterator<Item = (u16, u16, u32)>) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn is_valid(value: &[u8]) -> bool {
        parse(value).is_ok_and(|entries| validate(&entries).is_ok())
    }

    /// Compares the verdict with the kernel's, for all lists of up to five entries and for some of a wrong form.
    #[test]
    fn lists_are_accepted_and_refused_as_by_the_kernel() {
        let test = "lists_are_accepted_and_refused_as_by_the_kernel";
        let file = tempfile::NamedTempFile::new().unwrap();
        let by_kernel = |value: &[u8]| setxattr(file.path(), NAME, value, XattrFlags::empty());
        if let Err(e) = by_kernel(&list([(1, 6, 0), (4, 4, 0), (0x20, 4, 0)])) {
            return skipped!("{test}: this file system has no access control lists: {e}");
        }
        let mut all: Vec<Vec<u8>> = vec![Vec::new()];
        let mut longest = all.clone();
        for _ in 0..5 {
            let longer =
                |tags: &Vec<u8>| (0..6).map(|tag| [tags.as_slice(), &[tag]].concat()).collect::<Vec<_>>();
            longest = longest.iter().flat_map(longer).collect();
            all.extend(longest.iter().cloned());
        }
        let mut taken = 0;
        for tags in all {
            let value = list(tags.iter().map(|&tag| (TAGS[usize::from(tag)], 5, 7)));
            assert_eq!(is_valid(&value), by_kernel(&value).is_ok(), "{tags:?}");
            taken += u32::from(is_valid(&value));
        }
        // The empty list, the three required entries, these with a mask, and these with a mask and a user or a group.
        assert_eq!(taken, 5);
        let good = [(1, 6, 0), (2, 6, 5), (4, 4, 0), (0x10, 7, 0), (0x20, 4, 0)];
        let with =
            |at: usize, entry| list(good.iter().enumerate().map(|(n, e)| if n == at { entry } else { *e }));
        let forms = [
            with(0, good[0]),
            with(0, (1, 8, 0)),
            with(1, (2, 6, u32::MAX)),
            with(1, (2, 6, u32::MAX - 1)),
            with(1, (3, 6, 5)),
            with(0, good[0])[..43].to_vec(),
            vec![2, 0],
            [&3u32.to_le_bytes()[..], &list(good)[4..]].concat(),
        ];
        for value in forms {
            let answer = by_kernel(&value);
            assert_eq!(is_valid(&value), answer.is_ok(), "{value:?}: {answer:?}");
            assert!(matches!(answer, Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP)), "{answer:?}");
        }
    }

    #[test]
    fn all_forms_of_text_become_the_same_list() {
        let gnu = b"user::rwx\nuser:1000:r-x\ngroup::r--\ngroup:55:---\nmask::r-x\nother::--x\n";
        let star = b"u::rwx,g::r--,user:joe:r-x:1000,group:staff:---:55,mask:r-x,other:--x";
        let entries = parse_text(gnu).unwrap_or_default();
        assert_eq!(entries.len(), 6);
        assert_eq!(parse_text(star).ok(), Some(entries.clone()));
        assert_eq!(parse(&encode(&entries)).map(|e| validate(&e)), Ok(Ok(())));
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
        assert!(validate(&parse_text(b"user::rwx").unwrap_or_default()).is_err());
    }

    #[test]
    fn lists_become_lines() {
        let entries =
            [(1, 7, NO_ID), (2, 6, 1234), (4, 5, NO_ID), (8, 4, 55), (0x10, 1, NO_ID), (0x20, 0, NO_ID)];
        let entries = parse(&list(entries)).unwrap();
        let wanted = "user::rwx\nuser:1234:rw-\ngroup::r-x\ngroup:55:r--\nmask::--x\nother::---\n";
        assert_eq!(format_text(&entries), wanted);
        assert_eq!(parse_text(wanted.as_bytes()), Ok(entries));
    }

    #[test]
    fn values_of_a_wrong_form_are_refused() {
        let value = list([(1, 7, NO_ID), (4, 5, NO_ID), (0x20, 0, NO_ID)]);
        for cut in 0..value.len() {
            assert_eq!(parse(&value[..cut]).is_ok(), cut >= 4 && (cut - 4) % ENTRY_BYTES == 0, "{cut}");
        }
        for bad in [(3, 7, 0), (1, 8, 0)] {
            assert!(parse(&list([bad])).is_err());
        }
    }
}
