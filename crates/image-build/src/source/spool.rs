//! Copies a stream to a temporary file, decompressed: a pipe and compressed bytes can be read once, and in order only.
//!
//! The file lies beside the output, where there has to be room for an image anyway, and has no name, so that it vanishes
//! with the process. Never in `/tmp`, which may be memory.

use crate::{BuildError, Result};
use pagefold_sys::beneath;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
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

    /// A decoder that takes at most this much memory, about.
    fn decoder<'r>(self, input: impl Read + 'r, memory_bytes: u64) -> io::Result<Box<dyn Read + 'r>> {
        let input = BufReader::with_capacity(BUFFER_BYTES, input);
        Ok(match self {
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
                decoder.window_log_max(memory_bytes.max(1).ilog2().min(ZSTD_WINDOW_LOG))?;
                Box::new(decoder)
            }
            Compression::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(
                    memory_bytes.min(XZ_MEMORY_BYTES),
                    liblzma::stream::CONCATENATED,
                )?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream))
            }
        })
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

/// Copies `input` to `file`, decompressed if it is compressed, and returns the file. `path` is for messages.
/// Decoding takes up to `memory_bytes`, and the file nine tenths of the free space: a few bytes may decompress to
/// terabytes.
/// `on_bytes` gets the bytes that were written; `Break` ends the copy.
pub fn spool(
    input: impl Read,
    path: &Path,
    file: File,
    memory_bytes: Option<u64>,
    on_bytes: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<File> {
    let space = beneath::free_space(&file).map_err(|e| BuildError::Spool { source: e.into() })?;
    spool_up_to(space.free_bytes / 10 * 9, input, path, file, memory_bytes, on_bytes)
}

/// As [`spool`], with this limit of the file.
fn spool_up_to(
    max_bytes: u64,
    mut input: impl Read,
    path: &Path,
    mut file: File,
    memory_bytes: Option<u64>,
    on_bytes: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<File> {
    let failed = |e| BuildError::source(path, e);
    let mut beginning = Vec::new();
    input.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut beginning).map_err(failed)?;
    if let Some(program) = Compression::other_program(&beginning) {
        return Err(BuildError::UnknownSource { path: path.into(), what: decompress_with(program) });
    }
    let compression = Compression::of(&beginning);
    let is_input_failing = Cell::new(false);
    let whole = Watched { input: io::Cursor::new(beginning).chain(input), has_failed: &is_input_failing };
    let mut decoder: Box<dyn Read> = match compression {
        Some(compression) => compression.decoder(whole, memory_bytes.unwrap_or(u64::MAX)).map_err(failed)?,
        None => Box::new(whole),
    };
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut done: u64 = 0;
    loop {
        let len = match decoder.read(&mut buffer) {
            Ok(0) => return Ok(file),
            Ok(len) => len,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) if compression.is_some() && !is_input_failing.get() && !is_limit(&e) => {
                return Err(BuildError::CompressedSource { path: path.into(), what: e.to_string() });
            }
            Err(e) => return Err(failed(e)),
        };
        done += len as u64;
        if done > max_bytes {
            let what = "No space left: the archive takes more than nine tenths of the free space";
            return Err(BuildError::Spool { source: io::Error::new(io::ErrorKind::StorageFull, what) });
        }
        file.write_all(&buffer[..len]).map_err(|source| BuildError::Spool { source })?;
        if on_bytes(&buffer[..len]).is_break() {
            return Err(BuildError::Interrupted);
        }
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
        let (copy, on_bytes) = (file.try_clone().unwrap(), &mut |_: &[u8]| ControlFlow::Continue(()));
        let spooled = spool_up_to(max_bytes, &bomb[..], Path::new("a.tar.gz"), file, None, on_bytes);
        let Err(BuildError::Spool { source }) = spooled else { panic!("{spooled:?}") };
        assert!(source.to_string().contains("nine tenths of the free space"), "{source}");
        assert!(copy.metadata().unwrap().len() <= max_bytes);
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
