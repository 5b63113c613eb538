//! Headers of members: a ustar block, preceded by pax records for values that do not fit the block exactly.

use crate::Node;
use crate::read::FileKind;
use crate::read::acl;
use crate::read::xattr::Xattr;

/// Headers and data come in blocks of this many bytes.
pub(super) const BLOCK_BYTES: usize = 512;
/// The largest number of eleven octal digits.
const MAX_OCTAL_11: u64 = 0o777_7777_7777;
/// The largest number of seven octal digits.
const MAX_OCTAL_7: u64 = 0o777_7777;

/// Returns the member name for a path of the image: relative, with a slash after a directory's name, `./` for the root.
pub(super) fn member_name(path: &[u8], is_directory: bool) -> Vec<u8> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let mut name = if path.is_empty() { b".".to_vec() } else { path.to_vec() };
    if is_directory {
        name.push(b'/');
    }
    name
}

/// A header under construction.
pub(super) struct Header {
    block: [u8; BLOCK_BYTES],
    records: Vec<u8>,
}

impl Header {
    /// The header for an inode. `is_hard_link`: `name` is a further name of the member `target`.
    pub(super) fn of(node: &Node, name: &[u8], target: Option<&[u8]>, is_hard_link: bool) -> Self {
        let inode = node.inode();
        let mut header = Header { block: [0; BLOCK_BYTES], records: Vec::new() };
        header.text(0..100, "path", name);
        header.octal(100..108, u64::from(inode.mode & 0o7777));
        header.number(108..116, "uid", u64::from(inode.uid));
        header.number(116..124, "gid", u64::from(inode.gid));
        header.time(inode.mtime.seconds, inode.mtime.nanoseconds);
        header.block[156] = match inode.kind {
            _ if is_hard_link => b'1',
            FileKind::Regular | FileKind::Socket => b'0',
            FileKind::Symlink => b'2',
            FileKind::CharDevice => b'3',
            FileKind::BlockDevice => b'4',
            FileKind::Directory => b'5',
            FileKind::Fifo => b'6',
        };
        if let Some(target) = target {
            header.text(157..257, "linkpath", target);
        }
        header.block[257..265].copy_from_slice(b"ustar\x0000");
        if let Some(device) = inode.device {
            header.octal(329..337, u64::from(device.major));
            header.octal(337..345, u64::from(device.minor));
        }
        header
    }

    /// Writes a text field, and a pax record if the text does not fit.
    fn text(&mut self, field: std::ops::Range<usize>, key: &str, value: &[u8]) {
        let len = value.len().min(field.len());
        self.block[field.start..field.start + len].copy_from_slice(&value[..len]);
        if value.len() > field.len() {
            self.record(key.as_bytes(), value);
        }
    }

    fn octal(&mut self, field: std::ops::Range<usize>, value: u64) {
        let digits = field.len() - 1;
        let text = format!("{value:0digits$o}");
        if text.len() == digits {
            self.block[field.start..field.end - 1].copy_from_slice(text.as_bytes());
        }
    }

    /// Writes a number of at most seven octal digits, or a pax record.
    fn number(&mut self, field: std::ops::Range<usize>, key: &str, value: u64) {
        match value {
            0..=MAX_OCTAL_7 => self.octal(field, value),
            _ => {
                self.octal(field, 0);
                self.record(key.as_bytes(), value.to_string().as_bytes());
            }
        }
    }

    /// Writes the modification time, and a pax record if it is not a whole number of seconds since 1970.
    fn time(&mut self, seconds: i64, nanoseconds: u32) {
        let whole = u64::try_from(seconds).unwrap_or(0).min(MAX_OCTAL_11);
        self.octal(136..148, whole);
        if nanoseconds == 0 && i64::try_from(whole) == Ok(seconds) {
            return;
        }
        // Before 1970 the nanoseconds add to a negative number of seconds: -1 s and 250 ms are -0.75 s.
        let text = match (seconds < 0, nanoseconds) {
            (_, 0) => seconds.to_string(),
            (false, _) => format!("{seconds}.{nanoseconds:09}"),
            (true, _) => {
                format!("-{}.{:09}", seconds.unsigned_abs() - 1, 1_000_000_000 - nanoseconds)
            }
        };
        self.record(b"mtime", text.as_bytes());
    }

    /// Adds an extended attribute, in the form of GNU tar and others. An access control list of a valid form is added as
    /// text too, which tar programs restore with their option `--acls`.
    pub(super) fn xattr(&mut self, xattr: &Xattr) {
        let key: Option<&[u8]> = match xattr.name.as_slice() {
            acl::ACCESS => Some(b"SCHILY.acl.access"),
            acl::DEFAULT => Some(b"SCHILY.acl.default"),
            _ => None,
        };
        if let Some(key) = key
            && let Ok(entries) = acl::parse(&xattr.value)
        {
            self.record(key, acl::format_text(&entries).as_bytes());
        }
        // A `=` would end the key. GNU tar writes it like this, and reads it.
        let mut key = b"SCHILY.xattr.".to_vec();
        for &byte in &xattr.name {
            match byte {
                b'=' => key.extend(b"%3D"),
                b'%' => key.extend(b"%25"),
                byte => key.push(byte),
            }
        }
        self.record(&key, &xattr.value);
    }

    /// Marks the member as a sparse file of GNU's format 1.0.
    pub(super) fn sparse(&mut self, name: &[u8], real_bytes: u64) {
        self.record(b"GNU.sparse.major", b"1");
        self.record(b"GNU.sparse.minor", b"0");
        self.record(b"GNU.sparse.name", name);
        self.record(b"GNU.sparse.realsize", real_bytes.to_string().as_bytes());
    }

    /// Adds a pax record: the record's length in decimal digits, a space, key, `=`, value, newline.
    fn record(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut digits = 1;
        while (rest + digits).to_string().len() > digits {
            digits += 1;
        }
        self.records.extend_from_slice((rest + digits).to_string().as_bytes());
        self.records.push(b' ');
        self.records.extend_from_slice(key);
        self.records.push(b'=');
        self.records.extend_from_slice(value);
        self.records.push(b'\n');
    }

    /// Returns the whole blocks of the header for a member with `len_bytes` of data.
    pub(super) fn into_bytes(mut self, len_bytes: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if len_bytes > MAX_OCTAL_11 {
            self.octal(124..136, 0);
            self.record(b"size", len_bytes.to_string().as_bytes());
        } else {
            self.octal(124..136, len_bytes);
        }
        if !self.records.is_empty() {
            let mut pax = Header { block: [0; BLOCK_BYTES], records: Vec::new() };
            pax.block[..13].copy_from_slice(b"PaxHeaders/./");
            for field in [100..108, 108..116, 116..124, 136..148] {
                pax.octal(field, 0);
            }
            pax.octal(124..136, self.records.len() as u64);
            pax.block[156] = b'x';
            pax.block[257..265].copy_from_slice(b"ustar\x0000");
            bytes.extend(pax.with_checksum());
            bytes.append(&mut self.records);
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        }
        bytes.extend(self.with_checksum());
        bytes
    }

    /// Returns the block with its checksum, which is computed with spaces in the checksum field.
    fn with_checksum(&mut self) -> [u8; BLOCK_BYTES] {
        self.block[148..156].fill(b' ');
        let sum: u64 = self.block.iter().map(|&byte| u64::from(byte)).sum();
        self.octal(148..155, sum);
        self.block[154] = 0;
        self.block
    }
}
