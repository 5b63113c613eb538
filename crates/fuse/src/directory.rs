//! [`Entries`], which builds the reply to a request for the entries of a directory.

use crate::abi::Dirent;
use crate::types::{Attr, Entry, FileType, Inode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Entries are filled up to a multiple of this, bytes.
const ALIGNMENT: usize = 8;

/// The entries of a reply, as many as there is room for.
#[derive(Debug)]
pub struct Entries<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Entries<'a> {
    /// Begins a reply in `buffer`, whose length is the room.
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Entries { buffer, len: 0 }
    }

    /// The length of the reply, bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry to the reply to [`read_dir`](crate::FileSystem::read_dir). Returns whether there was room.
    ///
    /// `next` is the position of the entry behind it, which is never 0.
    #[must_use]
    pub fn add(&mut self, inode: Inode, next: u64, kind: FileType, name: &OsStr) -> bool {
        self.append(&[], &dirent(inode, next, kind, name), name)
    }

    /// Adds an entry with its attributes to the reply to [`read_dir_plus`](crate::FileSystem::read_dir_plus). Returns
    /// whether there was room. The kernel caches the attributes as after a lookup.
    #[must_use]
    pub fn add_plus(&mut self, next: u64, name: &OsStr, attr: Attr, ttl: Duration) -> bool {
        let entry = Entry { attr: Some(attr), ttl }.encode();
        self.append(entry.as_bytes(), &dirent(attr.inode, next, attr.kind, name), name)
    }

    fn append(&mut self, attributes: &[u8], dirent: &Dirent, name: &OsStr) -> bool {
        let fields = [attributes, dirent.as_bytes(), name.as_bytes()];
        let len = fields.iter().map(|field| field.len()).sum::<usize>();
        let padded = len.next_multiple_of(ALIGNMENT);
        let Some(mut room) = self.buffer.get_mut(self.len..).and_then(|rest| rest.get_mut(..padded)) else {
            return false;
        };
        for field in fields {
            let (target, rest) = std::mem::take(&mut room).split_at_mut(field.len());
            target.copy_from_slice(field);
            room = rest;
        }
        room.fill(0);
        self.len += padded;
        true
    }
}

fn dirent(inode: Inode, next: u64, kind: FileType, name: &OsStr) -> Dirent {
    Dirent { ino: inode.0, off: next, namelen: name.len() as u32, kind: kind.dirent_type() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::EntryOut;
    use zerocopy::FromBytes;

    #[test]
    fn entries_follow_each_other_at_multiples_of_8_bytes() {
        let mut buffer = [0xff; 24 + 8 + 24 + 8];
        let mut entries = Entries::new(&mut buffer);
        assert!(entries.add(Inode(5), 1, FileType::Directory, OsStr::new("ab")));
        assert!(entries.add(Inode(6), 2, FileType::Symlink, OsStr::new("12345678")));
        // Not one byte is left.
        assert!(!entries.add(Inode(7), 3, FileType::Regular, OsStr::new("x")));
        assert_eq!(entries.len(), 64);
        let (first, name) = Dirent::read_from_prefix(&buffer).unwrap();
        assert_eq!(first, Dirent { ino: 5, off: 1, namelen: 2, kind: u32::from(libc::DT_DIR) });
        assert_eq!(name[..8], *b"ab\0\0\0\0\0\0");
        let (second, name) = Dirent::read_from_prefix(&buffer[32..]).unwrap();
        assert_eq!(second, Dirent { ino: 6, off: 2, namelen: 8, kind: u32::from(libc::DT_LNK) });
        assert_eq!(name[..8], *b"12345678");
    }

    #[test]
    fn an_entry_with_attributes_begins_with_them() {
        let mut buffer = [0; 160];
        let mut entries = Entries::new(&mut buffer);
        let attr = Attr::new(Inode(5), FileType::Regular, 0o644, 4096);
        let ttl = Duration::from_secs(3);
        assert!(entries.add_plus(9, OsStr::new("name"), attr, ttl));
        assert!(!entries.add_plus(9, OsStr::new("name"), attr, ttl));
        assert_eq!(entries.len(), 160);
        let (found, rest) = EntryOut::read_from_prefix(&buffer).unwrap();
        let entry = Entry { attr: Some(attr), ttl }.encode();
        assert_eq!((found, &rest[24..28]), (entry, &b"name"[..]));
    }
}
