//! The members of an archive, one after another: each from its header and from what precedes that.

use super::archive::{Archive, Block, Cursor, cut_off};
use super::fault::refused;
use super::header::Header;
use super::kind::{Data, MemberKind};
use super::metadata;
use super::pax::Records;
use super::sparse::Sparse;
use crate::Result;
use crate::tree::Metadata;
use pagefold_image::read::inode::{DeviceNumber, Timestamp};

/// Bytes of a header of pax records or of a long name at most. All of it is in memory.
pub const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of extended headers with records for one member: they are in memory until it comes.
pub const RECORDS_BYTES_MAX: u64 = 4 << 20;

/// A member.
pub struct Member {
    /// Its name, as it is in the archive.
    pub name: Vec<u8>,
    /// Metadata.
    pub metadata: Metadata,
    /// Attributes that an image cannot have.
    pub dropped_xattrs: u64,
    /// Type of file, and contents.
    pub kind: MemberKind,
}

/// The result of a step through an archive.
pub enum Step {
    /// The next member.
    Member(Box<Member>),
    /// Nothing yet: a header that is about others, or zeroes that are passed over.
    Nothing,
    /// The end of the archive.
    End,
}

/// Reads members.
pub struct Members<'a> {
    cursor: Cursor<'a>,
    /// Records of global headers.
    globals: Records,
    /// Name of the member that is being read, or of the one before.
    current: Vec<u8>,
    /// Blocks of zeroes do not end the archive.
    ignores_zeros: bool,
    /// A sentence for the user about an unusual end.
    note: Option<String>,
}

/// Extended headers that precede the header of a member.
struct Preceding {
    /// Bytes of the headers of `records`, global ones not counted.
    records_bytes: u64,
    records: Records,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    is_empty: bool,
}

impl<'a> Members<'a> {
    /// Begins with the first member. With `ignores_zeros` the archive ends with its last byte, and not with a block of
    /// zeroes.
    pub fn new(archive: &'a Archive, ignores_zeros: bool) -> Self {
        Members {
            cursor: Cursor::new(archive),
            globals: Records::default(),
            current: b"/".to_vec(),
            ignores_zeros,
            note: None,
        }
    }

    /// Returns a sentence for the user if the end of the archive was unusual; to be called after the last member.
    pub fn note(&mut self) -> Option<String> {
        self.note.take()
    }

    /// The name for messages about what was read last.
    pub fn current(&self) -> &[u8] {
        &self.current
    }

    /// Reads the next member, or a part of what precedes it: a long archive may have few members.
    pub fn step(&mut self) -> Result<Step> {
        let mut preceding = self.nothing_precedes();
        loop {
            let at = self.cursor.at();
            if !self.cursor.has_block() {
                return self.end_without_mark(&preceding).map(|()| Step::End);
            }
            let block = self.cursor.block()?;
            if block.iter().all(|&byte| byte == 0) {
                if !preceding.is_empty {
                    return Err(refused("the archive ends after an extended header, before its member"));
                }
                if self.ignores_zeros {
                    return self.cursor.pass_zeroes().map(|()| Step::Nothing);
                }
                return self.end().map(|()| Step::End);
            }
            let Some(header) = Header::new(&block) else {
                let what = format!("byte {at} after it is no header of a member: the archive is damaged");
                return Err(refused(what));
            };
            match header.letter() {
                b'x' | b'X' => {
                    let payload = self.payload(header)?;
                    preceding.records_bytes += payload.len() as u64;
                    let added = match preceding.records_bytes <= RECORDS_BYTES_MAX {
                        true => preceding.records.add(&payload, false),
                        false => Err(refused("extended headers of more than 4 MiB")),
                    };
                    if let Err(fault) = added {
                        self.current = self.name_behind(&preceding);
                        return Err(fault);
                    }
                }
                b'g' => {
                    let payload = self.payload(header)?;
                    self.globals.add(&payload, true)?;
                    if !preceding.is_empty {
                        let what = "a global header stands between an extended header and its member";
                        return Err(refused(what));
                    }
                    return Ok(Step::Nothing);
                }
                b'L' => preceding.long_name = Some(until_nul(self.payload(header)?)),
                b'K' => preceding.long_link = Some(until_nul(self.payload(header)?)),
                // The name of the archive itself.
                b'V' if preceding.is_empty => return Ok(Step::Nothing),
                b'V' => continue,
                _ => return self.member(header, preceding).map(|member| Step::Member(Box::new(member))),
            }
            preceding.is_empty = false;
        }
    }

