//! Which attributes of a source stay.
//!
//! The rule is that of GNU tar: an attribute stays if a pattern includes it and none excludes it. Without patterns that
//! include, all are included, but not the labels of the host on the files of a directory: they say which policy and which
//! keys the machine has that builds the image, and those of another machine differ. Somebody put the labels of an archive
//! or an image there, so they stay.

use super::SELINUX;
use crate::Result;
use crate::rules::Pattern;
use crate::tree::{Metadata, Tree};
use pagefold_image::read::acl;

/// Labels that a machine gives the files that it creates or verifies: of SELinux, Smack and AppArmor, and the hashes and
/// signatures of IMA and EVM (`include/uapi/linux/xattr.h`). A capability is no label.
const HOST_LABELS: [&[u8]; 5] =
    [SELINUX, b"security.SMACK64", b"security.apparmor", b"security.ima", b"security.evm"];

/// A pattern of names of attributes: that of a shell, in which `*` also stands for dots and slashes.
#[derive(Debug, Clone)]
pub struct XattrPattern {
    text: String,
    pattern: Pattern,
}

impl XattrPattern {
    /// Parses a pattern. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        // In patterns of paths slashes have a meaning. No name has a NUL.
        let pattern = Pattern::parse(&text.replace('/', "\0"));
        let pattern = pattern.map_err(|_| format!("the pattern '{text}' is invalid"))?;
        Ok(XattrPattern { text: text.into(), pattern })
    }

    /// The pattern as it was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the pattern, or a clone of it, has matched a name so far.
    pub fn has_matched(&self) -> bool {
        self.pattern.has_matched()
    }

    fn matches(&self, name: &[u8]) -> bool {
        match name.contains(&b'/') {
            false => self.pattern.matches(name),
            true => {
                let name: Vec<u8> = name.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect();
                self.pattern.matches(&name)
            }
        }
    }
}

/// The attributes of a source that stay.
#[derive(Debug, Clone, Default)]
pub struct XattrFilter {
    /// Whether none stays.
    pub nothing: bool,
    /// Whether labels of SELinux do not stay, because others replace them.
    pub replaces_selinux: bool,
    /// Patterns of those that stay; without one, all but the labels of the host.
    pub include: Vec<XattrPattern>,
    /// Patterns of those that do not stay, though others include them.
    pub exclude: Vec<XattrPattern>,
}

impl XattrFilter {
    /// Removes the attributes of all files that do not stay.
    pub(crate) fn apply_to(&self, tree: &mut Tree) -> Result<()> {
        match self.is_everything() {
            true => Ok(()),
            false => tree.change_metadata(|metadata| self.apply(metadata)),
        }
    }

    /// Whether all attributes of archives and images stay.
    fn is_everything(&self) -> bool {
        !self.nothing && !self.replaces_selinux && self.include.is_empty() && self.exclude.is_empty()
    }

    /// Whether an attribute stays that is no label of the host.
    pub(crate) fn keeps(&self, name: &[u8]) -> bool {
        // All patterns are compared, so that each knows whether it has matched.
        let any =
            |patterns: &[XattrPattern]| patterns.iter().filter(|pattern| pattern.matches(name)).count() > 0;
        let (is_included, is_excluded) = (any(&self.include), any(&self.exclude));
        let is_replaced = self.replaces_selinux && name == SELINUX;
        !self.nothing && !is_replaced && (is_included || self.include.is_empty()) && !is_excluded
    }

    /// Whether an attribute of a file in a directory is left out because it is a label of the host. No pattern includes it.
    pub(crate) fn leaves_out_label(&self, name: &[u8]) -> bool {
        self.include.is_empty() && is_host_label(name)
    }

    /// Removes the attributes that do not stay. A file whose access list is removed has the permissions of the list for its
    /// owner, its group and others: the permissions of a file with a list have its mask in place of those of the group.
    fn apply(&self, metadata: &mut Metadata) {
        let mut permissions = metadata.permissions;
        metadata.xattrs.retain(|(name, value)| {
            let stays = self.keeps(name);
            if !stays && **name == *acl::ACCESS {
                permissions = without_list(value, permissions);
            }
            stays
        });
        metadata.permissions = permissions;
    }
}

