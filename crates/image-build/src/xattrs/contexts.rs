//! Labels of SELinux by path, from a file of the format of file_contexts(5).
//!
//! A line is a regular expression of whole paths, maybe a type of file, and a label or `<<none>>`. Paths begin with a
//! slash at the root of the image. As in libselinux, lines without wildcards precede those with them, and among each of these
//! the last line that matches decides.
//!
//! Files have some thousand lines, and trees hundreds of thousands of paths. So a line is divided into the bytes with which
//! all its paths begin, and the expression of the rest; and for each directory the lines are selected that can match in
//! it. Expressions are those of the crate `regex-lite`, whose work is proportional to the length of the path and to that
//! of the expression. It matches text, and paths are bytes: each byte becomes the character of its number.
//!
//! Substitutions of paths (`file_contexts.subs`) and compiled files (`file_contexts.bin`) are not read.

use super::{SELINUX, put};
use crate::Result;
use crate::tree::{InodeId, Tree};
use pagefold_image::read::FileKind;
use regex_lite::{Regex, RegexBuilder};
use std::borrow::Cow;
use std::sync::Arc;

/// Longest file, bytes.
pub const CONTEXTS_BYTES_MAX: usize = 16 << 20;
/// Most lines that are no comments.
const SPECS_MAX: usize = 1 << 16;
/// Longest line, bytes.
const LINE_BYTES_MAX: usize = 4096;
/// Memory of a compiled expression at most, bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Groups within groups of an expression at most.
const NESTING_MAX: u32 = 50;
/// The label of a line whose files have none.
const NONE: &[u8] = b"<<none>>";
/// Begins a compiled file: `SELINUX_MAGIC_COMPILED_FCONTEXT`.
const COMPILED_MAGIC: [u8; 4] = 0xf97c_ff8a_u32.to_le_bytes();

/// Labels by path and type of file.
#[derive(Debug, Clone)]
pub struct FileContexts {
    /// In the order in which they are tried.
    specs: Arc<[Spec]>,
}

/// A line.
#[derive(Debug)]
struct Spec {
    /// Bytes with which all paths begin that it matches.
    prefix: Vec<u8>,
    /// The expression of what follows; `None`: nothing follows.
    rest: Option<Regex>,
    /// The only type of files; `None`: any.
    kind: Option<FileKind>,
    /// The label with a NUL after it, as Linux stores it; `None`: no label.
    value: Option<Box<[u8]>>,
}

impl FileContexts {
    /// Parses a file. The error names the line, and says what is wrong with it.
    pub fn parse(file: &[u8]) -> Result<Self, String> {
        if file.starts_with(&COMPILED_MAGIC) {
            return Err("a compiled file; name the text that it was made from".into());
        }
        if file.len() > CONTEXTS_BYTES_MAX {
            return Err("a file of more than 16 MiB".into());
        }
        let (mut exact, mut wild) = (Vec::new(), Vec::new());
        for (number, line) in file.split(|&byte| byte == b'\n').enumerate() {
            let spec = Spec::parse(line)
                .map_err(|what| format!("a file whose line {} is wrong: {what}", number + 1))?;
            if let Some(spec) = spec {
                if spec.rest.is_none() { exact.push(spec) } else { wild.push(spec) }
            }
            if exact.len() + wild.len() > SPECS_MAX {
                return Err(format!("a file of more than {SPECS_MAX} lines"));
            }
        }
        let specs = exact.into_iter().rev().chain(wild.into_iter().rev());
        Ok(FileContexts { specs: specs.collect() })
    }

    /// Labels all files of a tree. A hard link has the label of its first path.
    pub(super) fn apply(&self, tree: &mut Tree) -> Result<()> {
        let mut specs = self.below(b"/");
        let label = |specs: &[&Spec], tree: &mut Tree, id: InodeId, path: &[u8]| {
            let value = find(specs, path, tree.kind(id));
            value.map_or(Ok(()), |value| put(tree, id, SELINUX, value))
        };
        label(&specs, tree, InodeId::ROOT, b"/")?;
        let mut directory = (InodeId::ROOT, b"/".to_vec());
        tree.visit(|tree, entry, is_first| {
            if directory.0 != entry.parent {
                directory = (entry.parent, [b"/", &*tree.directory_path(entry.parent), b"/"].concat());
                specs = self.below(&directory.1);
            }
            match is_first {
                true => {
                    let path = [&directory.1, tree.name(entry.name)].concat();
                    label(&specs, tree, entry.id, &path)
                }
                false => Ok(()),
            }
        })
    }