    /// Returns the name of the member after an extended header, for the message that this is damaged.
    fn name_behind(&mut self, preceding: &Preceding) -> Vec<u8> {
        let records = &preceding.records;
        if let Some(name) =
            records.sparse.name.as_ref().or(records.path.as_ref()).or(preceding.long_name.as_ref())
        {
            return name.clone();
        }
        while let Ok(block) = self.cursor.block()
            && let Some(header) = Header::new(&block)
        {
            match header.letter() {
                b'x' | b'X' | b'g' | b'L' | b'K' if self.payload(header).is_ok() => {}
                b'x' | b'X' | b'g' | b'L' | b'K' => break,
                _ => return header.name(),
            }
        }
        b"/".to_vec()
    }

    fn nothing_precedes(&self) -> Preceding {
        Preceding {
            records: self.globals.clone(),
            records_bytes: 0,
            long_name: None,
            long_link: None,
            is_empty: true,
        }
    }

    /// Looks at what follows the block of zeroes that ends the archive. There should be a second one; programs require
    /// one, and do not read on.
    fn end(&mut self) -> Result<()> {
        self.note = match self.cursor.find_nonzero()? {
            Some(at) => Some(format!(
                "after the end of the archive there are {} bytes, from byte {at} on, which are not read; --ignore-zeros \
                 reads archives that were written one after another",
                self.archive_bytes() - at
            )),
            None if self.cursor.left_bytes() == 0 => Some(
                "the archive ends with one block of zeroes in place of two, and may be incomplete".into(),
            ),
            None => None,
        };
        Ok(())
    }

    /// Ends an archive with its last byte, if that is the end of a member: some programs write no blocks of zeroes.
    fn end_without_mark(&mut self, preceding: &Preceding) -> Result<()> {
        let is_padding = self.cursor.find_nonzero()?.is_none();
        if !preceding.is_empty || !is_padding || self.archive_bytes() == 0 {
            return Err(cut_off());
        }
        if !self.ignores_zeros {
            let note = "the archive ends without blocks of zeroes, which mark its end, and may be incomplete";
            self.note = Some(note.into());
        }
        Ok(())
    }

    /// Length of the archive, bytes.
    fn archive_bytes(&self) -> u64 {
        self.cursor.at() + self.cursor.left_bytes()
    }

    fn payload(&mut self, header: Header<'_>) -> Result<Vec<u8>> {
        match header.size()? {
            size @ 0..=HEADER_BYTES_MAX => self.cursor.payload(size),
            size => Err(refused(format!("an extended header of {size} bytes; up to 1 MiB"))),
        }
    }

