//! Records of pax headers: values that do not fit the fields of a header, extended attributes, maps of sparse files.
//!
//! A record is `LENGTH KEY=VALUE\n`. An empty value takes back a record of the same key; only an attribute may be empty.

use super::fault::{described, refused};
use super::header::id;
use crate::Result;
use crate::base64;
use pagefold_image::read::inode::Timestamp;
use std::collections::BTreeMap;

/// The records that precede a member. `None`: the field of the header counts.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Name.
    pub path: Option<Vec<u8>>,
    /// Target of a link.
    pub link_path: Option<Vec<u8>>,
    /// Bytes of data in the archive.
    pub size: Option<u64>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the last change.
    pub mtime: Option<Timestamp>,
    /// Number of a device.
    pub device: (Option<u64>, Option<u64>),
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Access control list, as text.
    pub access_list: Option<Vec<u8>>,
    /// Access control list of files that are created in a directory, as text.
    pub default_list: Option<Vec<u8>>,
    /// Records of GNU's sparse formats.
    pub sparse: SparseRecords,
}

/// Records of GNU's sparse formats.
#[derive(Debug, Clone, Default)]
pub struct SparseRecords {
    /// Version of the format; the first one has none.
    pub major: Option<u64>,
    /// The second number of the version.
    pub minor: Option<u64>,
    /// Name of the file.
    pub name: Option<Vec<u8>>,
    /// Length of the file, bytes.
    pub real_bytes: Option<u64>,
    /// Offsets and lengths of the data.
    pub map: Option<Vec<(u64, u64)>>,
    /// Offset whose length is to follow.
    offset: Option<u64>,
}

impl Records {
    /// Adds the records of a header. A global header applies to all members after it, so it may not have what belongs
    /// to a single file.
    pub fn add(&mut self, mut bytes: &[u8], is_global: bool) -> Result<()> {
        while !bytes.is_empty() {
            let Some((key, value, rest)) = split(bytes) else {
                // Padding.
                return match bytes.iter().all(|&byte| byte == 0) {
                    true => Ok(()),
                    false => Err(refused("damaged pax records")),
                };
            };
            if is_global && is_of_one_file(key) {
                let key = key.escape_ascii();
                return Err(refused(format!("the record {key} in a global header")));
            }
            self.record(key, value).map_err(|error| {
                described(error, |what| format!("pax record {}: {what}", key.escape_ascii()))
            })?;
            bytes = rest;
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let bytes = (!value.is_empty()).then(|| value.to_vec());
        match key {
            b"path" => self.path = bytes,
            b"linkpath" => self.link_path = bytes,
            b"size" => self.size = optional(value, whole)?,
            b"uid" => self.uid = optional(value, |value| id(whole(value)?.into()))?,
            b"gid" => self.gid = optional(value, |value| id(whole(value)?.into()))?,
            b"mtime" => self.mtime = optional(value, time)?,
            b"SCHILY.devmajor" => self.device.0 = optional(value, whole)?,
            b"SCHILY.devminor" => self.device.1 = optional(value, whole)?,
            b"SCHILY.acl.access" => self.access_list = bytes,
            b"SCHILY.acl.default" => self.default_list = bytes,
            b"SCHILY.realsize" => return Err(refused("a sparse file in star's form; use GNU tar")),
            // GNU tar leaves out the NUL that Linux keeps at the end of the label.
            b"RHT.security.selinux" => {
                let label = [value.strip_suffix(b"\0").unwrap_or(value), b"\0"].concat();
                self.xattrs.insert(b"security.selinux".to_vec(), label);
            }
            _ => return self.prefixed(key, value),
        }
        Ok(())
    }

    fn prefixed(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.xattrs.insert(unescaped(name, |code| matches!(code, b'=' | b'%')), value.to_vec());
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = base64::decode(value).ok_or_else(|| refused("a value that is not base64"))?;
            self.xattrs.insert(unescaped(name, |_| true), value);
        } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            self.sparse.record(key, value)?;
        }
        // Other programs' records say nothing that an image could keep.
        Ok(())
    }
}

