//! The order of small files in the packed file: similar ones follow each other, so that one cluster has both.
//!
//! Files of a kind are alike, and files of one directory too. The kind is the end of the name behind its last dot; names
//! without a dot are a kind.

use crate::build::plan::Planned;

/// Puts files in order: by kind, and those of a kind as they were.
pub fn sort(files: &mut [&Planned]) {
    files.sort_by(|a, b| kind(&a.path).cmp(kind(&b.path)));
}

/// The end of the name that says what the file is.
fn kind(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match name.iter().rposition(|byte| *byte == b'.') {
        // A leading dot hides the file.
        None | Some(0) => b"",
        Some(dot) => &name[dot + 1..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::plan::Plan;
    use crate::build::tree::{Metadata, Tree};

    #[test]
    fn files_of_a_kind_follow_each_other() {
        let mut tree = Tree::new(Metadata::default());
        for path in ["b/x.c", "b/y.h", "a/README", "a/z.c", "a/.hidden", "a.d/file", "c.h"] {
            tree.add_bytes(path.as_bytes(), *b"1").unwrap();
        }
        let plan = Plan::new(&tree, None);
        let mut files: Vec<_> = plan.others.iter().collect();
        sort(&mut files);
        let paths: Vec<_> = files.iter().map(|file| String::from_utf8_lossy(&file.path)).collect();
        assert_eq!(paths, ["a/.hidden", "a/README", "a.d/file", "a/z.c", "b/x.c", "c.h", "b/y.h"]);
    }
}
