//! Owners, modes and capabilities by path, from the text that Android's builds make of `fs_config`.
//!
//! A line has the path, without a slash at its beginning, the user, the group, the mode as an octal number, and maybe
//! `capabilities=`, a number of bits. The root has an empty path: its line begins with a blank.
//!
//! All files of a tree need a line, so that none keeps the owner that it has on the machine of the build. Lines without a file
//! say nothing.

use crate::tree::{InodeId, Tree};
use crate::xattrs::insert;
use crate::{BuildError, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest file, bytes.
pub const FS_CONFIG_BYTES_MAX: usize = 64 << 20;
/// The attribute with capabilities, and its first word: version 2, and that the capabilities are in effect
/// (`include/uapi/linux/capability.h`).
const CAPABILITY: &[u8] = b"security.capability";
const CAPABILITY_MAGIC: u32 = 0x0200_0000 | 1;

/// Owners, modes and capabilities by path.
#[derive(Debug, Clone)]
pub struct FsConfig {
    entries: Arc<BTreeMap<Vec<u8>, Entry>>,
    /// Before the paths of all files but the root.
    mount_point: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    uid: u32,
    gid: u32,
    mode: u16,
    capabilities: u64,
}

impl FsConfig {
    /// Parses a file, whose paths begin with `mount_point`, but for that of the root. The error names the line, and says what is
    /// wrong with it.
    pub fn parse(file: &[u8], mount_point: &[u8]) -> Result<Self, String> {
        if file.len() > FS_CONFIG_BYTES_MAX {
            return Err("a file of more than 64 MiB".into());
        }
        let mut entries = BTreeMap::new();
        for (number, line) in (1..).zip(file.split(|byte| *byte == b'\n')) {
            if line.iter().all(u8::is_ascii_whitespace) || line.starts_with(b"#") {
                continue;
            }
            let (path, entry) =
                entry(line).map_err(|what| format!("a file whose line {number} is wrong: {what}"))?;
            entries.insert(path, entry);
        }
        let slash = |byte: &u8| *byte == b'/';
        let start = mount_point.iter().take_while(|byte| slash(byte)).count();
        let end = mount_point.iter().rposition(|byte| !slash(byte)).map_or(start, |last| last + 1);
        Ok(FsConfig { entries: Arc::new(entries), mount_point: mount_point[start..end].to_vec() })
    }

    /// Changes all files of a tree. A hard link has what its first path has. A file without a line is an error.
    pub fn apply(&self, tree: &mut Tree) -> Result<()> {
        self.change(tree, InodeId::ROOT, b"")?;
        tree.visit(|tree, entry, is_first| {
            if !is_first {
                return Ok(());
            }
            let path = tree.path(entry.parent, entry.name);
            let path = match &*self.mount_point {
                b"" => path,
                mount_point => [mount_point, b"/", &path].concat(),
            };
            self.change(tree, entry.id, &path)
        })
    }

    fn change(&self, tree: &mut Tree, id: InodeId, path: &[u8]) -> Result<()> {
        let Some(entry) = self.entries.get(path) else {
            return Err(BuildError::refused(path, "the file of --fs-config-file has no line for it"));
        };
        tree.change(id, |metadata| {
            (metadata.uid, metadata.gid, metadata.permissions) = (entry.uid, entry.gid, entry.mode);
            match entry.capabilities {
                // Those that the file has on the machine of the build.
                0 => metadata.xattrs.retain(|(name, _)| **name != *CAPABILITY),
                bits => insert(&mut metadata.xattrs, CAPABILITY, &capability(bits)),
            }
        })
    }
}

/// Capabilities that programs get and that are in effect, as the kernel stores them: for each half of the bits, those that are
/// permitted, and those that are inherited.
fn capability(bits: u64) -> [u8; 20] {
    let words = [CAPABILITY_MAGIC, bits as u32, 0, (bits >> 32) as u32, 0];
    let mut value = [0; 20];
    for (bytes, word) in value.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    value
}

fn entry(line: &[u8]) -> Result<(Vec<u8>, Entry), String> {
    let line = str::from_utf8(line).map_err(|_| "it is no text of UTF-8")?;
    let mut words = line.split_ascii_whitespace();
    let path = if line.starts_with([' ', '\t']) { "" } else { words.next().unwrap_or_default() };
    let mut number = |what: &str, radix| {
        let word = words.next().ok_or_else(|| format!("it has no {what}"))?;
        u32::from_str_radix(word, radix).map_err(|_| format!("'{word}' is no {what}"))
    };
    let (uid, gid, mode) = (number("user", 10)?, number("group", 10)?, number("octal mode", 8)?);
    if uid == u32::MAX || gid == u32::MAX {
        return Err("users and groups have numbers up to 4294967294".into());
    }
    // Some tools write the type of the file, too.
    let mode = (mode & 0o7777) as u16;
    let mut capabilities = 0;
    for word in words {
        let value = word.strip_prefix("capabilities=").ok_or_else(|| format!("'{word}' is not known"))?;
        let (digits, radix) = match value.strip_prefix("0x") {
            Some(digits) => (digits, 16),
            None => (value, 10),
        };
        capabilities = u64::from_str_radix(digits, radix)
            .map_err(|_| format!("'{value}' is no number of capabilities"))?;
    }
    let path = path.trim_start_matches('/').as_bytes().to_vec();
    Ok((path, Entry { uid, gid, mode, capabilities }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Body, Metadata};

    fn tree() -> Tree {
        let mut tree = Tree::new(Metadata::default());
        let bin = tree.add(InodeId::ROOT, b"bin", Metadata::default(), Body::Directory).unwrap();
        let ping = tree.add(bin, b"ping", Metadata { uid: 9, ..Metadata::default() }, Body::Fifo).unwrap();
        tree.link(InodeId::ROOT, b"z", ping).unwrap();
        tree
    }

    #[test]
    fn a_line_decides_on_owner_mode_and_capabilities() {
        let text =
            b" 0 0 755\nbin 0 2000 0751\nbin/ping 0 3004 104755 capabilities=0x2000003000\n# x\n\nz 1 1 1\n";
        for mount_point in ["", "/"] {
            let mut tree = tree();
            FsConfig::parse(text, mount_point.as_bytes()).unwrap().apply(&mut tree).unwrap();
            let of = |path: &[u8]| tree.metadata(tree.find(path).unwrap());
            assert_eq!((of(b"bin").gid, of(b"bin").permissions), (2000, 0o751));
            // Of hard links the first path counts.
            let z = of(b"z");
            assert!((z.uid, z.permissions) == (1, 1) || (z.uid, z.permissions) == (0, 0o4755), "{z:?}");
        }
        assert_eq!(
            capability(0x20_0000_3000),
            [1, 0, 0, 2, 0, 0x30, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    /// Those of the machine of the build would give programs rights that the line does not.
    #[test]
    fn a_line_without_capabilities_removes_those_of_the_source() {
        let mut tree = tree();
        let text = |words| format!(" 0 0 755\nbin 0 0 755\nbin/ping 0 0 755{words}\nz 0 0 755{words}\n");
        let apply =
            |tree: &mut Tree, words| FsConfig::parse(text(words).as_bytes(), b"").unwrap().apply(tree);
        let names = |tree: &Tree| -> Vec<Vec<u8>> {
            let xattrs = tree.metadata(tree.find(b"z").unwrap()).xattrs;
            xattrs.iter().map(|(name, _)| name.to_vec()).collect()
        };
        let z = tree.find(b"z").unwrap();
        tree.change(z, |metadata| insert(&mut metadata.xattrs, b"user.a", b"1")).unwrap();
        apply(&mut tree, " capabilities=0x1000").unwrap();
        assert_eq!(names(&tree), [CAPABILITY, b"user.a"]);
        for words in ["", " capabilities=0"] {
            apply(&mut tree, " capabilities=0x1000").unwrap();
            apply(&mut tree, words).unwrap();
            assert_eq!(names(&tree), [b"user.a"]);
        }
    }

    #[test]
    fn paths_have_the_mount_point_before_them() {
        let mut tree = tree();
        let text = b"/ 0 0 755\nsystem/bin 1 1 700\nsystem/bin/ping 2 2 700\nsystem/z 3 3 700\n";
        FsConfig::parse(text, b"/system/").unwrap().apply(&mut tree).unwrap();
        assert_eq!(tree.metadata(tree.find(b"bin").unwrap()).uid, 1);
        let missing = FsConfig::parse(text, b"").unwrap().apply(&mut tree).unwrap_err().to_string();
        assert!(missing.contains("has no line for it"), "{missing}");
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, what) in [
            ("a 0 0", "line 1 is wrong: it has no octal mode"),
            ("a 0 0 7\nb x 0 7", "line 2 is wrong: 'x' is no user"),
            ("a 0 0 8", "'8' is no octal mode"),
            ("a 0 4294967295 7", "up to 4294967294"),
            ("a 0 0 7 capabilities=0xg", "'0xg' is no number"),
            ("a 0 0 7 selabel=x", "'selabel=x' is not known"),
        ] {
            let error = FsConfig::parse(text.as_bytes(), b"").unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