impl SparseRecords {
    /// Whether there is a record that says that the member is sparse.
    pub fn is_any(&self) -> bool {
        self.major.is_some() || self.minor.is_some() || self.real_bytes.is_some() || self.map.is_some()
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match key {
            b"major" => self.major = optional(value, whole)?,
            b"minor" => self.minor = optional(value, whole)?,
            b"name" => self.name = (!value.is_empty()).then(|| value.to_vec()),
            b"size" | b"realsize" => self.real_bytes = optional(value, whole)?,
            b"offset" => self.offset = Some(whole(value)?),
            b"numbytes" => {
                let Some(offset) = self.offset.take() else {
                    return Err(refused("a length without an offset"));
                };
                self.map.get_or_insert_default().push((offset, whole(value)?));
            }
            b"map" => {
                let numbers = value.split(|&byte| byte == b',').map(whole).collect::<Result<Vec<_>, _>>()?;
                let (pairs, []) = numbers.as_chunks::<2>() else {
                    return Err(refused("an offset without a length"));
                };
                self.map = Some(pairs.iter().map(|&[offset, len]| (offset, len)).collect());
            }
            // The number of entries is that of the entries.
            _ => {}
        }
        Ok(())
    }
}

/// Whether a record in a global header would copy much to each member, or is senseless there.
fn is_of_one_file(key: &[u8]) -> bool {
    let prefixes: [&[u8]; 6] = [
        b"SCHILY.xattr.",
        b"LIBARCHIVE.xattr.",
        b"SCHILY.acl.",
        b"GNU.sparse.",
        b"RHT.security.",
        b"SCHILY.realsize",
    ];
    matches!(key, b"path" | b"linkpath" | b"size") || prefixes.iter().any(|prefix| key.starts_with(prefix))
}

/// Splits the first record off: key, value, and what follows. `None`: there is no well-formed one.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let digits = bytes.iter().position(|&byte| byte == b' ')?;
    let len = usize::try_from(digits_of(&bytes[..digits])?).ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let record = record.get(digits + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|&byte| byte == b'=')?;
    (equals > 0).then(|| (&record[..equals], &record[equals + 1..], rest))
}

fn optional<T>(value: &[u8], parse: impl Fn(&[u8]) -> Result<T>) -> Result<Option<T>> {
    if value.is_empty() { Ok(None) } else { parse(value).map(Some) }
}

fn whole(value: &[u8]) -> Result<u64> {
    digits_of(value).ok_or_else(|| refused(format!("the number '{}'", value.escape_ascii())))
}

/// Parses decimal digits, without sign or space.
fn digits_of(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let add = |sum: u64, byte: &u8| sum.checked_mul(10)?.checked_add(digit(byte)?);
    if text.is_empty() { None } else { text.iter().try_fold(0, add) }
}

fn time(value: &[u8]) -> Result<Timestamp> {
    parse_time(value).ok_or_else(|| refused(format!("the time '{}'", value.escape_ascii())))
}

