//! Attributes of a member, as a file would have them after extraction.

use super::fault::refused;
use super::kind::MemberKind;
use super::pax::Records;
use crate::Result;
use crate::metadata::{prefixes, xattr};
use crate::tree::Metadata;
use pagefold_image::read::acl;

/// Sets the attributes of a member. Returns how many an image, or a file of this kind, cannot have. `name` is for
/// messages.
pub fn set_attributes(
    metadata: &mut Metadata,
    kind: &MemberKind,
    mut records: Records,
    name: &[u8],
) -> Result<u64> {
    let texts = [(acl::ACCESS, records.access_list.take()), (acl::DEFAULT, records.default_list.take())];
    for (key, text) in texts {
        // The binary form is exact.
        if let Some(text) = text.filter(|_| !records.xattrs.contains_key(key)) {
            let entries = acl::parse_text(&text).map_err(refused)?;
            records.xattrs.insert(key.to_vec(), acl::encode(&entries));
        }
    }
    let mut dropped = 0;
    for (key, value) in records.xattrs {
        let value = match key.as_slice() {
            acl::ACCESS if matches!(kind, MemberKind::Symlink(_)) => Err(()),
            acl::ACCESS => Ok(access_list(&value, metadata)?),
            acl::DEFAULT if !matches!(kind, MemberKind::Directory) => Err(()),
            acl::DEFAULT => Ok((!list(&value)?.is_empty()).then_some(value)),
            key if prefixes::split(key).is_none()
                || key.starts_with(b"user.") && !has_user_attributes(kind) =>
            {
                Err(())
            }
            _ => Ok(Some(value)),
        };
        match value {
            Ok(Some(value)) => metadata.xattrs.push((key.into(), value.into())),
            Ok(None) => {}
            Err(()) => dropped += 1,
        }
    }
    xattr::check(&metadata.xattrs, name)?;
    Ok(dropped)
}

/// Whether Linux lets a file of this kind have attributes of users (xattr(7)).
fn has_user_attributes(kind: &MemberKind) -> bool {
    matches!(kind, MemberKind::Regular(_) | MemberKind::Directory)
}

/// Sets the permissions that an access list contains. Returns the list, if it says more than they do.
fn access_list(value: &[u8], metadata: &mut Metadata) -> Result<Option<Vec<u8>>> {
    let entries = list(value)?;
    metadata.permissions = acl::permissions(&entries, metadata.permissions);
    Ok((!acl::is_permissions_only(&entries)).then(|| value.to_vec()))
}

/// Decodes a list, and checks it as Linux does.
fn list(value: &[u8]) -> Result<Vec<acl::Entry>> {
    let entries = acl::parse(value).map_err(refused)?;
    acl::validate(&entries).map_err(refused)?;
    Ok(entries)
}