    /// The lines that can match a path in a directory, whose path ends in a slash.
    fn below(&self, directory: &[u8]) -> Vec<&Spec> {
        let can_match = |spec: &&Spec| {
            let common = spec.prefix.len().min(directory.len());
            spec.prefix[..common] == directory[..common]
                && (spec.rest.is_some() || spec.prefix.len() >= directory.len())
        };
        self.specs.iter().filter(can_match).collect()
    }
}

/// The label of a path: that of the first line that matches.
fn find<'s>(specs: &[&'s Spec], path: &[u8], kind: FileKind) -> Option<&'s [u8]> {
    let matching = |spec: &&&Spec| spec.kind.is_none_or(|of| of == kind) && spec.matches(path);
    specs.iter().find(matching)?.value.as_deref()
}

impl Spec {
    /// Parses a line; `None` if it is empty or a comment.
    fn parse(line: &[u8]) -> Result<Option<Self>, String> {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let Some(pattern) = fields.next().filter(|field| !field.starts_with(b"#")) else { return Ok(None) };
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("it has more than {LINE_BYTES_MAX} bytes"));
        }
        let (kind, context) = match (fields.next(), fields.next(), fields.next()) {
            (Some(context), None, None) => (None, context),
            (Some(kind), Some(context), None) => (Some(parse_kind(kind)?), context),
            _ => return Err("it has to be EXPRESSION LABEL, or EXPRESSION TYPE LABEL".into()),
        };
        if context.contains(&0) {
            return Err("the label has a NUL byte".into());
        }
        let value = (context != NONE).then(|| [context, b"\0"].concat().into());
        let (prefix, rest) = divide(pattern);
        let rest = (!rest.is_empty()).then(|| compile(rest)).transpose()?;
        Ok(Some(Spec { prefix, rest, kind, value }))
    }

    fn matches(&self, path: &[u8]) -> bool {
        match (path.strip_prefix(self.prefix.as_slice()), &self.rest) {
            (None, _) => false,
            (Some(rest), None) => rest.is_empty(),
            (Some(rest), Some(regex)) => regex.is_match(&text_of(rest)),
        }
    }
}

fn parse_kind(text: &[u8]) -> Result<FileKind, String> {
    Ok(match text {
        b"--" => FileKind::Regular,
        b"-d" => FileKind::Directory,
        b"-l" => FileKind::Symlink,
        b"-c" => FileKind::CharDevice,
        b"-b" => FileKind::BlockDevice,
        b"-p" => FileKind::Fifo,
        b"-s" => FileKind::Socket,
        _ => return Err(format!("the type '{}' is none of -- -d -l -c -b -p -s", text.escape_ascii())),
    })
}

/// Divides an expression into the bytes with which all paths begin that it matches, and the rest.
fn divide(pattern: &[u8]) -> (Vec<u8>, &[u8]) {
    let (mut prefix, mut at) = (Vec::new(), 0);
    while at < pattern.len() {
        let (byte, next) = match pattern[at..] {
            [b'\\', escaped, ..] if escaped.is_ascii_punctuation() => (escaped, at + 2),
            [b'\\' | b'.' | b'^' | b'$' | b'?' | b'*' | b'+' | b'|' | b'[' | b'(' | b'{', ..] | [] => break,
            [byte, ..] => (byte, at + 1),
        };
        // It may stand there not at all, or several times.
        if matches!(pattern.get(next), Some(b'?' | b'*' | b'+' | b'{')) {
            break;
        }
        prefix.push(byte);
        at = next;
    }
    // An alternative at the outermost level begins at the beginning of the expression.
    match has_outer_bar(&pattern[at..]) {
        true => (Vec::new(), pattern),
        false => (prefix, &pattern[at..]),
    }
}

/// Whether an expression has alternatives that are in no group.
fn has_outer_bar(pattern: &[u8]) -> bool {
    let (mut depth, mut at) = (0_u32, 0);
    while let Some(byte) = pattern.get(at) {
        match byte {
            b'\\' => at += 1,
            b'[' => at = class_end(pattern, at),
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'|' if depth == 0 => return true,
            _ => {}
        }
        at += 1;
    }
    false
}