/// Parses seconds since 1970 with a sign and a fraction. Digits beyond nanoseconds are dropped, towards the past.
fn parse_time(value: &[u8]) -> Option<Timestamp> {
    let (is_negative, value) = match value.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, value),
    };
    let mut parts = value.splitn(2, |&byte| byte == b'.');
    let seconds = i64::try_from(digits_of(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (used, dropped) = fraction.split_at(fraction.len().min(9));
    let digits = used.iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanoseconds = digits.fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
    if !is_negative {
        return Some(Timestamp { seconds, nanoseconds });
    }
    let nanoseconds = nanoseconds + u32::from(dropped.iter().any(|&byte| byte != b'0'));
    Some(match nanoseconds {
        0 => Timestamp { seconds: -seconds, nanoseconds },
        _ => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

/// Replaces `%XX` by the byte that it stands for, if `is_code` says that it may stand for this byte.
fn unescaped(text: &[u8], is_code: impl Fn(u8) -> bool) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let code = match text.get(at..at + 3) {
            Some(&[b'%', high, low]) => digit(high).zip(digit(low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        let code = code.filter(|&code| is_code(code));
        out.push(code.unwrap_or(byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &str) -> String {
        let rest = key.len() + value.len() + 3;
        let len = (rest..).find(|len| len.to_string().len() + rest == *len).unwrap();
        format!("{len} {key}={value}\n")
    }

    #[test]
    fn the_last_record_of_a_key_counts_and_an_empty_one_deletes() {
        let mut records = Records::default();
        let text = [("path", "a"), ("path", "b=c"), ("uid", "70000"), ("size", "5"), ("mtime", "1.5")];
        let text: String = text.map(|(key, value)| record(key, value)).concat();
        records.add(format!("{text}\0\0").as_bytes(), false).unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"b=c"[..]));
        assert_eq!((records.uid, records.size), (Some(70_000), Some(5)));
        records.add((record("path", "") + &record("uid", "")).as_bytes(), false).unwrap();
        assert_eq!((records.path, records.uid, records.size), (None, None, Some(5)));
    }

    #[test]
    fn attributes_have_two_forms() {
        let mut records = Records::default();
        let text = record("SCHILY.xattr.user.a%3Db%25%41", "x=y\n")
            + &record("SCHILY.xattr.user.empty", "")
            + &record("LIBARCHIVE.xattr.user.%41%20", "AAEC/w")
            + &record("LIBARCHIVE.xattr.user.c", "YQ==");
        records.add(text.as_bytes(), false).unwrap();
        let xattrs: Vec<(&[u8], &[u8])> =
            records.xattrs.iter().map(|(n, v)| (n.as_slice(), v.as_slice())).collect();
        let wanted: [(&[u8], &[u8]); 4] = [
            (b"user.A ", &[0, 1, 2, 255]),
            (b"user.a=b%%41", b"x=y\n"),
            (b"user.c", b"a"),
            (b"user.empty", b""),
        ];
        assert_eq!(xattrs, wanted);
        assert!(records.add(text.as_bytes(), true).is_err());
    }

    #[test]
    fn times_have_signs_and_fractions() {
        let time = |text: &str| parse_time(text.as_bytes()).map(|t| (t.seconds, t.nanoseconds));
        assert_eq!(time("12"), Some((12, 0)));
        assert_eq!(time("12."), Some((12, 0)));
        assert_eq!(time("1.000000001999"), Some((1, 1)));
        assert_eq!(time("-0.75"), Some((-1, 250_000_000)));
        assert_eq!(time("-1"), Some((-1, 0)));
        assert_eq!(time("-1.0000000001"), Some((-2, 999_999_999)));
        assert_eq!(time("-0.9999999999"), Some((-1, 0)));
        for wrong in ["", "-", ".5", "1.x", "+1", "1e5", "9223372036854775808", "--1"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn damaged_records_are_refused() {
        let whole = record("path", "name");
        for wrong in
            ["5", "x path=a\n", "999 path=a\n", "4 a=\n", "8 =abcd\n", " 9 path=\n", "9 path=ab", "0 \n"]
        {
            assert!(Records::default().add((whole.clone() + wrong).as_bytes(), false).is_err(), "{wrong:?}");
        }
        for (key, value) in
            [("size", "-1"), ("uid", "x"), ("uid", "4294967295"), ("size", "99999999999999999999")]
        {
            assert!(Records::default().add(record(key, value).as_bytes(), false).is_err(), "{key}={value}");
        }
        for (key, value) in
            [("GNU.sparse.map", "1,2,3"), ("GNU.sparse.numbytes", "5"), ("GNU.sparse.map", "1,,2")]
        {
            assert!(Records::default().add(record(key, value).as_bytes(), false).is_err(), "{key}={value}");
        }
    }
}