fn is_host_label(name: &[u8]) -> bool {
    // Smack has several: SMACK64EXEC, SMACK64MMAP and others.
    HOST_LABELS.contains(&name) || name.starts_with(b"security.SMACK64")
}

/// The permissions of a file without its access list.
fn without_list(list: &[u8], permissions: u16) -> u16 {
    let Ok(entries) = acl::parse(list) else { return permissions };
    let of = |tag| entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions);
    match (of(acl::Tag::OwningGroup), of(acl::Tag::Mask)) {
        (Some(group), Some(mask)) => permissions & !0o070 | (group & mask) << 3,
        _ => permissions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acl::{Entry, Tag};

    fn filter(include: &[&str], exclude: &[&str]) -> XattrFilter {
        let parsed = |texts: &[&str]| texts.iter().map(|text| XattrPattern::parse(text).unwrap()).collect();
        XattrFilter { include: parsed(include), exclude: parsed(exclude), ..XattrFilter::default() }
    }

    #[test]
    fn an_attribute_stays_if_a_pattern_includes_it_and_none_excludes_it() {
        for (include, exclude, name, stays) in [
            (&[][..], &[][..], "user.a", true),
            (&["user.*"], &[], "user.a", true),
            (&["user.*"], &[], "user.a.b/c", true),
            (&["user.a/*"], &[], "user.a/b/c", true),
            (&["user.*"], &[], "trusted.a", false),
            (&["user.*", "trusted.a"], &[], "trusted.a", true),
            (&["*"], &["user.a"], "user.a", false),
            (&["*"], &["user.a"], "user.ab", true),
            (&["user.a"], &["*"], "user.a", false),
            (&[], &["security.*"], "security.capability", false),
            (&[], &["security.*"], "user.security.x", true),
        ] {
            assert_eq!(
                filter(include, exclude).keeps(name.as_bytes()),
                stays,
                "{include:?} {exclude:?} {name}"
            );
        }
        assert!(!XattrFilter { nothing: true, ..XattrFilter::default() }.keeps(b"user.a"));
        let replaced = XattrFilter { replaces_selinux: true, ..filter(&["*"], &[]) };
        assert!(!replaced.keeps(SELINUX) && replaced.keeps(b"security.ima"));
        assert!(XattrPattern::parse("user.[").is_err());
    }

    #[test]
    fn labels_of_the_host_are_left_out_unless_a_pattern_names_what_stays() {
        for name in ["selinux", "ima", "evm", "SMACK64", "SMACK64EXEC", "apparmor"] {
            let name = format!("security.{name}");
            assert!(filter(&[], &["user.*"]).leaves_out_label(name.as_bytes()), "{name}");
            assert!(!filter(&["*"], &[]).leaves_out_label(name.as_bytes()), "{name}");
        }
        for name in ["security.capability", "system.posix_acl_access", "user.selinux", "trusted.ima"] {
            assert!(!filter(&[], &[]).leaves_out_label(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_pattern_knows_whether_it_has_matched() {
        let filter = filter(&["user.*", "trusted.*"], &["user.b"]);
        assert!(!filter.clone().keeps(b"user.b"));
        assert!(filter.include[0].has_matched() && !filter.include[1].has_matched());
        assert!(filter.exclude[0].has_matched());
    }

    #[test]
    fn without_its_list_a_file_has_the_permissions_of_its_group() {
        let entry = |tag, permissions| Entry { tag, permissions, id: 7 };
        let list = [
            entry(Tag::Owner, 6),
            entry(Tag::User, 6),
            entry(Tag::OwningGroup, 5),
            entry(Tag::Mask, 6),
            entry(Tag::Others, 0),
        ];
        let xattrs = vec![(acl::ACCESS.into(), acl::encode(&list).into())];
        let with_list = Metadata { permissions: 0o4660, xattrs, ..Metadata::default() };
        let mut metadata = with_list.clone();
        filter(&[], &["user.*"]).apply(&mut metadata);
        assert_eq!(metadata, with_list);
        filter(&[], &["system.*"]).apply(&mut metadata);
        assert_eq!((metadata.permissions, metadata.xattrs.len()), (0o4640, 0));
    }
}
