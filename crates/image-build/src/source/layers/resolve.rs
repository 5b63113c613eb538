//! Paths in a tree whose symbolic links are followed, as if it were mounted as the root.

use crate::tree::{InodeId, Tree};
use crate::{BuildError, Result};

/// Links that are followed for a path, as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Names that are looked up for all paths of all layers, besides some for each path: hostile links make each path long.
const STEPS_MAX: u64 = 1 << 24;
const PATH_STEPS: u64 = 64;

/// Resolves the paths of layers, and bounds the work.
#[derive(Debug)]
pub struct Resolver {
    steps_left: u64,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver { steps_left: STEPS_MAX }
    }
}

impl Resolver {
    /// Returns the inode at `path`; `None` if there is none. A link at its end is followed if `follows_last`.
    pub fn resolve(&mut self, tree: &Tree, path: &[u8], follows_last: bool) -> Result<Option<InodeId>> {
        let mut pending = names(path);
        let mut directories = vec![InodeId::ROOT];
        let mut links = 0;
        self.steps_left = self.steps_left.saturating_add(PATH_STEPS);
        while let Some(name) = pending.pop() {
            let left = self.steps_left.checked_sub(1);
            self.steps_left =
                left.ok_or_else(|| BuildError::refused(path, "following symbolic links takes too long"))?;
            if name == b".." {
                directories.truncate((directories.len() - 1).max(1));
                continue;
            }
            let directory = directories.last().copied().unwrap_or(InodeId::ROOT);
            let Some(child) = tree.child(directory, &name) else { return Ok(None) };
            match tree.link_target(child) {
                Some(target) if follows_last || !pending.is_empty() => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Ok(None);
                    }
                    if target.starts_with(b"/") {
                        directories.truncate(1);
                    }
                    pending.extend(names(target));
                }
                _ => directories.push(child),
            }
        }
        Ok(directories.last().copied())
    }
}

/// The names of a path, the last one first.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.rev().map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Body, Metadata};

    #[test]
    fn links_lead_to_places_in_the_tree_only() {
        let mut tree = Tree::new(Metadata::default());
        let file = tree.add_bytes(b"usr/lib/a", *b"a").unwrap();
        let usr = tree.find(b"usr").unwrap();
        let mut link = |parent, name: &[u8], target: &[u8]| {
            tree.add(parent, name, Metadata::default(), Body::Symlink(target.into())).unwrap()
        };
        link(InodeId::ROOT, b"lib", b"usr/lib");
        link(usr, b"up", b"../../../lib");
        link(usr, b"absolute", b"/usr/./lib//");
        let loops = link(InodeId::ROOT, b"loop", b"loop");
        let mut resolver = Resolver::default();
        let mut resolve = |path: &str, follows| resolver.resolve(&tree, path.as_bytes(), follows).unwrap();
        for path in ["usr/lib/a", "/lib/a", "usr/up/a", "usr/absolute/a", "../lib/../lib/a"] {
            assert_eq!(resolve(path, true), Some(file), "{path}");
        }
        assert_eq!(resolve("loop", false), Some(loops));
        for path in ["loop", "loop/a", "lib/a/b", "none/..", "lib/b"] {
            assert_eq!(resolve(path, true), None, "{path}");
        }
        assert_eq!(resolve("..", true), Some(InodeId::ROOT));
    }

    #[test]
    fn all_paths_share_a_limit_besides_the_steps_of_each() {
        let tree = Tree::new(Metadata::default());
        let mut resolver = Resolver { steps_left: 10 };
        let path = |steps: u64| b"../".repeat(steps as usize);
        for steps in [PATH_STEPS + 5, PATH_STEPS, PATH_STEPS, PATH_STEPS + 5] {
            assert_eq!(resolver.resolve(&tree, &path(steps), true).unwrap(), Some(InodeId::ROOT));
        }
        let error = resolver.resolve(&tree, &path(PATH_STEPS + 1), true).unwrap_err();
        assert!(error.to_string().contains("takes too long"), "{error}");
    }
}
