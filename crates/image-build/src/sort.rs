//! The order of contents in an image.
//!
//! Small files, which are compressed together in the packed file, come first; the other files follow. [`Sort`] says in
//! which order the files of each of these two groups are.
//!
//! A file that is read at the same time as its neighbours costs less there: a cluster of small files is decoded once, and
//! read-ahead of the medium has the next file already. [`SortList`] makes an order from the record of a start-up.

mod paths;

use super::plan::Planned;
use super::table::Table;
use super::tree::Tree;
use super::versions;
use crate::Result;
use pagefold_image::startup::{self, StartEntry};
use paths::{Known, Paths};
use std::sync::Arc;

/// Longest list, bytes.
pub const LIST_BYTES_MAX: usize = 16 << 20;
/// Most paths in a list.
pub const LIST_PATHS_MAX: usize = 1 << 20;

/// The rank of a file that no list has.
const NOT_LISTED: u32 = u32::MAX;

/// The order of contents in an image.
#[derive(Debug, Clone, Default)]
pub enum Sort {
    /// Small files by the ends of their names after the last dot, so that similar ones are compressed together, and
    /// those of a kind by path; but versions of a file, which have its name in directories of the same name, follow it.
    /// Other files by path.
    #[default]
    Similarity,
    /// By path: the files of a directory in the order of their names, then those of its directories.
    Path,
    /// The files of a list first, in its order; the others as with [`Sort::Similarity`].
    List(SortList),
}

/// Paths of files in the order in which they are wanted. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortList(Arc<Paths>);

/// The paths of a list that were looked for in a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Listed {
    /// Paths that the tree has.
    pub found: u64,
    /// Paths that it does not have.
    pub missing: u64,
}

impl SortList {
    /// Parses a list: the text of a [`StartList`](pagefold_image::startup::StartList), or a path on each line. Paths are from
    /// the root of the image, with or without a slash at the beginning. Empty lines and those that begin with `#` are
    /// ignored, and so are a path that an earlier line has, and an entry without bytes, whose contents are not read. A
    /// file of which a part is listed counts as a whole: the index of a compressed file does not let its parts be
    /// anywhere. The error says which limit a list exceeds, or that the text is not a list.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > LIST_BYTES_MAX {
            return Err(format!("a list of more than {} MiB", LIST_BYTES_MAX >> 20));
        }
        let mut paths = Paths::default();
        let mut known = Known::default();
        for entry in startup::list::lines(text) {
            let StartEntry { path, range } =
                entry.ok_or("no list: a line has other fields than a path, an offset and a length")?;
            if path.is_empty() || range.is_some_and(|range| range.is_empty()) {
                continue;
            }
            if paths.count() >= LIST_PATHS_MAX {
                return Err(format!("a list of more than {LIST_PATHS_MAX} paths"));
            }
            known.add(&mut paths, &path);
        }
        Ok(SortList(Arc::new(paths)))
    }

    /// The paths, each once, without a slash at the beginning.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.0.count()).map(|number| self.0.path(number))
    }

    /// Bytes of memory that the list takes.
    pub(super) fn heap_bytes(&self) -> u64 {
        (self.0.bytes.capacity() + self.0.ends.capacity() * size_of::<u32>()) as u64
    }
}

/// An order for the files of one tree.
pub(super) struct Order {
    is_by_kind: bool,
    /// The place of each inode of the tree in the list, [`NOT_LISTED`] if it has none; `None`: there is no list.
    ranks: Option<Table<u32>>,
    listed: Listed,
}

impl Order {
    /// Looks for the paths of a list in `tree`. Any name of a file with several is a name of it, and the first one in the
    /// list decides. Symbolic links are not followed.
    pub(super) fn new(tree: &Tree, sort: &Sort) -> Result<Self> {
        let is_by_kind = !matches!(sort, Sort::Path);
        let mut listed = Listed::default();
        let Sort::List(list) = sort else { return Ok(Order { is_by_kind, ranks: None, listed }) };
        let mut ranks = Table::filled(tree.spill(), tree.len(), NOT_LISTED)?;
        for (rank, path) in (0..NOT_LISTED).zip(list.paths()) {
            match tree.find(path) {
                Some(id) => {
                    listed.found += 1;
                    if ranks.get(id.index()) == NOT_LISTED {
                        ranks.set(id.index(), rank);
                    }
                }
                None => listed.missing += 1,
            }
        }
        Ok(Order { is_by_kind, ranks: Some(ranks).filter(|_| listed.found > 0), listed })
    }

    /// The paths of the list, if there is one, that the tree has and does not have.
    pub(super) fn listed(&self) -> Listed {
        self.listed
    }

    /// Puts small files of `tree`, which are in the order of the plan, in order.
    pub(super) fn sort_small(&self, tree: &Tree, files: &mut Table<Planned>) -> Result<()> {
        if self.is_by_kind {
            files.sort_by(|a, b| kind(tree.name(a.name)).cmp(kind(tree.name(b.name))))?;
            versions::bring_together(tree, files)?;
        }
        self.sort_others(files)
    }

    /// Puts files that are not small, which are in the order of the plan, in order.
    pub(super) fn sort_others(&self, files: &mut Table<Planned>) -> Result<()> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        let rank = |file: &Planned| ranks.get(file.id.index());
        files.sort_by(|a, b| rank(a).cmp(&rank(b)))
    }
}

