//! Copies a stream to a temporary file, decompressed: a pipe and compressed bytes can be read once, and in order only.
//!
//! The file lies beside the output, where there has to be room for an image anyway, and has no name, so that it vanishes
//! with the process. Never in `/tmp`, which may be memory.

//!
//! A compressed file may consist of several members (of gzip), frames (of Zstandard) or streams (of xz), with zeroes between
//! them and after the last one. Other bytes after it are passed over, as gzip does, and the caller learns of them: programs
//! that sign files append bytes.

use super::lookahead::Lookahead;
use crate::{BuildError, Result};
use pagefold_sys::beneath;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;

/// Bytes that are copied at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// Memory for decoding xz, bytes. Its highest level needs 65 MiB; a header can ask for 4 GiB.
const XZ_MEMORY_BYTES: u64 = 256 << 20;
/// Longest window of Zstandard, as a power of two: 128 MiB, which its program decodes without being asked to.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Bytes at the beginning of a stream that show its format.
const MAGIC_BYTES: usize = 6;

/// A compression of whole files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// gzip, of one or several members.
    Gzip,
    /// Zstandard, of one or several frames.
    Zstd,
    /// xz, of one or several streams.
    Xz,
}

/// A format that is recognized, to name the program that decompresses it.
const OTHERS: [(&[u8], &str); 5] = [
    (b"BZh", "bzip2"),
    (b"LZIP", "lzip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x1f\x9d", "uncompress"),
    (b"\x89LZO", "lzop"),
];

impl Compression {
    /// Recognizes the compression of a file by its beginning; `None`: it has none that is known.
    pub fn of(beginning: &[u8]) -> Option<Self> {
        let is = |magic: &[u8]| beginning.starts_with(magic);
        // Skippable frames may precede those of Zstandard.
        let is_skippable = matches!(beginning, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        match () {
            () if is(b"\x1f\x8b\x08") => Some(Compression::Gzip),
            () if is(b"\x28\xb5\x2f\xfd") || is_skippable => Some(Compression::Zstd),
            () if is(b"\xfd7zXZ\0") => Some(Compression::Xz),
            () => None,
        }
    }

    /// Returns the program that decompresses a file of another format.
    pub fn other_program(beginning: &[u8]) -> Option<&'static str> {
        OTHERS.iter().find(|(magic, _)| beginning.starts_with(magic)).map(|(_, program)| *program)
    }

    /// A decoder of one member, which reads no byte after it, and takes at most this much memory, about.
    fn decoder<'r>(self, input: impl BufRead + 'r, memory_bytes: u64) -> io::Result<Box<dyn Read + 'r>> {
        Ok(match self {
            Compression::Gzip => Box::new(flate2::bufread::GzDecoder::new(input)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?.single_frame();
                decoder.window_log_max(memory_bytes.max(1).ilog2().min(ZSTD_WINDOW_LOG))?;
                Box::new(decoder)
            }
            Compression::Xz => {
                let memory_bytes = memory_bytes.min(XZ_MEMORY_BYTES);
                let stream = liblzma::stream::Stream::new_stream_decoder(memory_bytes, 0)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream))
            }
        })
    }

    /// The name of the parts of which a compressed file of this kind consists.
    fn member(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip member",
            Compression::Zstd => "Zstandard frame",
            Compression::Xz => "xz stream",
        }
    }
}

/// Whether a decoder would take more memory than it may.
fn is_limit(error: &io::Error) -> bool {
    use liblzma::stream::Error;
    let xz = error.get_ref().and_then(|inner| inner.downcast_ref());
    // Zstandard's errors are texts: "Frame requires too much memory for decoding".
    xz.is_some_and(|e| matches!(e, Error::MemLimit | Error::Mem)) || error.to_string().contains("memory")
}

/// An input whose own failures are distinguished from those of its decoder.
struct Watched<'f, R> {
    input: R,
    has_failed: &'f Cell<bool>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.input.read(buf).inspect_err(|e| {
            self.has_failed.set(e.kind() != io::ErrorKind::Interrupted);
        })
    }
}

/// Creates a file without a name in a directory.
pub fn unnamed_file(directory: &Path) -> Result<File> {
    pagefold_sys::spool::unnamed_file(directory).map_err(|e| BuildError::source(directory, e.into()))
}

/// The result of [`spool`].
#[derive(Debug)]
pub struct Spooled {
    /// The file with the decompressed bytes.
    pub file: File,
    /// Tells the user of bytes after the end of the compressed ones, which were not used.
    pub note: Option<String>,
}

