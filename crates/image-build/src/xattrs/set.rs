//! Attributes that the caller gives to files.

use super::{put, text};
use crate::Result;
use crate::metadata::{prefixes, xattr};
use crate::rules::Pattern;
use crate::tree::{InodeId, Tree};
use pagefold_image::read::{FileKind, acl};

/// An attribute for all files, or for those that match a pattern.
#[derive(Debug, Clone)]
pub struct SetXattr {
    text: String,
    pattern: Option<Pattern>,
    name: Box<[u8]>,
    value: Box<[u8]>,
}

impl SetXattr {
    /// Parses `NAME=VALUE`, for all files, or `PATTERN:NAME=VALUE`. The name begins after the last colon before a kind of
    /// attributes; the value has the forms of setfattr. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((left, value)) = text.split_once('=') else {
            return Err(format!("'{text}' has no value; write NAME=VALUE, or PATTERN:NAME=VALUE"));
        };
        let mut colons = left.rmatch_indices(':').map(|(at, _)| at);
        let colon = colons.find(|at| prefixes::split(&left.as_bytes()[at + 1..]).is_some());
        let (pattern, name) = colon.map_or((None, left), |at| (Some(&left[..at]), &left[at + 1..]));
        let name = name.as_bytes();
        if matches!(name, acl::ACCESS | acl::DEFAULT) {
            return Err(format!("'{left}': access lists are those of the source"));
        }
        if prefixes::split(name).is_none() {
            return Err(format!("'{left}' names no attribute of user, trusted or security, as in user.name"));
        }
        let value = text::parse(value)?;
        let xattr = (name.into(), value.into());
        xattr::fault(&xattr).map_or(Ok(()), |what| Err(format!("'{left}': {what}")))?;
        let (name, value) = xattr;
        Ok(SetXattr { text: text.into(), pattern: pattern.map(Pattern::parse).transpose()?, name, value })
    }

    /// The attribute as it was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the attribute has a pattern that matched nothing so far.
    pub fn is_unmatched(&self) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| !pattern.has_matched())
    }

    /// Sets the attribute. A file gets it if one of its names matches.
    pub(super) fn apply(&self, tree: &mut Tree) -> Result<()> {
        let is_for_root = self.pattern.as_ref().is_none_or(Pattern::matches_root);
        if is_for_root {
            put(tree, InodeId::ROOT, &self.name, &self.value)?;
        }
        let is_of_user = self.name.starts_with(b"user.");
        tree.visit(|tree, entry, is_first| {
            let matches = match &self.pattern {
                None => is_first,
                Some(pattern) => pattern.matches(&tree.path(entry.parent, entry.name)),
            };
            match matches && (!is_of_user || has_user_attributes(tree.kind(entry.id))) {
                true => put(tree, entry.id, &self.name, &self.value),
                false => Ok(()),
            }
        })
    }
}

/// Whether Linux lets a file of this kind have attributes of users (xattr(7)).
fn has_user_attributes(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Body, Metadata};

    fn tree(texts: &[&str]) -> Tree {
        let mut tree = Tree::new(Metadata::default());
        let file = tree.add_bytes(b"d/file", *b"1").unwrap();
        tree.link(InodeId::ROOT, b"other", file).unwrap();
        tree.add(InodeId::ROOT, b"link", Metadata::default(), Body::Symlink(Box::from(*b"d"))).unwrap();
        let set: Vec<_> = texts.iter().map(|text| SetXattr::parse(text).unwrap()).collect();
        set.iter().for_each(|set| set.apply(&mut tree).unwrap());
        tree
    }

    fn names(tree: &Tree, path: &str) -> String {
        let id = tree.find(path.as_bytes()).unwrap();
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all =
            tree.xattrs(id).iter().map(|(n, v)| format!("{}={} ", shown(n), shown(v))).collect::<String>();
        all.trim_end().to_string()
    }

    #[test]
    fn an_attribute_is_for_all_files_or_for_those_that_match() {
        let tree =
            tree(&["trusted.a=1", "user.b=2", "d:user.c=3", "/d/*:user.d=4", "/:user.e=5", "*:user.b=6"]);
        assert_eq!(names(&tree, "/"), "trusted.a=1 user.b=2 user.e=5");
        assert_eq!(names(&tree, "d"), "trusted.a=1 user.b=6 user.c=3");
        assert_eq!(names(&tree, "d/file"), "trusted.a=1 user.b=6 user.d=4");
        // Only files and directories have attributes of users.
        assert_eq!(names(&tree, "link"), "trusted.a=1");
    }

    #[test]
    fn the_last_of_several_counts_and_any_name_of_a_file() {
        let tree = tree(&["user.a=1", "other:user.a=2", "nothing:user.a=3"]);
        assert_eq!(names(&tree, "d/file"), "user.a=2");
        assert_eq!(names(&tree, "d"), "user.a=1");
    }

    #[test]
    fn colons_and_equals_signs_may_be_part_of_names_and_values() {
        let parsed = |text: &str| {
            let SetXattr { pattern, name, value, .. } = SetXattr::parse(text).unwrap();
            let text = |bytes: Box<[u8]>| String::from_utf8(bytes.into()).unwrap();
            (pattern.map_or(String::new(), |pattern| pattern.text().into()), text(name), text(value))
        };
        let wanted = |pattern: &str, name: &str, value: &str| (pattern.into(), name.into(), value.into());
        assert_eq!(parsed("user.a:b=c=d"), wanted("", "user.a:b", "c=d"));
        assert_eq!(parsed("a:b:user.c:d="), wanted("a:b", "user.c:d", ""));
        assert_eq!(parsed("user.a:user.b=x:y"), wanted("user.a", "user.b", "x:y"));
        for wrong in ["user.a", "user.=1", "a=1", "a:b=1", "[:user.a=1", "btrfs.x=1", "user.a=0x1", "=1"] {
            assert!(SetXattr::parse(wrong).is_err(), "{wrong}");
        }
        assert!(SetXattr::parse("system.posix_acl_access=0x02").unwrap_err().contains("access lists"));
        assert!(SetXattr::parse(&format!("user.{}=1", "n".repeat(251))).unwrap_err().contains("255 bytes"));
        assert!(SetXattr::parse(&format!("user.n={}", "v".repeat(65_536))).unwrap_err().contains("64 KiB"));
    }
}
