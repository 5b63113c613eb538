//! Access control lists as Linux keeps them in attributes: a version, and entries of a tag, permissions and the number of a
//! user or group (`include/uapi/linux/posix_acl_xattr.h`).
//!
//! [`parse`] takes the entries as they stand; [`judge`] says whether a kernel would take the list. It does not say what a list
//! allows: that is decided by the kernel.

/// The only version of the attribute.
const VERSION: u32 = 2;
/// Bytes of an entry: tag, permissions, number.
const ENTRY_BYTES: usize = 8;
/// The number of nobody.
const NO_ID: u32 = u32::MAX;

/// Whom an entry is for, in the order in which entries stand in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    Owner,
    /// The user of a number.
    User,
    /// The file's group.
    OwningGroup,
    /// The group of a number.
    Group,
    /// The most that users and groups of a number, and the file's group, get.
    Mask,
    /// All others.
    Others,
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Whom it is for.
    pub tag: Tag,
    /// Read 4, write 2, execute 1.
    pub may: u16,
    /// The number of the user or group; of no meaning for others.
    pub id: u32,
}

/// The entries of a list; an error says what is wrong with its form.
pub fn parse(value: &[u8]) -> Result<Vec<Entry>, String> {
    let of_len = || format!("an access control list of {} bytes", value.len());
    let (version, entries) = value.split_first_chunk::<4>().ok_or_else(of_len)?;
    let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else { return Err(of_len()) };
    match u32::from_le_bytes(*version) {
        VERSION => entries.iter().map(entry).collect(),
        version => Err(format!("an access control list of version {version}")),
    }
}

fn entry(&[tag, tag_high, may, may_high, a, b, c, d]: &[u8; ENTRY_BYTES]) -> Result<Entry, String> {
    let tag = match u16::from_le_bytes([tag, tag_high]) {
        0x01 => Tag::Owner,
        0x02 => Tag::User,
        0x04 => Tag::OwningGroup,
        0x08 => Tag::Group,
        0x10 => Tag::Mask,
        0x20 => Tag::Others,
        tag => return Err(format!("an access control list with an entry of unknown kind, {tag:#x}")),
    };
    let may = u16::from_le_bytes([may, may_high]);
    match may {
        0..=7 => Ok(Entry { tag, may, id: u32::from_le_bytes([a, b, c, d]) }),
        _ => Err(format!("an access control list with unknown permissions, {may:#x}")),
    }
}

/// Says why Linux would not take the list. One without entries is taken, and means that there is none.
pub fn judge(entries: &[Entry]) -> Result<(), &'static str> {
    if entries.is_empty() {
        return Ok(());
    }
    let is_one_of_several = |tag| matches!(tag, Tag::User | Tag::Group);
    let in_order = |a: &Entry, b: &Entry| a.tag < b.tag || (a.tag == b.tag && is_one_of_several(a.tag));
    if !entries.is_sorted_by(in_order) {
        return Err("an access control list whose entries are not in order, or there twice");
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
        for (tag, may, id) in entries {
            value.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn is_taken(value: &[u8]) -> bool {
        parse(value).is_ok_and(|entries| judge(&entries).is_ok())
    }

    /// All lists of up to five entries, and some of a wrong form: the kernel is the judge.
    #[test]
    fn lists_are_taken_or_refused_as_by_the_kernel() {
        let test = "lists_are_taken_or_refused_as_by_the_kernel";
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
            assert_eq!(is_taken(&value), by_kernel(&value).is_ok(), "{tags:?}");
            taken += u32::from(is_taken(&value));
        }
        // None, the three entries, those with a mask, and with a user or a group besides.
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
            assert_eq!(is_taken(&value), answer.is_ok(), "{value:?}: {answer:?}");
            assert!(matches!(answer, Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP)), "{answer:?}");
        }
    }
}
