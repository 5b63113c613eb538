//! Moving the numbers of users and groups, so that an image fits the numbers of a user namespace.
//!
//! They are in three places: the owner and the group, the entries of access lists, and the user whose namespace a capability
//! of version 3 holds for. Capabilities of other versions and values of another form have no numbers, and stay.

use crate::tree::Metadata;
use pagefold_image::read::acl;

/// The attribute with the capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";
/// Bytes of capabilities of version 3, the version in the highest byte of the first word, and the number of the user, the
/// last word (`include/uapi/linux/capability.h`).
const CAPABILITY_BYTES: usize = 24;
const CAPABILITY_VERSION: u8 = 3;
const CAPABILITY_USER: usize = 20;

impl Metadata {
    /// Adds `users` to all numbers of users, and `groups` to those of groups. The error is a number that would become too
    /// large.
    pub fn shift_owners(&mut self, users: u32, groups: u32) -> Result<(), u32> {
        self.uid = shifted(self.uid, users)?;
        self.gid = shifted(self.gid, groups)?;
        for (name, value) in &mut self.xattrs {
            match &**name {
                acl::ACCESS | acl::DEFAULT => {
                    let Ok(mut entries) = acl::parse(value) else { continue };
                    for entry in entries.iter_mut().filter(|entry| entry.tag.has_id()) {
                        let offset = if entry.tag == acl::Tag::User { users } else { groups };
                        entry.id = shifted(entry.id, offset)?;
                    }
                    *value = acl::encode(&entries).into();
                }
                CAPABILITY if value.len() == CAPABILITY_BYTES && value[3] == CAPABILITY_VERSION => {
                    if let Some(user) = value[CAPABILITY_USER..].first_chunk_mut() {
                        *user = shifted(u32::from_le_bytes(*user), users)?.to_le_bytes();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The number after the shift; `u32::MAX` stands for nobody.
fn shifted(id: u32, offset: u32) -> Result<u32, u32> {
    id.checked_add(offset).filter(|sum| *sum != u32::MAX).ok_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use acl::{Entry, Tag};

    fn list(ids: [u32; 2]) -> Box<[u8]> {
        let entry = |tag, id| Entry { tag, permissions: 5, id };
        let no_id = u32::MAX;
        let entries = [
            entry(Tag::Owner, no_id),
            entry(Tag::User, ids[0]),
            entry(Tag::OwningGroup, no_id),
            entry(Tag::Group, ids[1]),
            entry(Tag::Mask, no_id),
            entry(Tag::Others, no_id),
        ];
        acl::encode(&entries).into()
    }

    fn capability(version: u8, user: u32) -> Box<[u8]> {
        let mut value = vec![7; CAPABILITY_BYTES];
        value[3] = version;
        value[CAPABILITY_USER..].copy_from_slice(&user.to_le_bytes());
        value.into()
    }

    fn metadata(numbers: [u32; 2], lists: [[u32; 2]; 2], user: u32) -> Metadata {
        let xattrs = vec![
            (CAPABILITY.into(), capability(3, user)),
            (acl::ACCESS.into(), list(lists[0])),
            (acl::DEFAULT.into(), list(lists[1])),
            (b"user.a".as_slice().into(), capability(3, 1)),
        ];
        Metadata { uid: numbers[0], gid: numbers[1], xattrs, ..Metadata::default() }
    }

    #[test]
    fn all_numbers_of_users_and_groups_move() {
        let mut moved = metadata([0, 5], [[1000, 50], [7, 8]], 1000);
        moved.shift_owners(100_000, 100_000).unwrap();
        let wanted = metadata([100_000, 100_005], [[101_000, 100_050], [100_007, 100_008]], 101_000);
        assert_eq!(moved, wanted);
        let mut same = wanted.clone();
        same.shift_owners(0, 0).unwrap();
        assert_eq!(same, wanted);
    }

    #[test]
    fn a_number_that_would_be_too_large_is_an_error_wherever_it_is() {
        let large = u32::MAX - 10;
        for at in 0..7 {
            let number = |n| if n == at { large } else { 1 };
            let lists = [[number(2), number(3)], [number(4), number(5)]];
            let before = metadata([number(0), number(1)], lists, number(6));
            assert_eq!(before.clone().shift_owners(10, 10), Err(large), "{at}");
            assert_eq!(before.clone().shift_owners(9, 9), Ok(()), "{at}");
        }
    }

    #[test]
    fn values_without_numbers_stay() {
        let values: [(&[u8], Box<[u8]>); 4] = [
            (CAPABILITY, capability(2, u32::MAX)),
            (CAPABILITY, Box::from([0, 0, 0, 3])),
            (acl::ACCESS, Box::from([1, 2, 3])),
            (acl::DEFAULT, Box::default()),
        ];
        for (name, value) in values {
            let xattrs = vec![(name.into(), value)];
            let mut metadata = Metadata { xattrs: xattrs.clone(), ..Metadata::default() };
            metadata.shift_owners(10, 10).unwrap();
            assert_eq!(metadata.xattrs, xattrs);
        }
    }
}
