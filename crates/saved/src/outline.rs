//! [`Outline`]: the properties and totals of a saved disk, from the ends of its file; [`Ends`]: the parts of these that have a
//! fixed form, for commands that look for the files of a chain.

use crate::error::SavedError;
use crate::header::{Head, Header};
use crate::reader::read_header;
use crate::trailer::{TRAILER_LEN, Totals, Trailer};
use std::io::{ErrorKind, Read, Seek, SeekFrom};

/// The header and the totals of a saved disk. The pages were not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The header.
    pub header: Header,
    /// The totals in the trailer.
    pub totals: Totals,
}

impl Outline {
    /// Reads the header and the trailer of a file.
    pub fn read(mut file: impl Read + Seek) -> Result<Self, SavedError> {
        let mut offset = 0;
        let header = read_header(&mut |bytes| fill(&mut file, &mut offset, bytes))?;
        let totals = read_totals(file, offset, header.id)?;
        Ok(Outline { header, totals })
    }
}

/// The fixed parts of the header and the totals of a saved disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The fixed part of the header, whose checksum was not verified.
    pub head: Head,
    /// The totals in the trailer.
    pub totals: Totals,
}

impl Ends {
    /// Reads the beginning and the end of a file.
    pub fn read(mut file: impl Read + Seek) -> Result<Self, SavedError> {
        let mut offset = 0;
        let head = Head::read::<SavedError>(&mut |bytes| fill(&mut file, &mut offset, bytes))?;
        let totals = read_totals(file, offset, head.id())?;
        Ok(Ends { head, totals })
    }
}

/// Reads the next bytes of the beginning.
fn fill(file: &mut impl Read, offset: &mut u64, bytes: &mut [u8]) -> Result<(), SavedError> {
    let read = file.read_exact(bytes).map_err(|source| at_end(*offset, source));
    *offset += bytes.len() as u64;
    read
}

/// Reads the trailer of a file whose header was read up to `offset`, and has this identity.
fn read_totals(mut file: impl Read + Seek, offset: u64, id: [u8; 16]) -> Result<Totals, SavedError> {
    let failed = |offset| move |source| SavedError::Read { offset, source };
    let len = file.seek(SeekFrom::End(0)).map_err(failed(offset))?;
    let start = len.checked_sub(TRAILER_LEN as u64).filter(|start| *start >= offset);
    let start = start.ok_or(SavedError::Truncated { offset: len })?;
    file.seek(SeekFrom::Start(start)).map_err(failed(start))?;
    let mut bytes = [0; TRAILER_LEN];
    file.read_exact(&mut bytes).map_err(|source| at_end(start, source))?;
    let trailer = Trailer::decode_end(&bytes, start)?;
    match trailer.id == id {
        true => Ok(trailer.totals),
        false => {
            let what = "its last part is that of another saved disk";
            Err(SavedError::Damaged { offset: start, what })
        }
    }
}

fn at_end(offset: u64, source: std::io::Error) -> SavedError {
    match source.kind() {
        ErrorKind::UnexpectedEof => SavedError::Truncated { offset },
        _ => SavedError::Read { offset, source },
    }
}