/// Copies `input` to `file`, decompressed if it is compressed, and returns the file. `path` is for messages.
/// Decoding takes up to `memory_bytes`, and the file nine tenths of the free space: a few bytes may decompress to
/// terabytes.
/// `on_bytes` gets the bytes that were written; `Break` ends the copy.
pub fn spool(
    input: impl Read,
    path: &Path,
    mut file: File,
    memory_bytes: Option<u64>,
    on_bytes: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<Spooled> {
    let limits = Limits { memory_bytes, bytes: Limits::bytes_beside(&file)? };
    let Decoded { note, .. } = decode(input, path, limits, &mut |bytes| {
        file.write_all(bytes).map_err(|source| BuildError::Spool { source })?;
        if on_bytes(bytes).is_break() { Err(BuildError::Interrupted) } else { Ok(()) }
    })?;
    Ok(Spooled { file, note })
}

/// Limits of decoding a stream.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Memory for that, bytes; `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Most bytes that it may decode to.
    pub bytes: u64,
}

impl Limits {
    /// The most bytes that may be written to the file system of a file: nine tenths of the free space.
    pub fn bytes_beside(file: &File) -> Result<u64> {
        let space = beneath::free_space(file).map_err(|e| BuildError::Spool { source: e.into() })?;
        Ok(space.free_bytes / 10 * 9)
    }
}

/// Facts on a stream that was decoded to its end.
#[derive(Debug)]
pub struct Decoded {
    /// Whether it was compressed.
    pub is_compressed: bool,
    /// Tells the user of bytes after the end of the compressed ones, which were not used.
    pub note: Option<String>,
}

/// Passes `input` to `put`, decompressed if it is compressed. `path` is for messages. `put` is also called without bytes, so that
/// it can end a long input of empty members.
pub fn decode(
    input: impl Read,
    path: &Path,
    limits: Limits,
    put: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Decoded> {
    let copy = Copy { path, max_bytes: limits.bytes, done_bytes: 0, put };
    copy.run(input, limits.memory_bytes.unwrap_or(u64::MAX))
}

/// A copy that is made.
struct Copy<'a> {
    /// For messages.
    path: &'a Path,
    /// Limit of what is put.
    max_bytes: u64,
    done_bytes: u64,
    put: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl Copy<'_> {
    fn run(mut self, input: impl Read, memory_bytes: u64) -> Result<Decoded> {
        let path = self.path;
        let failed = |e| BuildError::source(path, e);
        let is_input_failing = Cell::new(false);
        let watched = Watched { input, has_failed: &is_input_failing };
        let mut input = Lookahead::new(watched, BUFFER_BYTES);
        let beginning = input.peek(MAGIC_BYTES).map_err(failed)?;
        if let Some(program) = Compression::other_program(beginning) {
            return Err(BuildError::UnknownSource { path: path.into(), what: decompress_with(program) });
        }
        let Some(compression) = Compression::of(beginning) else {
            self.pass(&mut input)?;
            return Ok(Decoded { is_compressed: false, note: None });
        };
        let mut buffer = vec![0; BUFFER_BYTES];
        let of_decoder = |e: io::Error| match is_input_failing.get() || is_limit(&e) {
            true => failed(e),
            false => damaged(path, &e),
        };
        loop {
            let mut decoder = compression.decoder(&mut input, memory_bytes).map_err(failed)?;
            self.copy(&mut decoder, &mut buffer, of_decoder)?;
            drop(decoder);
            // Blocks of a tape, for example, are filled up with zeroes; xz has them between streams, too.
            while let Some(zeroes) = zeroes(input.fill_buf().map_err(failed)?) {
                input.consume(zeroes);
                (self.put)(&[])?;
            }
            let beginning = input.peek(MAGIC_BYTES).map_err(failed)?;
            if beginning.is_empty() {
                return Ok(Decoded { is_compressed: true, note: None });
            }
            if Compression::of(beginning) != Some(compression) {
                let note = Some(self.pass_over(&mut input, compression)?);
                return Ok(Decoded { is_compressed: true, note });
            }
        }
    }

    /// Puts an input that is not compressed.
    fn pass<R: Read>(&mut self, input: &mut Lookahead<R>) -> Result<()> {
        loop {
            let bytes = input.fill_buf().map_err(|e| BuildError::source(self.path, e))?;
            self.count(bytes.len())?;
            (self.put)(bytes)?;
            match bytes.len() {
                0 => return Ok(()),
                len => input.consume(len),
            }
        }
    }

    /// Puts what `decoder` returns.
    fn copy(
        &mut self,
        decoder: &mut dyn Read,
        buffer: &mut [u8],
        failed: impl Fn(io::Error) -> BuildError,
    ) -> Result<()> {
        loop {
            let len = match decoder.read(buffer) {
                // There may be millions of empty members.
                Ok(0) => return (self.put)(&[]),
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
                Err(e) => return Err(failed(e)),
            };
            self.count(len)?;
            (self.put)(&buffer[..len])?;
        }
    }

    /// Counts bytes that are put next.
    fn count(&mut self, len: usize) -> Result<()> {
        self.done_bytes += len as u64;
        if self.done_bytes > self.max_bytes {
            let what = "No space left: the archive takes more than nine tenths of the free space";
            return Err(BuildError::Spool { source: io::Error::new(io::ErrorKind::StorageFull, what) });
        }
        Ok(())
    }

    /// Reads the input to its end, so that the program at the other end of a pipe does not fail. Returns a note about it.
    fn pass_over<R: Read>(&mut self, input: &mut Lookahead<R>, compression: Compression) -> Result<String> {
        let at = input.position();
        loop {
            match input.fill_buf().map_err(|e| BuildError::source(self.path, e))?.len() {
                0 => break,
                len => input.consume(len),
            }
            (self.put)(&[])?;
        }
        let (count, member) = (input.position() - at, compression.member());
        let bytes = if count == 1 { "byte that is" } else { "bytes that are" };
        Ok(format!(
            "'{}' has {count} {bytes} no {member} after its end, from byte {at} on: they are not used",
            self.path.display()
        ))
    }
}

