//! POSIX access control lists in the form of Linux's attributes: a version, then entries with a tag, permissions and
//! the number of a user or group (`include/uapi/linux/posix_acl_xattr.h`).
//!
//! [`parse`] decodes the entries; [`validate`] checks whether the kernel would accept the list. Checking access is
//! left to the kernel.

/// The only version of the attribute.
const VERSION: u32 = 2;
/// Bytes of an entry: tag, permissions, number.
const ENTRY_BYTES: usize = 8;
/// The invalid user or group number.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry; lists are sorted in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    Owner,
    /// The user with the entry's number.
    User,
    /// The file's group.
    OwningGroup,
    /// The group with the entry's number.
    Group,
    /// The upper limit of the permissions of numbered users, of numbered groups and of the file's group.
    Mask,
    /// All others.
    Others,
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

/// Decodes the entries of a list. An error describes the fault of its form.
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
    let tag = match u16::from_le_bytes([tag, tag_high]) {
        0x01 => Tag::Owner,
        0x02 => Tag::User,
        0x04 => Tag::OwningGroup,
        0x08 => Tag::Group,
        0x10 => Tag::Mask,
        0x20 => Tag::Others,
        tag => return Err(format!("an access control list with an entry of unknown kind, {tag:#x}")),
    };
    let permissions = u16::from_le_bytes([permissions, permissions_high]);
    match permissions {
        0..=7 => Ok(Entry { tag, permissions, id: u32::from_le_bytes([a, b, c, d]) }),
        _ => Err(format!("an access control list with unknown permissions, {permissions:#x}")),
    }
}

/// Checks whether Linux accepts the list; the error is the reason if not. An empty list is valid, and means no list.
pub fn validate(entries: &[Entry]) -> Result<(), &'static str> {
    if entries.is_empty() {
        return Ok(());
    }
    let is_one_of_several = |tag| matches!(tag, Tag::User | Tag::Group);
    let in_order = |a: &Entry, b: &Entry| a.tag < b.tag || (a.tag == b.tag && is_one_of_several(a.tag));
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
        () if entries.iter().any(|entry| is_one_of_several(entry.tag) && entry.id == NO_ID) => {
            Err("an access control list with an entry for nobody")
        }
        () => Ok(()),
    }
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
}
