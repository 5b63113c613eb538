//! The list of a start-up, and its text.
//!
//! A line is a path, or a path, an offset and a length with a tab between them. In a path, a backslash and three octal
//! digits are a byte, as in `/proc/mounts`; another backslash is one. So paths as `find` prints them are lines, unless
//! they have such a sequence, a tab or a newline.

use std::ops::Range;

/// Longest text of a list, bytes.
pub const LIST_BYTES_MAX: usize = 16 << 20;
/// Most entries of a list that is recorded or prefetched.
pub const LIST_ENTRIES_MAX: usize = 1 << 17;

/// The first line of a list that was recorded.
pub(super) const HEADING: &[u8] = b"# pagefold start-up list 1: path, offset, length\n";

/// Something that a start-up reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartEntry {
    /// The path from the root, without a slash at its ends, empty names and `.`; empty for the root itself.
    pub path: Box<[u8]>,
    /// The bytes of the file or directory; `None` for all. An empty range: only the inode.
    pub range: Option<Range<u64>>,
}

/// The entries of a list, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartList {
    /// The entries.
    pub entries: Vec<StartEntry>,
    /// Malformed lines: not one or three fields, or a field that is not a number.
    pub malformed: u64,
    /// Whether the text went on after the limits of bytes or entries.
    pub is_cut: bool,
}

impl StartList {
    /// Parses a list, up to [`LIST_BYTES_MAX`] and [`LIST_ENTRIES_MAX`]; the rest is left out.
    pub fn parse(text: &[u8]) -> Self {
        let mut list = StartList { is_cut: text.len() > LIST_BYTES_MAX, ..StartList::default() };
        let whole_lines = match list.is_cut {
            true => text[..LIST_BYTES_MAX].iter().rposition(|byte| *byte == b'\n').unwrap_or(0),
            false => text.len(),
        };
        for line in lines(&text[..whole_lines]) {
            match line {
                Some(_) if list.entries.len() >= LIST_ENTRIES_MAX => {
                    list.is_cut = true;
                    break;
                }
                Some(entry) => list.entries.push(entry),
                None => list.malformed += 1,
            }
        }
        list
    }
}

/// The entries of a text; `None` for a malformed line. Empty lines and those that begin with `#` are skipped.
pub fn lines(text: &[u8]) -> impl Iterator<Item = Option<StartEntry>> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty() && !line.starts_with(b"#")).map(parse_line)
}

fn parse_line(line: &[u8]) -> Option<StartEntry> {
    let mut fields = line.split(|byte| *byte == b'\t');
    let path = normal(&unescaped(fields.next()?));
    let range = match (fields.next(), fields.next(), fields.next()) {
        (None, None, None) => None,
        (Some(offset), Some(len), None) => {
            let start = number(offset)?;
            Some(start..start.checked_add(number(len)?)?)
        }
        _ => return None,
    };
    Some(StartEntry { path, range })
}

/// A number in decimal digits, without a sign.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// A path without empty names, and without `.`.
fn normal(path: &[u8]) -> Box<[u8]> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.collect::<Vec<_>>().join(b"/".as_slice()).into()
}

/// A path with bytes in place of escape sequences.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, tail)) = rest.split_first() {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

/// Adds a line to a text. `path` begins with a slash.
pub(super) fn push_line(text: &mut Vec<u8>, path: &[u8], range: &Range<u64>) {
    for &byte in path {
        match byte {
            b'\\' | 0..0x20 | 0x7f => text.extend(format!("\\{byte:03o}").into_bytes()),
            _ => text.push(byte),
        }
    }
    let len_bytes = range.end.saturating_sub(range.start);
    text.extend(format!("\t{}\t{len_bytes}\n", range.start).into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(path: &[u8], range: Option<Range<u64>>) -> Option<StartEntry> {
        Some(StartEntry { path: path.into(), range })
    }

    #[test]
    fn lines_are_paths_with_or_without_a_range() {
        let parsed = |line: &[u8]| lines(line).collect::<Vec<_>>();
        for (line, expected) in [
            (b"/usr/bin/x\t4096\t100".as_slice(), entry(b"usr/bin/x", Some(4096..4196))),
            (b"./usr//lib/", entry(b"usr/lib", None)),
            (b"/\t0\t0", entry(b"", Some(0..0))),
            (b"a b\\011\\012\\134 ", entry(b"a b\t\n\\ ", None)),
            // Names of units of systemd, as find prints them.
            (b"dev\\x2dsda.swap\\", entry(b"dev\\x2dsda.swap\\", None)),
            (b"\\400", entry(b"\\400", None)),
            (b"a\t1", None),
            (b"a\t1\t2\t3", None),
            (b"a\t+1\t2", None),
            (b"a\t\t2", None),
            (b"a\t18446744073709551615\t1", None),
            (b"a\t18446744073709551616\t1", None),
        ] {
            assert_eq!(parsed(line), [expected], "{}", String::from_utf8_lossy(line));
        }
        assert_eq!(parsed(b"# a comment\n\n\n"), []);
    }

    #[test]
    fn a_list_of_any_length_is_cut_at_its_limits() {
        let list = StartList::parse(&b"x\n".repeat(LIST_ENTRIES_MAX));
        assert!(!list.is_cut && list.entries.len() == LIST_ENTRIES_MAX);
        let list = StartList::parse(&b"x\n".repeat(10_000_000));
        assert!(list.is_cut && list.entries.len() == LIST_ENTRIES_MAX);
        let list = StartList::parse(&b"x\t\n".repeat(LIST_BYTES_MAX / 3 + 1));
        assert!(list.is_cut && list.entries.is_empty() && list.malformed > 5_000_000);
    }

    proptest! {
        /// A line that was written is read again, whatever the name.
        #[test]
        fn lines_round_trip(name in proptest::collection::vec(1..=u8::MAX, 1..40), start: u32, len: u32) {
            let name: Vec<u8> = name.into_iter().map(|byte| if byte == b'/' { b'.' } else { byte }).collect();
            let range = u64::from(start)..u64::from(start) + u64::from(len);
            let mut text = HEADING.to_vec();
            push_line(&mut text, &[b"/d/", name.as_slice()].concat(), &range);
            prop_assert!(text.iter().all(|byte| *byte >= 0x20 || matches!(byte, b'\t' | b'\n')));
            let expected = if name == b"." { b"d".to_vec() } else { [b"d/", name.as_slice()].concat() };
            let list = StartList::parse(&text);
            prop_assert_eq!(list.entries, [StartEntry { path: expected.into(), range: Some(range) }]);
        }
    }
}