/// The number of zeroes at the beginning of bytes; `None`: there are none.
fn zeroes(bytes: &[u8]) -> Option<usize> {
    match bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len()) {
        0 => None,
        count => Some(count),
    }
}

/// The error of a decoder. A new copy of the file helps unless it has a form that the decoder does not know.
fn damaged(path: &Path, error: &io::Error) -> BuildError {
    let what = error.to_string();
    let of_xz = error.get_ref().and_then(|inner| inner.downcast_ref());
    // Zstandard's errors are texts: "Unsupported frame parameter", "Version not supported", "Dictionary mismatch".
    let is_unknown =
        matches!(of_xz, Some(liblzma::stream::Error::Options | liblzma::stream::Error::UnsupportedCheck))
            || ["nsupported", "not supported", "Dictionary"].iter().any(|text| what.contains(text));
    match is_unknown {
        true => BuildError::UnknownSource {
            path: path.into(),
            what: format!("its compression has a form that is not supported ({what})"),
        },
        false => BuildError::CompressedSource { path: path.into(), what },
    }
}

/// The advice for a compression that this module does not have.
pub(super) fn decompress_with(program: &str) -> String {
    format!("it needs {program} to be decompressed; pipe the result, with - as the source")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decompresses_to_more_than_the_free_space_is_refused() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::copy(&mut io::repeat(0).take(64 << 20), &mut encoder).unwrap();
        let bomb = encoder.finish().unwrap();
        assert!(bomb.len() < 1 << 20);
        let (file, max_bytes) = (tempfile::tempfile().unwrap(), 3 << 20);
        let (copy, mut file) = (file.try_clone().unwrap(), file);
        let put = &mut |bytes: &[u8]| file.write_all(bytes).map_err(|source| BuildError::Spool { source });
        let copy_of_bomb = Copy { path: Path::new("a.tar.gz"), max_bytes, done_bytes: 0, put };
        let spooled = copy_of_bomb.run(&bomb[..], u64::MAX);
        let Err(BuildError::Spool { source }) = spooled else { panic!("{spooled:?}") };
        assert!(source.to_string().contains("nine tenths of the free space"), "{source}");
        assert!(copy.metadata().unwrap().len() <= max_bytes);
    }

    #[test]
    fn empty_members_of_a_compressed_file_do_not_hold_up_its_end() {
        let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let many = encoder.finish().unwrap().repeat(1000);
        let mut calls = 0;
        let mut on_bytes = |_: &[u8]| {
            calls += 1;
            if calls == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let spooled = spool(&many[..], Path::new("a.gz"), tempfile::tempfile().unwrap(), None, &mut on_bytes);
        assert!(matches!(spooled, Err(BuildError::Interrupted)), "{spooled:?}");
    }

    #[test]
    fn compressions_are_recognized_by_their_magic_numbers() {
        assert_eq!(Compression::of(b"\x1f\x8b\x08\0"), Some(Compression::Gzip));
        assert_eq!(Compression::of(b"\x5a\x2a\x4d\x18"), Some(Compression::Zstd));
        assert_eq!(Compression::of(b"\xfd7zXZ"), None);
        assert_eq!(Compression::of(b""), None);
        assert_eq!(Compression::other_program(b"BZh91AY"), Some("bzip2"));
    }
}