/// The end of the name that says what the file is: what is after the last dot, or before the numbers there, as in
/// `libz.so.1.3`. Names without a dot are a kind, and those with nothing but a number after it, as in `ls.1`, have that one.
fn kind(name: &[u8]) -> &[u8] {
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    // A leading dot hides the file.
    let Some((_, rest)) = name.split_first() else { return b"" };
    let mut ends = rest.rsplit(|byte| *byte == b'.');
    let parts = ends.clone().count() - 1;
    let named = ends.clone().take(parts).find(|part| !is_number(part));
    match parts {
        0 => b"",
        _ => named.or_else(|| ends.next()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::tree::{Body, InodeId, Metadata};

    /// A tree whose file `b/x.c` has the name `other` too.
    fn tree() -> Tree {
        let mut tree = Tree::new(Metadata::default());
        for path in ["b/x.c", "b/y.h", "a/README", "a/z.c", "a/.hidden", "a.d/file", "c.h"] {
            tree.add_bytes(path.as_bytes(), *b"1").unwrap();
        }
        let linked = tree.find(b"b/x.c").unwrap();
        tree.link(tree.find(b"b").unwrap(), b"other", linked).unwrap();
        tree.add(InodeId::ROOT, b"pipe", Metadata::default(), Body::Fifo).unwrap();
        tree
    }

    fn sorted(sort: &Sort, small: bool) -> Vec<String> {
        let tree = tree();
        let mut files = Plan::new(&tree, None, false).unwrap().others;
        let order = Order::new(&tree, sort).unwrap();
        match small {
            true => order.sort_small(&tree, &mut files).unwrap(),
            false => order.sort_others(&mut files).unwrap(),
        }
        files.iter().map(|file| String::from_utf8_lossy(&file.path(&tree)).into_owned()).collect()
    }

    fn list(text: &str) -> Sort {
        Sort::List(SortList::parse(text.as_bytes()).unwrap())
    }

    const BY_KIND: [&str; 8] =
        ["pipe", "a/.hidden", "a/README", "a.d/file", "b/other", "a/z.c", "c.h", "b/y.h"];
    const BY_PATH: [&str; 8] =
        ["c.h", "pipe", "a/.hidden", "a/README", "a/z.c", "a.d/file", "b/other", "b/y.h"];

    #[test]
    fn files_of_a_kind_follow_each_other() {
        assert_eq!(sorted(&Sort::Similarity, true), BY_KIND);
        assert_eq!(sorted(&Sort::Similarity, false), BY_PATH);
        assert_eq!(sorted(&Sort::Path, true), BY_PATH);
        assert_eq!(sorted(&Sort::Path, false), BY_PATH);
    }

    #[test]
    fn the_kind_is_behind_the_last_dot_and_before_a_version() {
        for (name, wanted) in [
            ("x.c", "c"),
            ("libz.so.1.3", "so"),
            ("libz.so", "so"),
            ("ls.1", "1"),
            ("a.b.7.8", "b"),
            ("a.tar.gz", "gz"),
            (".hidden", ""),
            (".hidden.c", "c"),
            ("README", ""),
            ("end.", ""),
            ("", ""),
            ("1.2.3", "3"),
        ] {
            assert_eq!(kind(name.as_bytes()), wanted.as_bytes(), "{name}");
        }
    }

    #[test]
    fn the_files_of_a_list_come_first_whatever_their_name_there_is() {
        // The name that is not the first one counts too.
        let sort = list("c.h\n/b/x.c\nb/other\n./a//README\nnone\na/../c.h\n");
        let wanted = ["c.h", "b/other", "a/README", "pipe", "a/.hidden", "a.d/file", "a/z.c", "b/y.h"];
        assert_eq!(sorted(&sort, true), wanted);
        let wanted = ["c.h", "b/other", "a/README", "pipe", "a/.hidden", "a/z.c", "a.d/file", "b/y.h"];
        assert_eq!(sorted(&sort, false), wanted);
        assert_eq!(Order::new(&tree(), &sort).unwrap().listed(), Listed { found: 4, missing: 2 });
        assert_eq!(sorted(&list("# nothing\n\n/\n"), true), BY_KIND);
    }

    #[test]
    fn a_list_has_each_path_once_and_no_comments() {
        let parsed = SortList::parse(b"# a comment\n\n/b\nb\na \n./#x\n\xff\n//\nc").unwrap();
        assert_eq!(parsed.paths().collect::<Vec<_>>(), [b"b".as_slice(), b"a ", b"#x", b"\xff", b"c"]);
        assert_eq!(SortList::parse(b"").unwrap().paths().count(), 0);
        let recorded = b"/\t0\t90\n/b/\t0\t50\n/b/x\\040y\t0\t0\n/b/x\\040y\t4096\t10\n/b/z\t0\t0\n";
        assert_eq!(
            SortList::parse(recorded).unwrap().paths().collect::<Vec<_>>(),
            [b"b".as_slice(), b"b/x y"]
        );
        assert!(SortList::parse(b"a\n/b\tc\n").unwrap_err().contains("other fields"));
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let longest = vec![b'\n'; LIST_BYTES_MAX];
        assert!(SortList::parse(&longest).is_ok());
        assert!(SortList::parse(&[&longest[..], b"x"].concat()).unwrap_err().contains("16 MiB"));
        let paths: String = (0..LIST_PATHS_MAX).map(|n| format!("{n:x}\n")).collect();
        assert!(SortList::parse(paths.as_bytes()).is_ok());
        assert!(SortList::parse((paths + "x").as_bytes()).unwrap_err().contains("1048576 paths"));
    }
}
