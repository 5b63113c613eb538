//! Reads a whole tree through the library, in the form of a manifest.

use super::Entry;
use pagefold_image::read::FileKind;
use pagefold_image::{Image, ImageError, Node};
use sha2::{Digest, Sha256};

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The whole contents, in reads of `step` bytes.
pub fn contents(node: &Node, step: usize) -> Result<Vec<u8>, ImageError> {
    let (mut all, mut buf) = (Vec::new(), vec![0; step]);
    loop {
        match node.read_at(all.len() as u64, &mut buf)? {
            0 => return Ok(all),
            len => all.extend_from_slice(&buf[..len]),
        }
    }
}

/// The manifest entry of a node, with its contents read in steps of `step` bytes.
pub fn entry(path: &str, node: &Node, step: usize) -> Result<Entry, ImageError> {
    let inode = node.inode();
    let is = |kind| node.kind() == kind;
    let data = if is(FileKind::Regular) { Some(contents(node, step)?) } else { None };
    let target = if is(FileKind::Symlink) { Some(node.read_link()?) } else { None };
    Ok(Entry {
        path: path.to_owned(),
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size: data.as_ref().map(|_| node.len_bytes()),
        sha256: data.as_deref().map(sha256),
        target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        rdev: inode.device.map(|device| (device.major, device.minor)),
        xattrs: node.xattrs()?.into_iter().map(|xattr| (xattr.name, xattr.value)).collect(),
    })
}

/// The entries of a whole image, sorted by path.
pub fn walk(image: &Image, step: usize) -> Result<Vec<Entry>, ImageError> {
    let mut found = Vec::new();
    let mut stack = vec![(String::from("/"), image.root()?)];
    while let Some((path, node)) = stack.pop() {
        if node.kind() == FileKind::Directory {
            for entry in node.entries()? {
                let entry = entry?;
                let slash = if path == "/" { "" } else { "/" };
                let name = String::from_utf8_lossy(&entry.name);
                stack.push((format!("{path}{slash}{name}"), image.node(entry.nid)?));
            }
        }
        found.push(entry(&path, &node, step)?);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Asserts that two lists are equal, and shows the first difference. Ignores `user.digest`, which the builder of one
/// image added.
pub fn assert_same(what: &str, found: &[Entry], wanted: &[Entry]) {
    let mut wanted = wanted.to_vec();
    wanted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut found = found.to_vec();
    found.iter_mut().for_each(|entry| _ = entry.xattrs.remove(&b"user.digest"[..]));
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found, wanted, "{what}");
    }
    assert_eq!(found.len(), wanted.len(), "{what}");
}
