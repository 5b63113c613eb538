//! The codecs of a store by priority, each with its streams.
//!
//! The primary codec, priority 0, compresses every page that is written. Up to three further codecs only compress pages
//! again (`recompress`). A slot and a record on the backing name the codec of their bytes by its priority, so bytes of
//! several codecs lie side by side. The set never changes: no page can refer to a codec that is gone.

use pagefold_codec::{Codec, CodecError, CodecSpec, Stream, Streams};

/// Codecs of a store, the primary one included: a slot has two bits for the priority.
pub const PRIORITY_COUNT: usize = 4;

/// A codec and one stream of it for each CPU.
pub(crate) struct CodecStreams {
    pub(crate) codec: Codec,
    pub(crate) streams: Streams,
}

impl CodecStreams {
    fn new(spec: &CodecSpec, cpu_count: usize) -> Result<Self, CodecError> {
        let codec = Codec::new(spec)?;
        let streams = Streams::new(&codec, cpu_count)?;
        Ok(CodecStreams { codec, streams })
    }
}

/// The codecs of a store.
pub(crate) struct Codecs {
    pub(crate) primary: CodecStreams,
    /// Those of priority 1, 2 and 3.
    further: [Option<Box<CodecStreams>>; PRIORITY_COUNT - 1],
}

impl Codecs {
    /// Prepares the codecs with `cpu_count` streams each. `further` is in the order of their priorities, from 1 on.
    pub(crate) fn new(
        primary: &CodecSpec,
        further: &[Option<CodecSpec>; PRIORITY_COUNT - 1],
        cpu_count: usize,
    ) -> Result<Self, CodecError> {
        let mut codecs =
            Codecs { primary: CodecStreams::new(primary, cpu_count)?, further: [const { None }; 3] };
        for (codec, spec) in codecs.further.iter_mut().zip(further) {
            if let Some(spec) = spec {
                *codec = Some(Box::new(CodecStreams::new(spec, cpu_count)?));
            }
        }
        Ok(codecs)
    }

    /// The codec of a priority, if the store has it.
    #[inline]
    pub(crate) fn get(&self, priority: u8) -> Option<&CodecStreams> {
        match priority {
            0 => Some(&self.primary),
            _ => self.further.get(usize::from(priority) - 1)?.as_deref(),
        }
    }

    /// The highest priority that has a codec.
    pub(crate) fn highest(&self) -> u8 {
        (0..PRIORITY_COUNT as u8).rev().find(|priority| self.get(*priority).is_some()).unwrap_or(0)
    }

    /// Decompresses with the codec of `priority` and the stream of CPU `cpu`.
    #[inline]
    pub(crate) fn decompress(
        &self,
        cpu: usize,
        priority: u8,
        bytes: &[u8],
        page: &mut [u8],
    ) -> Result<usize, CodecError> {
        match self.get(priority) {
            Some(codec) => codec.streams.get(cpu).stream.decompress(bytes, page),
            None => Err(self.unknown(bytes)),
        }
    }

    /// The error for bytes whose priority names no codec: they come from a corrupt record.
    #[cold]
    fn unknown(&self, bytes: &[u8]) -> CodecError {
        CodecError::Corrupt { codec: self.primary.codec.name(), src_len_bytes: bytes.len() }
    }

    /// Makes a stream of each codec for one thread's own use.
    pub(crate) fn own_streams(&self) -> Result<OwnStreams, CodecError> {
        let mut streams = [const { None }; PRIORITY_COUNT];
        for (priority, stream) in streams.iter_mut().enumerate() {
            if let Some(codec) = self.get(priority as u8) {
                *stream = Some(pagefold_codec::PerCpuStream::new(&codec.codec)?.stream);
            }
        }
        Ok(OwnStreams(streams))
    }
}

/// A stream of each codec, for a thread that cannot wait for the shared ones.
pub(crate) struct OwnStreams([Option<Box<dyn Stream>>; PRIORITY_COUNT]);

impl OwnStreams {
    /// Decompresses with the codec of `priority`. Allocates nothing.
    #[inline]
    pub(crate) fn decompress(
        &mut self,
        priority: u8,
        bytes: &[u8],
        page: &mut [u8],
    ) -> Result<usize, CodecError> {
        match self.0.get_mut(usize::from(priority)) {
            Some(Some(stream)) => stream.decompress(bytes, page),
            _ => Err(CodecError::Corrupt { codec: "unknown", src_len_bytes: bytes.len() }),
        }
    }
}