/// The position of the bracket that ends the class at `start`.
fn class_end(pattern: &[u8], start: usize) -> usize {
    let is = |at: usize, byte: u8| pattern.get(at) == Some(&byte);
    let mut at = start + 1;
    at += usize::from(is(at, b'^'));
    // A bracket that comes first stands for itself.
    at += usize::from(is(at, b']'));
    while let Some(byte) = pattern.get(at) {
        match byte {
            b']' => return at,
            b'\\' => at += 1,
            b'[' if is(at + 1, b':') => {
                let name = pattern[at..].windows(2).position(|pair| pair == b":]");
                at += name.map_or(0, |len| len + 1);
            }
            _ => {}
        }
        at += 1;
    }
    at
}

fn compile(rest: &[u8]) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(&format!(r"\A(?:{})\z", text_of(rest)));
    builder.dot_matches_new_line(true).size_limit(REGEX_BYTES_MAX).nest_limit(NESTING_MAX);
    builder.build().map_err(|e| format!("the expression is invalid: {e}"))
}

/// Bytes as characters of their numbers.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.is_ascii() => Cow::from(text),
        _ => bytes.iter().map(|byte| char::from(*byte)).collect::<String>().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Body, Metadata};
    use proptest::prelude::*;

    fn contexts(text: &str) -> FileContexts {
        FileContexts::parse(text.as_bytes()).unwrap()
    }

    fn label(contexts: &FileContexts, path: &[u8], kind: FileKind) -> String {
        let specs: Vec<&Spec> = contexts.specs.iter().collect();
        let value = find(&specs, path, kind).map(|value| value.strip_suffix(b"\0").unwrap());
        value.map_or("-".into(), |value| String::from_utf8_lossy(value).into_owned())
    }

    #[test]
    fn the_last_line_that_matches_decides_and_lines_without_wildcards_precede() {
        let contexts = contexts(
            "# a comment\n\n/.*\tall\n/etc(/.*)? etc\n/etc/exact --  exact\r\n  /etc/e.*  -d wild\n/etc/none <<none>>\n\
             /etc/a\\.b dot\n/usr/(bin|sbin)/.* -- program\n/x|/y bar\n/usr/bin(/.*)? directory\n/usr/bin/.* -l link\n",
        );
        use FileKind::{Directory, Regular, Symlink};
        for (path, kind, wanted) in [
            ("/", Directory, "all"),
            ("/etc", Directory, "etc"),
            ("/etcx", Directory, "all"),
            ("/etc/exact", Regular, "exact"),
            ("/etc/exact", Directory, "wild"),
            ("/etc/none", Regular, "-"),
            ("/etc/a.b", Regular, "dot"),
            ("/etc/axb", Regular, "etc"),
            ("/usr/sbin/x", Regular, "program"),
            ("/usr/bin/x", Regular, "directory"),
            ("/usr/bin/x", Symlink, "link"),
            ("/x", Regular, "bar"),
            ("/y", Regular, "bar"),
            ("/xy", Regular, "all"),
        ] {
            assert_eq!(label(&contexts, path.as_bytes(), kind), wanted, "{path} {kind:?}");
        }
    }

    #[test]
    fn paths_are_bytes() {
        let contexts = FileContexts::parse(b"/\xff. bytes\n/\xc3\xa9? short\n/.\n? two").unwrap_err();
        assert!(contexts.contains("line 3 "), "{contexts}");
        let contexts = FileContexts::parse(b"/\xff. bytes\n/[\xc3\xa9]+ some\n/a.b newline").unwrap();
        for (path, wanted) in [
            (&b"/\xff\xfe"[..], "bytes"),
            (b"/\xff", "-"),
            (b"/\xc3\xa9", "some"),
            (b"/\xa9", "some"),
            (b"/a\nb", "newline"),
        ] {
            assert_eq!(label(&contexts, path, FileKind::Regular), wanted, "{path:?}");
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, says) in [
            ("/a", "EXPRESSION LABEL"),
            ("/a -- b c", "EXPRESSION LABEL"),
            ("/a -x b", "the type '-x' is none of"),
            ("/a(.* b", "the expression is invalid"),
            ("/(?=a) b", "the expression is invalid"),
            (r"/(a)\1 b", "the expression is invalid"),
            ("/(a{1000}){1000} b", "the expression is invalid"),
        ] {
            let error = FileContexts::parse(format!("/ root\n{text}\n").as_bytes()).unwrap_err();
            assert!(error.contains("line 2 is wrong") && error.contains(says), "{text}: {error}");
        }
        assert!(FileContexts::parse(&COMPILED_MAGIC).unwrap_err().contains("compiled"));
        let lines = "/a b\n".repeat(SPECS_MAX + 1);
        assert!(FileContexts::parse(lines.as_bytes()).unwrap_err().contains("65536 lines"));
        let long = format!("/{} b", "a".repeat(LINE_BYTES_MAX));
        assert!(FileContexts::parse(long.as_bytes()).unwrap_err().contains("4096 bytes"));
    }

    #[test]
    fn files_get_labels_and_hard_links_that_of_their_first_path() {
        let mut tree = Tree::new(Metadata::default());
        let file = tree.add_bytes(b"b/file", *b"1").unwrap();
        tree.add_bytes(b"a/none", *b"1").unwrap();
        tree.link(InodeId::ROOT, b"z", file).unwrap();
        tree.add(InodeId::ROOT, b"link", Metadata::default(), Body::Symlink(Box::from(*b"b"))).unwrap();
        contexts("/.* all\n/a/.* <<none>>\n/b(/.*)? b\n/z z\n/link -- file\n/ -d root")
            .apply(&mut tree)
            .unwrap();
        let shown = |path: &str| {
            let xattrs = tree.xattrs(tree.find(path.as_bytes()).unwrap());
            xattrs.iter().map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect::<String>()
        };
        let found = ["", "a", "a/none", "b", "b/file", "z", "link"].map(shown);
        assert_eq!(found, ["root\0", "all\0", "", "b\0", "z\0", "z\0", "all\0"]);
    }

    /// The same, slowly: whole expressions, in the order of the file.
    fn slow(lines: &[(String, String)], path: &str) -> String {
        let is_exact =
            |pattern: &str| !pattern.replace("\\.", "").contains(['.', '?', '*', '|', '[', '(', '+', '{']);
        let matches = |pattern: &str| Regex::new(&format!(r"\A(?:{pattern})\z")).unwrap().is_match(path);
        let find = |exact: bool| {
            let mut lines = lines.iter().rev().filter(|(pattern, _)| is_exact(pattern) == exact);
            lines.find(|(pattern, _)| matches(pattern))
        };
        find(true).or_else(|| find(false)).map_or("-".into(), |(_, label)| label.clone())
    }

    proptest! {
        #[test]
        fn divided_expressions_match_what_whole_ones_match(
            patterns in proptest::collection::vec(
                "/(a|b|/|\\\\\\.|\\.|a\\?|b\\*|/\\+|a\\{2\\}|\\(a\\|b\\)|\\(/b\\)\\?|\\[]ab\\]|\\[\\^a\\|\\]|\\[\\[:alpha:\\]\\|\\]|\\|){0,5}", 1..6),
            paths in proptest::collection::vec("/([ab.|\\]]{0,3}/?){0,2}", 1..20),
        ) {
            let lines: Vec<(String, String)> =
                patterns.into_iter().enumerate().map(|(at, pattern)| (pattern, format!("l{at}"))).collect();
            let text: String = lines.iter().map(|(pattern, label)| format!("{pattern} {label}\n")).collect();
            let contexts = contexts(&text);
            for path in &paths {
                prop_assert_eq!(
                    label(&contexts, path.as_bytes(), FileKind::Regular), slow(&lines, path), "{} {:?}", path, &lines
                );
                // The lines that are selected for a directory decide as all lines do.
                let directory = &path[..=path.rfind('/').unwrap()];
                let selected = contexts.below(directory.as_bytes());
                let all: Vec<&Spec> = contexts.specs.iter().collect();
                prop_assert_eq!(
                    find(&selected, path.as_bytes(), FileKind::Regular), find(&all, path.as_bytes(), FileKind::Regular)
                );
            }
        }
    }
}