    fn member(&mut self, header: Header<'_>, preceding: Preceding) -> Result<Member> {
        let Preceding { mut records, records_bytes, long_name, long_link, .. } = preceding;
        let path = records.sparse.name.take().or(records.path.take()).or(long_name);
        self.current = path.unwrap_or_else(|| header.name());
        let link = || records.link_path.clone().or(long_link).unwrap_or_else(|| header.link_name().to_vec());
        let kind = match header.letter() {
            // The form of directories before they had a letter. One with contents is a file all the same.
            b'0' | 0 | b'7'
                if self.current.ends_with(b"/")
                    && size(header, &records)? == 0
                    && records.sparse.real_bytes.is_none() =>
            {
                MemberKind::Directory
            }
            b'0' | 0 | b'7' | b'S' => MemberKind::Regular(self.data(header, &mut records)?),
            b'1' => {
                let target = link();
                self.skip_contents_of_link(size(header, &records)?, records_bytes > 0)?;
                MemberKind::HardLink(target)
            }
            b'2' => MemberKind::Symlink(link()),
            b'3' => MemberKind::CharDevice(device(header, &records)?),
            b'4' => MemberKind::BlockDevice(device(header, &records)?),
            b'5' => MemberKind::Directory,
            // With the names of the files in it.
            b'D' => {
                self.cursor.skip(size(header, &records)?)?;
                MemberKind::Directory
            }
            b'6' => MemberKind::Fifo,
            b'M' => return Err(refused("the rest of a file that began in another volume")),
            letter => {
                let letter = letter.escape_ascii();
                return Err(refused(format!("a member of the unknown type '{letter}'")));
            }
        };
        let mut metadata = Metadata {
            permissions: header.permissions()?,
            uid: records.uid.map_or_else(|| header.uid(), Ok)?,
            gid: records.gid.map_or_else(|| header.gid(), Ok)?,
            mtime: match records.mtime {
                Some(mtime) => mtime,
                None => Timestamp { seconds: header.mtime()?, nanoseconds: 0 },
            },
            xattrs: Vec::new(),
        };
        let dropped_xattrs = match &kind {
            // It has the attributes of the file that it is a name of.
            MemberKind::HardLink(_) => 0,
            kind => metadata::set_attributes(&mut metadata, kind, records, &self.current)?,
        };
        Ok(Member { name: self.current.clone(), metadata, dropped_xattrs, kind })
    }

    /// Passes over the contents of a hard link, which it may have (`pax -o linkdata`), and which are those of its target.
    /// Other programs write the length without contents: the headers that follow, or do not, decide. If both fit,
    /// contents are there after pax records, as POSIX has them.
    fn skip_contents_of_link(&mut self, len_bytes: u64, has_records: bool) -> Result<()> {
        if len_bytes == 0 {
            return Ok(());
        }
        let is_boundary_here = self.cursor.is_boundary_after(0, is_boundary)?;
        let is_boundary_behind = self.cursor.is_boundary_after(len_bytes, is_boundary)?;
        match is_boundary_behind && (has_records || !is_boundary_here) {
            true => self.cursor.skip(len_bytes),
            false => Ok(()),
        }
    }

    fn data(&mut self, header: Header<'_>, records: &mut Records) -> Result<Data> {
        let mut size = size(header, records)?;
        let sparse = match header.letter() {
            b'S' => Some(Sparse::old(header, &mut self.cursor)?),
            _ => Sparse::pax(&mut records.sparse, &mut size, &mut self.cursor)?,
        };
        let at = self.cursor.at();
        self.cursor.skip(size)?;
        match sparse {
            Some(sparse) => Ok(Data { at, len_bytes: sparse.len_bytes, runs: Some(sparse.runs(size)?) }),
            None => Ok(Data { at, len_bytes: size, runs: None }),
        }
    }
}

fn size(header: Header<'_>, records: &Records) -> Result<u64> {
    records.size.map_or_else(|| header.size(), Ok)
}

fn device(header: Header<'_>, records: &Records) -> Result<DeviceNumber> {
    let (major, minor) = match records.device {
        (Some(major), Some(minor)) => (major, minor),
        _ => header.device()?,
    };
    let number = u32::try_from(major).ok().zip(u32::try_from(minor).ok());
    let number = number.map(|(major, minor)| DeviceNumber { major, minor });
    number.ok_or_else(|| refused(format!("device {major}:{minor}; Linux has up to 4095:1048575")))
}

fn until_nul(mut name: Vec<u8>) -> Vec<u8> {
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
    name
}

/// Whether a block can follow a member.
fn is_boundary(block: &Block) -> bool {
    is_header(block) || block.iter().all(|&byte| byte == 0)
}

/// Whether a block begins an archive.
pub fn is_header(block: &Block) -> bool {
    Header::new(block).is_some()
}
